//! Jobs, in every state.

use anyhow::{Context, Result};
use gpu_bridge::slurm::Slurm as _;
use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::facts::slurm::{Job, JobState};
use gpu_bridge_core::ids::JobId;
use jiff::SignedDuration;

use super::{ENDLESS, NODES, Site};

pub(super) async fn are_seen_in_every_state(site: &Site) -> Result<()> {
    let Site { client, lab, nodes, .. } = site;
    let [.., node] = nodes.as_slice() else { anyhow::bail!("{NODES} nodes") };
    let on = ["-w", node.as_str(), "--gres=gpu:4", "-t"];
    let submit = async |user, args: &[&str], script| lab.submit(user, args, script).await.map(JobId);
    let first = stubborn_job(site).await?;
    let running = site.job_is(first, JobState::Running).await?;
    let second = submit("bob", &[&on[..], &["5"]].concat(), "sleep 1").await?;
    let array = submit("bob", &["-H", "-a", "0-9"], "sleep 1").await?;

    assert_eq!(running.nodes, NodeSet::from([node.clone()]));
    assert_eq!((running.user.as_str(), running.partition.as_str()), ("alice", "main"));
    assert_eq!((running.gpus_per_node, running.node_count), (4, 1));
    assert_eq!(running.time_limit, Some(SignedDuration::from_mins(10)));
    let start = running.start.context("it runs")?;
    assert_eq!(running.end_by, Some(start + SignedDuration::from_mins(10)));

    // Up to 22.05 a job has no reason before the scheduler looked at it.
    let look = site
        .until(&[], |look| {
            let says = |id| look.jobs.get(&id).and_then(|job| job.pending_reason.as_deref());
            says(second).is_some() && says(array) == Some("JobHeldUser")
        })
        .await?;
    let waits = &look.jobs[&second];
    assert_eq!((&waits.state, waits.nodes.len(), waits.start), (&JobState::Pending, 0, None));
    assert_eq!((waits.gpus_per_node, &waits.required_nodes), (4, &NodeSet::from([node.clone()])));
    assert_eq!(look.pending_unread, 0);
    assert!(look.next_job_id > Some(array), "{:?}", look.next_job_id);
    assert_eq!(look.nodes[node].gpus_used, Some(4));

    lab.run(&["scontrol", "suspend", &first.to_string()]).await?;
    let suspended = site.job_is(first, JobState::Suspended).await?;
    assert_eq!((suspended.nodes.len(), suspended.end_by), (1, None));
    lab.run(&["scontrol", "resume", &first.to_string()]).await?;
    site.job_is(first, JobState::Running).await?;

    // A longer limit is seen without a change of state.
    lab.run(&["scontrol", "update", &format!("JobId={first}"), "TimeLimit=20"]).await?;
    let end = start + SignedDuration::from_mins(20);
    site.until(&[], |look| look.jobs.get(&first).is_some_and(|job| job.end_by >= Some(end))).await?;

    lab.run(&["scancel", &second.to_string(), &array.to_string()]).await?;
    let (last, completing) = is_seen_completing(site, first).await?;
    assert_eq!(completing.nodes, NodeSet::from([node.clone()]));
    site.job_is(last, JobState::Finished).await?;
    let look = client.look(&[JobId(99_999)]).await?;
    let gone = [first, last, second, array, JobId(99_999)];
    assert!(
        gone.iter().all(|id| !look.jobs.contains_key(id)),
        "finished and unwatched jobs, or ones that never were: {:?}",
        look.jobs
    );
    Ok(())
}

/// A job may be allowed to run for ever: where it is, and that it waits, is seen as ever.
pub(super) async fn without_a_limit_have_no_end(site: &Site) -> Result<()> {
    let node = site.nodes.last().context("no node")?;
    let args = ["-p", ENDLESS, "-w", node.as_str(), "--gres=gpu:4", "-t", "UNLIMITED"];
    let submit = || async { site.lab.submit("alice", &args, "sleep 1000").await.map(JobId) };
    let first = submit().await?;
    let running = site.job_is(first, JobState::Running).await?;
    let second = submit().await?;
    let waiting = site.job_is(second, JobState::Pending).await?;

    assert_eq!((running.partition.as_str(), running.user.as_str()), (ENDLESS, "alice"));
    assert_eq!((running.nodes.len(), running.gpus_per_node), (1, 4));
    assert!(running.start.is_some());
    assert_eq!((running.time_limit, running.end_by), (None, None));
    assert_eq!((waiting.nodes.len(), waiting.gpus_per_node, waiting.start), (0, 4, None));
    assert_eq!((waiting.time_limit, waiting.end_by), (None, None));
    let look = site.client.look(&[]).await?;
    assert_eq!(look.partitions[ENDLESS].max_time, None);
    assert!(look.partitions[ENDLESS].up);

    site.lab.run(&["scancel", &second.to_string(), &first.to_string()]).await?;
    site.job_is(first, JobState::Finished).await?;
    Ok(())
}

/// A job that runs on the site's last node with all of its GPUs. It ignores SIGTERM, so that it is completing for KillWait.
async fn stubborn_job(site: &Site) -> Result<JobId> {
    let script = "trap '' TERM; : >/tmp/trapped-$SLURM_JOB_ID; while :; do sleep 1; done";
    let node = site.nodes.last().context("no node")?;
    let args = ["-w", node.as_str(), "--gres=gpu:4", "-t", "10"];
    let job = JobId(site.lab.submit("alice", &args, script).await?);
    site.job_is(job, JobState::Running).await?;
    // slurmctld says so before the script has begun.
    site.file_is_there(&format!("/tmp/trapped-{job}")).await?;
    Ok(job)
}

/// Cancels the job and sees it completing; with the id. Now and then Slurm ends one at once, without waiting for what ignores
/// SIGTERM: then another one is tried, three in all.
async fn is_seen_completing(site: &Site, first: JobId) -> Result<(JobId, Job)> {
    let mut id = first;
    for _ in 0..3 {
        site.lab.run(&["scancel", &id.to_string()]).await?;
        let ends = |job: &Job| matches!(job.state, JobState::Completing | JobState::Finished);
        let look = site.until(&[id], |look| look.jobs.get(&id).is_some_and(ends)).await?;
        let job = look.jobs.get(&id).cloned().context("the job was just there")?;
        if job.state == JobState::Completing {
            return Ok((id, job));
        }
        id = stubborn_job(site).await?;
    }
    anyhow::bail!("none of three cancelled jobs was seen completing")
}
