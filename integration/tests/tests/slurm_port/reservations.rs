//! Reservations: made, changed, mended and deleted; others' are left alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gpu_bridge::certainty::Certainty;
use gpu_bridge::daemon::clock::Clock;
use gpu_bridge::slurm::{Error, Options, Slurm as _, connect};
use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::facts::slurm::{Action, JobState, ReservationSpec, RunningJobs, Slurm};
use gpu_bridge_core::gate::slurm::shape_flaw;
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::{SignedDuration, Timestamp};

use super::{NODES, Site};

/// Slurm knows the reservation of this name as `spec` says.
async fn stands(site: &Site, spec: &ReservationSpec, started: bool) -> Result<()> {
    let look = site.client.look(&[]).await?;
    let stands = look.reservations.get(&spec.name).context("it was just made")?;
    assert_eq!(stands.nodes, NodeSet::from([spec.node.clone()]));
    assert_eq!(stands.users, BTreeSet::from(["root".to_owned()]));
    assert_eq!(stands.flags.contains("IGNORE_JOBS"), spec.jobs == RunningJobs::Ignore, "{stands:?}");
    assert!(stands.flags.contains("MAINT") && !stands.flags.contains("FLEX"), "{stands:?}");
    assert_eq!((&stands.accounts, shape_flaw(stands, &spec.node)), (&BTreeSet::new(), None), "{stands:?}");
    assert_eq!(stands.end.as_second(), spec.end.as_second());
    assert_eq!(stands.is_active(Timestamp::now()), started, "{stands:?}");
    Ok(())
}

pub(super) async fn take_the_shape_that_is_asked_for(site: &Site) -> Result<()> {
    let Site { client, lab, nodes, .. } = site;
    let [_, _, _, node, other, _] = nodes.as_slice() else { anyhow::bail!("{NODES} nodes") };
    let job = ["-w", node.as_str(), "--gres=gpu:2", "-t", "10"];
    let job = JobId(lab.submit("alice", &job, "sleep 600").await?);
    site.job_is(job, JobState::Running).await?;

    let in_minutes = |minutes| Timestamp::now() + SignedDuration::from_mins(minutes);
    let mut spec = ReservationSpec {
        name: format!("gpu-bridge_h{:04}", 42 + site.number),
        node: node.clone(),
        start: in_minutes(60),
        end: in_minutes(120),
        jobs: RunningJobs::Ignore,
    };
    let check = async |spec: &ReservationSpec, started: bool| -> Result<()> {
        for _ in 0..2 {
            client.act(&Action::Reserve(spec.clone())).await?;
        }
        stands(site, spec, started).await
    };
    // In the future, over a running job; later; changed by someone else; now.
    check(&spec, false).await?;
    spec.start = in_minutes(70);
    spec.end = in_minutes(150);
    check(&spec, false).await?;
    let name = format!("ReservationName={}", spec.name);
    lab.run(&["scontrol", "update", &name, "Users+=alice", &format!("Nodes={node},{other}")]).await?;
    lab.run(&["scontrol", "update", &name, "Accounts+=ml"]).await?;
    // The second flag can't be taken away by anybody, and keeps nothing else from being put right.
    for flag in ["Flags+=FLEX", "Flags+=OVERLAP"] {
        lab.run(&["scontrol", "update", &name, flag]).await?;
    }
    check(&spec, false).await?;
    spec.start = in_minutes(-5);
    check(&spec, true).await?;
    // Active: the end can change in both directions, and IGNORE_JOBS only go once the job has ended.
    for end in [300, 200] {
        spec.end = in_minutes(end);
        check(&spec, true).await?;
    }
    spec.jobs = RunningJobs::None;
    let busy = client.act(&Action::Reserve(spec.clone())).await.unwrap_err();
    assert!(busy.to_string().contains("busy"), "{busy}");
    lab.run(&["scancel", &job.to_string()]).await?;
    site.until(&[job], |look| look.jobs.get(&job).is_none_or(|job| job.state == JobState::Finished)).await?;
    check(&spec, true).await?;

    // One that has ended is brought back, or made anew.
    spec.jobs = RunningJobs::Ignore;
    check(&spec, true).await?;
    let soon = format!("EndTime=uts{}", (Timestamp::now() + SignedDuration::from_secs(2)).as_second());
    lab.run(&["scontrol", "update", &name, &soon]).await?;
    let ended =
        |look: &Slurm| look.reservations.get(&spec.name).is_none_or(|one| one.end <= Timestamp::now());
    site.until(&[], ended).await?;
    spec.end = in_minutes(100);
    check(&spec, true).await?;

    for _ in 0..2 {
        client.act(&Action::Unreserve { name: spec.name.clone() }).await?;
        assert!(!client.look(&[]).await?.reservations.contains_key(&spec.name));
    }
    // Only ours.
    let theirs = format!("maint-{}", site.number);
    let maint =
        ["scontrol", "create", "reservation", "StartTime=now", "Duration=60", "Users=root", "Flags=MAINT"];
    let of = [format!("ReservationName={theirs}"), format!("Nodes={other}")];
    lab.run(&maint.into_iter().map(str::to_owned).chain(of).collect::<Vec<_>>()).await?;
    let refused = client.act(&Action::Unreserve { name: theirs.clone() }).await.unwrap_err();
    assert_eq!(refused.certainty(), Certainty::NotDone);
    assert!(client.look(&[]).await?.reservations.contains_key(&theirs));
    let nowhere = ReservationSpec { node: SlurmNodeName::from("gpu99"), ..spec };
    let error = client.act(&Action::Reserve(nowhere)).await.unwrap_err();
    assert!(error.to_string().contains("Invalid node name"), "{error}");
    Ok(())
}

/// Ours is ahead of slurmctld's, or behind.
struct Wrong(SignedDuration);

impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        Timestamp::now().saturating_add(self.0).unwrap_or(Timestamp::MAX)
    }
}

/// On a head node whose clock is wrong: the look tells, and a reservation that is to begin now begins.
pub(super) async fn begin_by_slurmctlds_clock(site: &Site) -> Result<()> {
    let [.., other, _] = site.nodes.as_slice() else { anyhow::bail!("{NODES} nodes") };
    for wrong in [600, -600].map(SignedDuration::from_secs) {
        let client = connect(site.options())?.on_clock(Arc::new(Wrong(wrong)));
        let ahead = client.look(&[]).await?.clock_ahead;
        ensure!(
            ahead.checked_add(wrong).is_some_and(|off| off.abs() < SignedDuration::from_secs(60)),
            "{ahead}"
        );
        let its_now = Wrong(wrong).now().checked_add(ahead)?;
        let spec = ReservationSpec {
            name: format!("gpu-bridge_h{:04}", 242 + site.number),
            node: other.clone(),
            start: its_now,
            end: its_now.checked_add(SignedDuration::from_hours(1))?,
            jobs: RunningJobs::Ignore,
        };
        client.act(&Action::Reserve(spec.clone())).await?;
        let look = client.look(&[]).await?;
        let stands = look.reservations.get(&spec.name).context("it stands")?;
        ensure!(stands.is_active(look.on_its_clock(Wrong(wrong).now())), "{wrong}: {stands:?}");
        client.act(&Action::Unreserve { name: spec.name }).await?;
    }
    Ok(())
}

/// Through the mouth of the version's capability table and no other: scontrol is broken where REST writes reservations, and
/// needed where it does not. A client that starts anew finds what stands and goes on with it.
pub(super) async fn go_through_the_mouth_that_can(site: &Site) -> Result<()> {
    let [.., other, _] = site.nodes.as_slice() else { anyhow::bail!("{NODES} nodes") };
    let by_rest = !site.by_commands() && site.api >= "v0.0.43";
    let fresh = || connect(Options { scontrol: vec!["false".into()], ..site.options() });
    let in_minutes = |minutes| Timestamp::now() + SignedDuration::from_mins(minutes);
    let mut spec = ReservationSpec {
        name: format!("gpu-bridge_h{:04}", 142 + site.number),
        node: other.clone(),
        start: in_minutes(-1),
        end: in_minutes(60),
        jobs: RunningJobs::Ignore,
    };
    if by_rest {
        // Made, extended, shrunk, made strict, each time by a client that knows of nothing.
        for (end, jobs) in [
            (60, RunningJobs::Ignore),
            (60, RunningJobs::Ignore),
            (200, RunningJobs::Ignore),
            (90, RunningJobs::Ignore),
            (90, RunningJobs::None),
        ] {
            (spec.end, spec.jobs) = (in_minutes(end), jobs);
            fresh()?.act(&Action::Reserve(spec.clone())).await?;
            stands(site, &spec, true).await?;
        }
        fresh()?.act(&Action::Unreserve { name: spec.name.clone() }).await?;
    } else {
        let refused = fresh()?.act(&Action::Reserve(spec.clone())).await.unwrap_err();
        // Alone, scontrol could not even look.
        let known = match &refused {
            Error::NothingWritten(why) => site.by_commands() && matches!(**why, Error::Scontrol(_)),
            refused => !site.by_commands() && matches!(refused, Error::Scontrol(_)),
        };
        assert!(known, "{refused}");
    }
    assert!(!site.client.look(&[]).await?.reservations.contains_key(&spec.name));
    Ok(())
}
