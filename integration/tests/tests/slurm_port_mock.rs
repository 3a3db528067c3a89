//! The Slurm port against the simulated Slurm: the same facts as from a real one, and every way in which slurmrestd errs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_bridge::certainty::Certainty;
use gpu_bridge::slurm::{Client, Error, Options, Slurm as _, TokenSource, connect};
use gpu_bridge_core::facts::slurm::{Action, BaseState, JobState, NodeFlag, ReservationSpec, RunningJobs};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::{SignedDuration, Timestamp};
use slurm_mock::Cluster;
use slurm_mock::model::JobSpec;
use slurm_mock::rest::faults::{Action as Wrong, Fault};
use slurm_mock::server::{self, Handle};

const OURS: &str = "gpu-bridge:h0042 e7 window";

struct World {
    mock: Handle,
    client: Client,
    _folder: tempfile::TempDir,
}

/// The command that plays scontrol, built where it is not there yet.
fn mock_scontrol() -> Result<PathBuf> {
    let build = ["build", "--quiet", "--package", "slurm-mock", "--bin", "mock-scontrol"];
    let status = std::process::Command::new(env!("CARGO")).args(build).status()?;
    ensure!(status.success(), "cannot build mock-scontrol");
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(std::path::Path::parent).context("a test lies in deps")?;
    Ok(folder.join("mock-scontrol"))
}

async fn world() -> Result<World> {
    let mut cluster = Cluster::uniform(4, 4, Timestamp::now());
    let minutes = SignedDuration::from_mins(30);
    for gpus in [4, 2, 4] {
        cluster.submit(JobSpec::new("alice", 1, gpus, minutes).limit(minutes * 2))?;
    }
    let mock = server::serve(server::Options::new(cluster, Arc::new(Timestamp::now))).await?;
    let folder = tempfile::tempdir()?;
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "mock-token")?;
    let url = format!("SLURM_MOCK_URL={}", mock.url());
    let client = connect(Options {
        url: mock.url(),
        token: Some(TokenSource::File(token_file)),
        scontrol: vec!["env".into(), url, mock_scontrol()?.display().to_string()],
        timeout: Duration::from_secs(3),
        max_response_bytes: 1_000_000,
        ..Options::default()
    })?;
    Ok(World { mock, client, _folder: folder })
}

fn drain(reason: &str) -> Action {
    Action::Drain { node: SlurmNodeName::from("gpu4"), reason: reason.into(), over: None }
}

#[tokio::test]
async fn the_same_facts_as_from_a_real_one() -> Result<()> {
    let World { client, .. } = &world().await?;
    let look = client.look(&[]).await?;
    assert_eq!(look.nodes.len(), 4);
    let job = look.jobs.values().next().context("three jobs were submitted")?;
    assert_eq!((look.jobs.len(), &job.state, job.gpus_per_node), (3, &JobState::Running, 4));
    assert_eq!(job.end_by, job.start.map(|start| start + SignedDuration::from_mins(60)));
    let node = look.nodes.get(job.nodes.first().context("it runs")?).context("its node is listed")?;
    assert_eq!(node.gpus_used, Some(4));
    assert!(look.partitions.values().any(|partition| partition.nodes.len() == 4));
    assert_eq!(look.next_job_id, look.jobs.keys().next_back().map(|last| JobId(last.0 + 1)));

    client.act(&drain(OURS)).await?;
    let look = client.look(&[JobId(9_999)]).await?;
    let gpu4 = &look.nodes[&SlurmNodeName::from("gpu4")];
    assert_eq!((&gpu4.state, gpu4.gpus_used), (&BaseState::Idle, Some(0)));
    assert_eq!(gpu4.flags, BTreeSet::from([NodeFlag::Drain]));

    let now = Timestamp::now();
    let mut spec = ReservationSpec {
        name: "gpu-bridge_h0042".into(),
        node: SlurmNodeName::from("gpu4"),
        start: now,
        end: now + SignedDuration::from_hours(2),
        jobs: RunningJobs::Ignore,
    };
    for jobs in [RunningJobs::Ignore, RunningJobs::None] {
        spec.jobs = jobs;
        client.act(&Action::Reserve(spec.clone())).await?;
        let look = client.look(&[]).await?;
        let stands = look.reservations.get(&spec.name).context("it was just made")?;
        assert_eq!(stands.flags.contains("IGNORE_JOBS"), jobs == RunningJobs::Ignore);
        assert_eq!(stands.end.as_second(), spec.end.as_second());
    }
    for _ in 0..2 {
        client.act(&Action::Unreserve { name: spec.name.clone() }).await?;
    }
    client.act(&Action::Undrain { node: SlurmNodeName::from("gpu4"), reason: OURS.into() }).await?;
    // MAINTENANCE may still stand there: it follows its reservation some seconds late.
    let gpu4 = &client.look(&[]).await?.nodes[&SlurmNodeName::from("gpu4")];
    assert!(!gpu4.flags.contains(&NodeFlag::Drain), "{gpu4:?}");
    Ok(())
}

#[tokio::test]
async fn a_look_is_whole_or_an_error() -> Result<()> {
    let World { mock, client, .. } = &world().await?;
    let good = client.look(&[]).await?;
    for (wrong, seen) in [
        (Wrong::CutBody(200), "broke"),
        (Wrong::Html, "expected JSON"),
        (Wrong::HugeBody(2_000_000), "larger than 1000000 bytes"),
        (Wrong::Status(401), "does not accept the token"),
        (Wrong::Status(500), "HTTP 500"),
        (Wrong::Status(502), "cannot reach slurmctld"),
        (Wrong::NotModified, "304"),
        (Wrong::LateAnswer(Duration::from_secs(10)), "no answer within 3 s"),
    ] {
        for path in ["/nodes", "/jobs/state", "/job/", "/reservations", "/partitions"] {
            mock.inject(Fault::once(path, wrong.clone()).times(2));
            let Err(error) = client.look(&[]).await else {
                anyhow::bail!("{wrong:?} on {path} was taken for an answer");
            };
            assert!(error.to_string().contains(seen), "{wrong:?} on {path}: {error}");
            mock.clear_faults();
            if matches!(wrong, Wrong::LateAnswer(_)) {
                break;
            }
        }
        assert_eq!(client.look(&[]).await?.jobs, good.jobs, "after {wrong:?}");
    }
    // A fresh connection may be reset once; a second answer belongs to nobody.
    mock.inject(Fault::once("/nodes", Wrong::Reset));
    client.look(&[]).await?;
    for path in ["/nodes", "/jobs/state", "/reservations"] {
        mock.inject(Fault::once(path, Wrong::SecondResponse));
        assert_eq!(client.look(&[]).await?.jobs, good.jobs);
    }
    Ok(())
}

#[tokio::test]
async fn a_write_is_believed_when_it_is_seen() -> Result<()> {
    let World { mock, client, .. } = &world().await?;
    client.look(&[]).await?;
    // Done, whatever the answer was.
    for (number, wrong) in
        [Wrong::ApplyButFail, Wrong::LoseAnswer, Wrong::Html, Wrong::SecondResponse].into_iter().enumerate()
    {
        let applied = !matches!(wrong, Wrong::Html);
        mock.inject(Fault::once("/node/gpu4", wrong.clone()));
        let reason = format!("gpu-bridge:h0042 e{number} window");
        let result = client.act(&drain(&reason)).await;
        assert_eq!(result.is_ok(), applied, "{wrong:?}: {result:?}");
    }
    // Not sent again when its answer is lost, and not known where it cannot be read back.
    mock.inject(Fault::once("/node/gpu4", Wrong::Reset).times(1));
    let lost = client.act(&drain(OURS)).await.unwrap_err();
    assert_eq!(lost.certainty(), Certainty::MayBeDone, "{lost}");
    mock.inject(Fault::once("/nodes", Wrong::Html).after(1));
    let unread = client.act(&drain(OURS)).await.unwrap_err();
    assert!(matches!(unread, Error::NotReadBack(_)), "{unread}");
    mock.inject(Fault::once("/nodes", Wrong::Html));
    let unbegun = client.act(&drain("gpu-bridge:h0043 e8 x")).await.unwrap_err();
    assert_eq!(unbegun.certainty(), Certainty::NotDone, "{unbegun}");
    client.act(&drain(OURS)).await?;
    Ok(())
}
