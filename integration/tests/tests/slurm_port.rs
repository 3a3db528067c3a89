//! The Slurm port against a real Slurm 24.11: what it reads, what it writes, and what it says when parts are away.
//! Runs where GPU_BRIDGE_LABS=1.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_bridge::certainty::Certainty;
use gpu_bridge::slurm::{Client, Error, Options, Slurm as _, TokenSource, connect};
use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::facts::slurm::{
    Action, BaseState, Job, JobState, NodeFlag, ReservationSpec, RunningJobs, Slurm,
};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_labs::slurm::{Daemon, Lab};
use jiff::{SignedDuration, Timestamp};

const LIMIT: Duration = Duration::from_secs(30);
const OURS: &str = "gpu-bridge:h0042 e7 \"window\" é";

/// A lab, or `None` where this run has none.
async fn lab() -> Result<Option<Lab>> {
    if std::env::var_os("GPU_BRIDGE_LABS").is_none_or(|set| set != "1") {
        println!("skipped: GPU_BRIDGE_LABS is not 1");
        return Ok(None);
    }
    Ok(Some(Lab::up(gpu_bridge_labs::slurm::Options::default()).await?))
}

/// A client over TCP with a token that `folder` keeps.
async fn client(lab: &Lab, folder: &Path) -> Result<Client> {
    let token_file = folder.join("token");
    std::fs::write(&token_file, lab.token("slurm", Duration::from_hours(1)).await?)?;
    Ok(connect(options(lab, &token_file))?)
}

fn options(lab: &Lab, token_file: &Path) -> Options {
    Options {
        url: lab.rest_url(),
        user: "slurm".into(),
        token: Some(TokenSource::File(token_file.to_owned())),
        scontrol: lab.scontrol_command(),
        ..Options::default()
    }
}

fn node(name: &str) -> SlurmNodeName {
    SlurmNodeName::from(name)
}

fn drain(name: &str, reason: &str, over: Option<&str>) -> Action {
    Action::Drain { node: node(name), reason: reason.into(), over: over.map(str::to_owned) }
}

fn undrain(name: &str, reason: &str) -> Action {
    Action::Undrain { node: node(name), reason: reason.into() }
}

/// Looks until `seen`, for at most [`LIMIT`].
async fn until(client: &Client, watched: &[JobId], seen: impl Fn(&Slurm) -> bool) -> Result<Slurm> {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let look = client.look(watched).await?;
        if seen(&look) {
            return Ok(look);
        }
        ensure!(tokio::time::Instant::now() < deadline, "not seen in time: {:?} {:?}", look.jobs, look.nodes);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn job_is(client: &Client, id: JobId, state: JobState) -> Result<Job> {
    let look = until(client, &[id], |look| look.jobs.get(&id).is_some_and(|job| job.state == state)).await?;
    look.jobs.get(&id).cloned().context("the job was just there")
}

#[tokio::test]
async fn drains_of_ours_come_and_go_and_others_stay() -> Result<()> {
    let Some(lab) = lab().await? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let client = client(&lab, folder.path()).await?;
    assert_eq!(client.api_version().await?, "v0.0.42");

    let look = client.look(&[]).await?;
    assert_eq!(look.nodes.len(), 4);
    let gpu1 = &look.nodes[&node("gpu1")];
    assert_eq!((&gpu1.state, gpu1.gpus, gpu1.gpus_used), (&BaseState::Idle, 4, Some(0)));
    assert_eq!((gpu1.flags.len(), &gpu1.reason), (0, &None));
    assert_eq!(look.partitions["main"].nodes.len(), 4);
    assert_eq!(look.partitions["main"].max_time, Some(SignedDuration::from_hours(7 * 24)));
    assert!(look.partitions["main"].up && look.reservations.is_empty());

    // Ours, twice; then with another reason of ours; then away, twice.
    for reason in [OURS, OURS, "gpu-bridge:h0043 e8 x"] {
        client.act(&drain("gpu1", reason, None)).await?;
        let look = client.look(&[]).await?;
        let gpu1 = &look.nodes[&node("gpu1")];
        assert_eq!(gpu1.flags, BTreeSet::from([NodeFlag::Drain]));
        let stands = gpu1.reason.as_ref().context("a drained node has a reason")?;
        assert_eq!((stands.text.as_str(), stands.user.as_str()), (reason, "slurm"));
        assert!(stands.at.is_some());
    }
    let refused = client.act(&undrain("gpu1", OURS)).await.unwrap_err();
    assert!(matches!(&refused, Error::ForeignDrain { .. }), "{refused}");
    for _ in 0..2 {
        client.act(&undrain("gpu1", "gpu-bridge:h0043 e8 x")).await?;
        assert!(!client.look(&[]).await?.nodes[&node("gpu1")].flags.contains(&NodeFlag::Drain));
    }

    // An admin's.
    lab.run(&["scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=bad disk"]).await?;
    for action in [drain("gpu2", OURS, None), drain("gpu2", OURS, Some("bad dis")), undrain("gpu2", OURS)] {
        match client.act(&action).await {
            Err(error @ Error::ForeignDrain { .. }) => {
                assert_eq!(error.certainty(), Certainty::NotDone);
                assert!(
                    error.to_string().contains("bad disk") && error.to_string().contains("root"),
                    "{error}"
                );
            }
            other => anyhow::bail!("{action:?}: {other:?}"),
        }
    }
    client.act(&drain("gpu2", OURS, Some("bad disk"))).await?;
    client.act(&undrain("gpu2", OURS)).await?;

    // A DOWN node stays DOWN when our drain goes.
    lab.run(&["scontrol", "update", "NodeName=gpu3", "State=DOWN", "Reason=dead"]).await?;
    client.act(&drain("gpu3", OURS, None)).await?;
    client.act(&undrain("gpu3", OURS)).await?;
    assert_eq!(client.look(&[]).await?.nodes[&node("gpu3")].state, BaseState::Down);

    for (name, unknown) in [("gpu99", true), ("gpu[1-2]", false), ("gpu1,gpu2", false), ("../ping", false)] {
        let error = client.act(&drain(name, OURS, None)).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotDone, "{error}");
        assert!(error.to_string().contains(name), "{unknown} {error}");
    }
    Ok(())
}

#[tokio::test]
async fn reservations_take_the_shape_that_is_asked_for() -> Result<()> {
    let Some(lab) = lab().await? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let client = client(&lab, folder.path()).await?;
    let job = JobId(lab.submit("alice", &["-w", "gpu2", "--gres=gpu:2", "-t", "10"], "sleep 600").await?);
    job_is(&client, job, JobState::Running).await?;

    let in_minutes = |minutes| Timestamp::now() + SignedDuration::from_mins(minutes);
    let mut spec = ReservationSpec {
        name: "gpu-bridge_h0042".into(),
        node: node("gpu2"),
        start: in_minutes(60),
        end: in_minutes(120),
        jobs: RunningJobs::Ignore,
    };
    let check = async |spec: &ReservationSpec, started: bool| -> Result<()> {
        for _ in 0..2 {
            client.act(&Action::Reserve(spec.clone())).await?;
        }
        let look = client.look(&[]).await?;
        let stands = look.reservations.get(&spec.name).context("it was just made")?;
        assert_eq!(stands.nodes, NodeSet::from([spec.node.clone()]));
        assert_eq!(stands.users, BTreeSet::from(["root".to_owned()]));
        assert_eq!(stands.flags.contains("IGNORE_JOBS"), spec.jobs == RunningJobs::Ignore);
        assert!(stands.flags.contains("MAINT"));
        assert_eq!(stands.end.as_second(), spec.end.as_second());
        assert_eq!(stands.is_active(Timestamp::now()), started, "{stands:?}");
        Ok(())
    };
    // In the future, over a running job; later; changed by someone else; now.
    check(&spec, false).await?;
    spec.start = in_minutes(70);
    spec.end = in_minutes(150);
    check(&spec, false).await?;
    let name = format!("ReservationName={}", spec.name);
    lab.run(&["scontrol", "update", &name, "Users+=alice", "Nodes=gpu[1-2]"]).await?;
    check(&spec, false).await?;
    spec.start = in_minutes(-5);
    check(&spec, true).await?;
    // Active: the end can change, and IGNORE_JOBS only go once the job has ended.
    spec.end = in_minutes(300);
    check(&spec, true).await?;
    spec.jobs = RunningJobs::None;
    let busy = client.act(&Action::Reserve(spec.clone())).await.unwrap_err();
    assert!(busy.to_string().contains("busy"), "{busy}");
    lab.run(&["scancel", &job.to_string()]).await?;
    until(&client, &[job], |look| look.jobs.get(&job).is_none_or(|job| job.state == JobState::Finished))
        .await?;
    check(&spec, true).await?;

    // One that has ended is brought back, or made anew.
    spec.jobs = RunningJobs::Ignore;
    check(&spec, true).await?;
    let soon = format!("EndTime=uts{}", (Timestamp::now() + SignedDuration::from_secs(2)).as_second());
    lab.run(&["scontrol", "update", &name, &soon]).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    spec.end = in_minutes(100);
    check(&spec, true).await?;

    for _ in 0..2 {
        client.act(&Action::Unreserve { name: spec.name.clone() }).await?;
        assert!(client.look(&[]).await?.reservations.is_empty());
    }
    // Only ours.
    let maint =
        ["create", "reservation", "ReservationName=maint", "StartTime=now", "Duration=60", "Users=root"];
    let maint = [&["scontrol"], &maint[..], &["Nodes=gpu1", "Flags=MAINT"]].concat();
    lab.run(&maint).await?;
    let refused = client.act(&Action::Unreserve { name: "maint".into() }).await.unwrap_err();
    assert_eq!(refused.certainty(), Certainty::NotDone);
    assert!(client.look(&[]).await?.reservations.contains_key("maint"));
    let nowhere = ReservationSpec { node: node("gpu99"), ..spec };
    let error = client.act(&Action::Reserve(nowhere)).await.unwrap_err();
    assert!(error.to_string().contains("Invalid node name"), "{error}");
    Ok(())
}

#[tokio::test]
async fn jobs_are_seen_in_every_state() -> Result<()> {
    let Some(lab) = lab().await? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let client = client(&lab, folder.path()).await?;
    // The job ignores SIGTERM, so that it is completing for KillWait (3 s).
    let script = "trap '' TERM; while :; do sleep 1; done";
    let first = JobId(lab.submit("alice", &["-w", "gpu1", "--gres=gpu:4", "-t", "10"], script).await?);
    let second = JobId(lab.submit("bob", &["-w", "gpu1", "--gres=gpu:4", "-t", "5"], "sleep 1").await?);
    let array = JobId(lab.submit("bob", &["-H", "-a", "0-9"], "sleep 1").await?);

    let running = job_is(&client, first, JobState::Running).await?;
    assert_eq!(running.nodes, NodeSet::from([node("gpu1")]));
    assert_eq!((running.user.as_str(), running.partition.as_str()), ("alice", "main"));
    assert_eq!((running.gpus_per_node, running.node_count), (4, 1));
    assert_eq!(running.time_limit, Some(SignedDuration::from_mins(10)));
    let start = running.start.context("it runs")?;
    assert_eq!(running.end_by, Some(start + SignedDuration::from_mins(10)));

    let look = client.look(&[]).await?;
    let waits = &look.jobs[&second];
    assert_eq!((&waits.state, waits.nodes.len(), waits.start), (&JobState::Pending, 0, None));
    assert_eq!((waits.gpus_per_node, &waits.required_nodes), (4, &NodeSet::from([node("gpu1")])));
    assert!(waits.pending_reason.is_some());
    assert_eq!(look.jobs[&array].pending_reason.as_deref(), Some("JobHeldUser"));
    assert_eq!((look.jobs.len(), look.pending_unread), (3, 0), "{:?}", look.jobs.keys());
    assert_eq!(look.next_job_id, Some(JobId(array.0 + 1)));
    assert_eq!(look.nodes[&node("gpu1")].gpus_used, Some(4));

    lab.run(&["scontrol", "suspend", &first.to_string()]).await?;
    let suspended = job_is(&client, first, JobState::Suspended).await?;
    assert_eq!((suspended.nodes.len(), suspended.end_by), (1, None));
    lab.run(&["scontrol", "resume", &first.to_string()]).await?;
    job_is(&client, first, JobState::Running).await?;

    // A longer limit is seen without a change of state.
    lab.run(&["scontrol", "update", &format!("JobId={first}"), "TimeLimit=20"]).await?;
    let end = start + SignedDuration::from_mins(20);
    until(&client, &[], |look| look.jobs.get(&first).is_some_and(|job| job.end_by >= Some(end))).await?;

    lab.run(&["scancel", &second.to_string(), &array.to_string()]).await?;
    lab.run(&["scancel", &first.to_string()]).await?;
    let completing = job_is(&client, first, JobState::Completing).await?;
    assert_eq!(completing.nodes, NodeSet::from([node("gpu1")]));
    job_is(&client, first, JobState::Finished).await?;
    let look = client.look(&[JobId(9_999)]).await?;
    assert!(look.jobs.is_empty(), "finished and unwatched jobs, or ones that never were: {:?}", look.jobs);
    Ok(())
}

#[tokio::test]
async fn what_is_away_or_expired_is_said_so() -> Result<()> {
    let Some(lab) = lab().await? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let token_file = folder.path().join("token");
    let client = client(&lab, folder.path()).await?;
    client.look(&[]).await?;

    // Over the socket the same is read; v0.0.41 reads the same as v0.0.42.
    let local = Options {
        url: format!("unix://{}", lab.rest_socket().display()),
        token: None,
        ..options(&lab, &token_file)
    };
    let older = Options { api_version: Some("v0.0.41".into()), ..options(&lab, &token_file) };
    for options in [local, older] {
        assert_eq!(connect(options)?.look(&[]).await?.partitions, client.look(&[]).await?.partitions);
    }

    // An answer over the limit stops there, and the client works on.
    let small = connect(Options { max_response_bytes: 2_000, ..options(&lab, &token_file) })?;
    assert!(matches!(small.look(&[]).await, Err(Error::TooLarge { .. })));
    assert!(matches!(small.look(&[]).await, Err(Error::TooLarge { .. })));

    // Expired, renewed; unreadable; not allowed.
    std::fs::write(&token_file, lab.token("slurm", Duration::from_secs(1)).await?)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let expired = client.look(&[]).await.unwrap_err();
    assert!(matches!(expired, Error::Credentials { .. }), "{expired}");
    let refused = client.act(&drain("gpu1", OURS, None)).await.unwrap_err();
    assert_eq!(refused.certainty(), Certainty::NotDone, "{refused}");
    std::fs::write(&token_file, lab.token("slurm", Duration::from_hours(1)).await?)?;
    client.look(&[]).await?;
    std::fs::rename(&token_file, folder.path().join("away"))?;
    assert!(matches!(client.look(&[]).await, Err(Error::Token { .. })));
    std::fs::write(&token_file, lab.token("alice", Duration::from_hours(1)).await?)?;
    let alice = connect(Options { user: "alice".into(), ..options(&lab, &token_file) })?;
    let forbidden = alice.act(&drain("gpu1", OURS, None)).await.unwrap_err();
    assert!(matches!(forbidden, Error::Forbidden { .. }), "{forbidden}");
    std::fs::rename(folder.path().join("away"), &token_file)?;

    lab.stop(&Daemon::Slurmrestd).await?;
    let away = client.look(&[]).await.unwrap_err();
    assert!(matches!(away, Error::Unreachable { .. }), "{away}");
    let refused = client.act(&drain("gpu1", OURS, None)).await.unwrap_err();
    assert_eq!(refused.certainty(), Certainty::NotDone, "{refused}");
    lab.start(&Daemon::Slurmrestd).await?;
    client.look(&[]).await?;

    lab.stop(&Daemon::Slurmctld).await?;
    let away = client.look(&[]).await.unwrap_err();
    assert!(matches!(away, Error::ControllerAway { .. }), "{away}");
    let hasty = connect(Options { timeout: Duration::from_millis(500), ..options(&lab, &token_file) })?;
    let unanswered = hasty.look(&[]).await.unwrap_err();
    assert!(matches!(unanswered, Error::Unanswered { .. } | Error::ControllerAway { .. }), "{unanswered}");
    lab.start(&Daemon::Slurmctld).await?;
    until(&client, &[], |look| look.nodes.values().all(|node| node.state == BaseState::Idle)).await?;
    Ok(())
}
