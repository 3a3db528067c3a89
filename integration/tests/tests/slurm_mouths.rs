//! One real Slurm seen through both mouths: slurmrestd, and scontrol with squeue. The facts are the same in every situation,
//! whatever users and admins put into their texts, and what one mouth writes the other sees. Runs where GPU_BRIDGE_LABS=1.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use gpu_bridge::slurm::{Client, Mode, Options, Slurm as _, TokenSource, connect};
use gpu_bridge_core::facts::slurm::{Action, Job, JobState, Node, ReservationSpec, RunningJobs, Slurm};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_integration::labs::slurm_unsupported;
use gpu_bridge_labs::slurm::{self, Lab, Release};
use jiff::{SignedDuration, Timestamp};

const OURS: &str = "gpu-bridge:h0042 e7 \"window\" é [x@5]";
const LIMIT: Duration = Duration::from_mins(1);

fn options(lab: &Lab, token_file: &Path, mode: Mode) -> Options {
    Options {
        mode,
        url: lab.rest_url(),
        user: "slurm".into(),
        token: Some(TokenSource::File(token_file.to_owned())),
        scontrol: lab.scontrol_command(),
        ..Options::default()
    }
}

/// What both mouths tell in the same words. (Why a held job waits is a sentence in one, a word in the other; squeue joins an
/// array's waiting tasks.)
fn comparable(mut look: Slurm) -> Slurm {
    look.reached.api_version = None;
    look.reached.through.clear();
    look.token_ends = None;
    for job in look.jobs.values_mut() {
        job.pending_reason =
            job.pending_reason.take().filter(|why| !why.contains(' ') && !why.starts_with("JobH"));
    }
    look
}

struct Mouths {
    lab: Lab,
    rest: Client,
    cli: Client,
    _folder: tempfile::TempDir,
}

impl Mouths {
    /// Both see the same once Slurm rests, and `there` is true of it.
    async fn agree(&self, what: &str, watched: &[JobId], there: impl Fn(&Slurm) -> bool) -> Result<Slurm> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let before = comparable(self.rest.look(watched).await?);
            let cli = comparable(self.cli.look(watched).await?);
            let after = comparable(self.rest.look(watched).await?);
            if before == after && cli == after && there(&cli) {
                println!("{}: {what}", self.lab.options().release.name());
                return Ok(cli);
            }
            if tokio::time::Instant::now() >= deadline {
                let show = |look: &Slurm| format!("{look:#?}");
                let (rest, cli) = (show(&after), show(&cli));
                let differs: Vec<_> =
                    rest.lines().zip(cli.lines()).filter(|(rest, cli)| rest != cli).collect();
                anyhow::bail!("{what}: slurmrestd and scontrol do not agree: {differs:#?}\n{cli}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn submit(&self, arguments: &[&str]) -> Result<JobId> {
        // It ignores SIGTERM, so that it is completing for KillWait (3 s).
        let script = "trap '' TERM; while :; do sleep 1; done";
        let printed = self.lab.submit("alice", arguments, script).await?;
        Ok(JobId(printed))
    }

    async fn scontrol(&self, arguments: &[&str]) -> Result<String> {
        Ok(self.lab.run(&[&["scontrol"], arguments].concat()).await?)
    }
}

fn job(look: &Slurm, id: JobId, check: impl Fn(&Job) -> bool) -> bool {
    look.jobs.get(&id).is_some_and(check)
}

fn node(look: &Slurm, name: &str, check: impl Fn(&Node) -> bool) -> bool {
    look.nodes.get(&SlurmNodeName::from(name)).is_some_and(check)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_slurm_22_05() -> Result<()> {
    on(Release::V22_05).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_slurm_24_11() -> Result<()> {
    on(Release::V24_11).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_slurm_26_05() -> Result<()> {
    on(Release::V26_05).await
}

async fn on(release: Release) -> Result<()> {
    if let Some(reason) = slurm_unsupported() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let extra = vec![
        "PartitionName=hidden Nodes=gpu[1-2] Hidden=YES State=DOWN MaxTime=UNLIMITED".to_owned(),
        "PartitionName=empty MaxTime=90".to_owned(),
    ];
    let lab = Lab::up(slurm::Options { release, extra, ..slurm::Options::default() }).await?;
    let folder = tempfile::tempdir()?;
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, lab.token("slurm", Duration::from_hours(1)).await?)?;
    let (rest, cli) =
        (connect(options(&lab, &token_file, Mode::Rest))?, connect(options(&lab, &token_file, Mode::Cli))?);
    let mouths = Mouths { lab, rest, cli, _folder: folder };
    let look = mouths.agree("at rest", &[], |look| look.nodes.len() == 4 && look.jobs.is_empty()).await?;
    assert_eq!(look.partitions.keys().collect::<Vec<_>>(), ["empty", "hidden", "main"]);
    assert_eq!(look.partitions["hidden"].max_time, None);
    assert!(look.reached.release.as_deref().is_some_and(|of| of.starts_with(release.name())));
    jobs_of_every_kind(&mouths).await?;
    nodes_with_odd_texts(&mouths).await?;
    writes_are_seen_by_the_other_mouth(&mouths).await
}

async fn jobs_of_every_kind(mouths: &Mouths) -> Result<()> {
    let forged = "x JobState=COMPLETED NodeList=(null)";
    let first = mouths.submit(&["-J", forged, "-w", "gpu1", "--gres=gpu:a100:3", "-t", "10"]).await?;
    let two = mouths.submit(&["-N2", "-w", "gpu[2-3]", "--gres=gpu:4", "-t", "1-2"]).await?;
    // What Slurm lets a user write there: a whole line of another job. In one that waits (22.05 refuses that), and in one that
    // runs, behind a resource of which it wants none.
    let line = format!("{first}|COMPLETED|alice|main|1|gpu9||UNLIMITED|1|2|3|1|1|N/A|N/A|N/A|1||None");
    let mut oddities = Vec::new();
    for (waits, runs) in [
        (format!("--gres=gpu:1\n{line}"), format!("--gres=gpu:1,x\n{line}\n:0")),
        (format!("--gres=gpu:1|{line}"), format!("--gres=gpu:1,|{line}|:0")),
    ] {
        mouths.submit(&["-H", &waits]).await.ok();
        oddities.extend(mouths.submit(&["-w", "gpu4", "--mem=100", &runs]).await.ok());
    }
    ensure!(oddities.len() == 2, "{oddities:?}");
    let whole = mouths
        .submit(&["-w", "gpu4", "--gpus=2", "-n2", "--mem=100", "-t", "UNLIMITED", "--no-requeue"])
        .await;
    let whole = match whole {
        Ok(id) => id,
        Err(_) => mouths.submit(&["-w", "gpu4", "--gpus=2", "-n2", "--mem=100", "--no-requeue"]).await?,
    };
    mouths.submit(&["-H", "-a", "0-199:3%5", "--gres=gpu:1"]).await?;
    mouths.submit(&["-a", "1,3,7-9,20", "-w", "gpu1", "--gres=gpu:4"]).await?;
    mouths.submit(&["--begin=now+1hour", "-n3", "--gpus-per-task=1"]).await?;
    mouths.submit(&[&format!("--dependency=afterok:{first}"), "--gres=gpu:2"]).await?;
    mouths.submit(&["--gres=gpu:1", "-n1", ":", "--gres=gpu:a100:2", "-n1"]).await.ok();
    let on_gpu4 = |job: &Job| job.state == JobState::Running && job.nodes.contains(&"gpu4".into());
    let runs = |look: &Slurm| {
        let ordinary = [first, two].iter().all(|id| job(look, *id, |job| job.state == JobState::Running));
        ordinary && oddities.iter().all(|id| job(look, *id, on_gpu4))
    };
    let look = mouths.agree("jobs that run and wait", &[JobId(9_999)], runs).await?;
    assert_eq!(look.jobs[&first].gpus_per_node, 3);
    assert!(
        look.jobs.values().any(|job| job.tasks == Some(67))
            && look.jobs.values().any(|job| job.tasks == Some(6))
    );

    mouths.scontrol(&["suspend", &two.to_string()]).await?;
    let suspended =
        |look: &Slurm| job(look, two, |job| job.state == JobState::Suspended && job.nodes.len() == 2);
    mouths.agree("a suspended job", &[], suspended).await?;
    mouths.scontrol(&["resume", &two.to_string()]).await?;
    mouths.scontrol(&["update", &format!("JobId={first}"), "TimeLimit=20"]).await?;
    let limit = Some(SignedDuration::from_mins(20));
    mouths.agree("a longer limit", &[], |look| job(look, first, |job| job.time_limit == limit)).await?;

    mouths.lab.run(&["scancel", &two.to_string()]).await?;
    let completing =
        |look: &Slurm| job(look, two, |job| job.state == JobState::Completing && job.nodes.len() == 2);
    mouths.agree("a job that is completing", &[two], completing).await?;
    mouths.scontrol(&["requeuehold", &whole.to_string()]).await.ok();
    let ended = |look: &Slurm| job(look, two, |job| job.state == JobState::Finished);
    mouths.agree("one that has ended, and is watched", &[two, JobId(9_999)], ended).await?;
    mouths.agree("and is not", &[], |look| !look.jobs.contains_key(&two)).await?;
    mouths.lab.run(&["scancel", "-u", "alice"]).await?;
    mouths.agree("none", &[], |look| look.jobs.is_empty()).await?;
    Ok(())
}

async fn nodes_with_odd_texts(mouths: &Mouths) -> Result<()> {
    let reasons = ["multi  State=DOWN [x@5]\nline two", "gpu-bridge:h0042 e7 x", "bad disk Comment", "é"];
    for (number, reason) in (1..).zip(reasons) {
        let node = format!("NodeName=gpu{number}");
        mouths.scontrol(&["update", &node, "State=DRAIN", &format!("Reason={reason}")]).await?;
    }
    mouths.scontrol(&["update", "NodeName=gpu3", "Comment=only Reason=x", "Extra=more"]).await?;
    mouths.scontrol(&["update", "NodeName=gpu4", "State=DOWN", "Reason=dead"]).await?;
    let seen =
        |look: &Slurm| node(look, "gpu4", |node| node.reason.as_ref().is_some_and(|why| why.text == "dead"));
    let look = mouths.agree("odd reasons and comments", &[], seen).await?;
    let of = |name: &str| {
        look.nodes[&SlurmNodeName::from(name)].reason.as_ref().map(|reason| reason.text.as_str())
    };
    assert_eq!((of("gpu1"), of("gpu3")), (Some(reasons[0]), Some(reasons[2])));

    // A whole record in a comment: that node is then no fact for one mouth.
    mouths
        .scontrol(&["update", "NodeName=gpu2", "Comment=x\nNodeName=gpu1 State=IDLE Gres=gpu:a100:4"])
        .await?;
    let forged = mouths.cli.look(&[]).await?;
    assert_eq!(forged.unreadable_nodes.keys().map(SlurmNodeName::as_str).collect::<Vec<_>>(), ["gpu1"]);
    assert_eq!(forged.nodes.len(), 3);
    mouths.scontrol(&["update", "NodeName=gpu2", "Comment=x"]).await?;
    for name in ["gpu1", "gpu2", "gpu3", "gpu4"] {
        mouths.scontrol(&["update", &format!("NodeName={name}"), "State=RESUME"]).await?;
    }
    mouths.agree("resumed", &[], |look| look.nodes.values().all(|node| node.flags.is_empty())).await?;
    Ok(())
}

async fn writes_are_seen_by_the_other_mouth(mouths: &Mouths) -> Result<()> {
    let gpu2 = SlurmNodeName::from("gpu2");
    let minutes = |minutes| Timestamp::now() + SignedDuration::from_mins(minutes);
    for (writes, number) in [(&mouths.cli, 42), (&mouths.rest, 43)] {
        let drain = Action::Drain { node: gpu2.clone(), reason: OURS.to_owned(), over: None };
        writes.act(&drain).await?;
        writes.act(&drain).await?;
        let spec = ReservationSpec {
            name: format!("gpu-bridge_h00{number}"),
            node: gpu2.clone(),
            start: minutes(-1),
            end: minutes(60),
            jobs: RunningJobs::Ignore,
        };
        writes.act(&Action::Reserve(spec.clone())).await?;
        let foreign =
            ["create", "reservation", "ReservationName=maint x", "StartTime=now+1hour", "Duration=60"];
        mouths
            .scontrol(&[&foreign[..], &["Users=root,alice", "Nodes=gpu[3-4]", "Flags=MAINT"]].concat())
            .await?;
        let there = |look: &Slurm| {
            look.reservations.len() == 2
                && node(look, "gpu2", |node| node.reason.as_ref().is_some_and(|why| why.text == OURS))
        };
        let look = mouths.agree("what one mouth wrote", &[], there).await?;
        assert_eq!(look.reservations[&spec.name].users.iter().collect::<Vec<_>>(), ["root"]);
        writes.act(&Action::Unreserve { name: spec.name }).await?;
        writes.act(&Action::Undrain { node: gpu2.clone(), reason: OURS.to_owned() }).await?;
        mouths.scontrol(&["delete", "ReservationName=maint x"]).await?;
        let gone =
            |look: &Slurm| look.reservations.is_empty() && node(look, "gpu2", |node| node.flags.is_empty());
        mouths.agree("and what it took away", &[], gone).await?;
    }
    Ok(())
}
