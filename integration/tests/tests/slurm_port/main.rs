//! The Slurm port against real Slurms: what it reads, what it writes, and what it says when parts are away. One lab per
//! release; in it every REST version that the release serves has nodes of its own, and so has `mode = "cli"`; all of them are
//! tried at the same time. Runs where GPU_BRIDGE_LABS=1.
#![allow(clippy::unwrap_used, reason = "this is a test, helpers included")]

mod away;
mod drains;
mod jobs;
mod reservations;
mod rights;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_bridge::slurm::{Client, Mode, Options, Slurm as _, TokenSource, connect};
use gpu_bridge_core::facts::slurm::{Action, Job, JobState, Slurm};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_integration::labs::slurm_unsupported;
use gpu_bridge_labs::slurm::{self, Lab, Node, Release};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_mins(1);
const OURS: &str = "gpu-bridge:h0042 e7 \"window\" é";
/// Nodes that one REST version has for itself.
const NODES: usize = 6;
/// A partition in which jobs may run for ever.
const ENDLESS: &str = "endless";
/// In the place of a REST version: `mode = "cli"`.
const CLI: &str = "cli";

/// One REST version of a release, or none, with nodes that no other one's tests touch.
struct Site {
    lab: Arc<Lab>,
    /// The REST version, or [`CLI`].
    api: &'static str,
    /// Names of its nodes.
    nodes: Vec<SlurmNodeName>,
    /// Told from the other versions' in names of reservations.
    number: usize,
    folder: tempfile::TempDir,
    /// Speaks this version and no other.
    client: Client,
}

impl Site {
    async fn new(lab: &Arc<Lab>, number: usize, api: &'static str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, lab.token("slurm", Duration::from_hours(1)).await?)?;
        let own = &lab.options().nodes[number * NODES..][..NODES];
        let nodes = own.iter().map(|node| SlurmNodeName::from(node.name.as_str())).collect();
        let client = connect(options(lab, &folder, api))?;
        Ok(Self { lab: Arc::clone(lab), api, nodes, number, folder, client })
    }

    fn options(&self) -> Options {
        options(&self.lab, &self.folder, self.api)
    }

    /// Whether scontrol and squeue do it all.
    fn by_commands(&self) -> bool {
        self.api == CLI
    }

    /// Whether nodes are written with scontrol here, and so by the user who runs it: root.
    fn writes_by_scontrol(&self) -> bool {
        self.by_commands() || self.api <= "v0.0.38"
    }

    /// Whether jobs are listed by squeue here.
    fn lists_by_squeue(&self) -> bool {
        self.by_commands() || self.api <= "v0.0.40"
    }

    /// Looks until `seen`, for at most [`LIMIT`]. (By hand: what a task runs can't go through the labs' `wait_until`.)
    async fn until(&self, watched: &[JobId], seen: impl Fn(&Slurm) -> bool) -> Result<Slurm> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let look = self.client.look(watched).await?;
            if seen(&look) {
                return Ok(look);
            }
            let late = tokio::time::Instant::now() >= deadline;
            let own: Vec<_> = look.nodes.iter().filter(|(name, _)| self.nodes.contains(name)).collect();
            ensure!(!late, "not seen in time: {:?} {own:?}", look.jobs);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until a job has made a file.
    async fn file_is_there(&self, path: &str) -> Result<()> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        while !self.lab.exec(&["test", "-e", path]).await?.status.success() {
            ensure!(tokio::time::Instant::now() < deadline, "no {path} in time");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    async fn job_is(&self, id: JobId, state: JobState) -> Result<Job> {
        let look = self.until(&[id], |look| look.jobs.get(&id).is_some_and(|job| job.state == state)).await?;
        look.jobs.get(&id).cloned().context("the job was just there")
    }
}

fn options(lab: &Lab, folder: &tempfile::TempDir, api: &str) -> Options {
    let scontrol = lab.scontrol_command();
    if api == CLI {
        return Options { mode: Mode::Cli, scontrol, ..Options::default() };
    }
    Options {
        url: lab.rest_url(),
        user: "slurm".into(),
        token: Some(TokenSource::File(folder.path().join("token"))),
        api_version: Some(api.to_owned()),
        scontrol,
        ..Options::default()
    }
}

fn drain(node: &SlurmNodeName, reason: &str, over: Option<&str>) -> Action {
    Action::Drain { node: node.clone(), reason: reason.into(), over: over.map(str::to_owned) }
}

fn undrain(node: &SlurmNodeName, reason: &str) -> Action {
    Action::Undrain { node: node.clone(), reason: reason.into() }
}

/// What is tried in every version, on nodes of its own.
#[derive(Debug, Clone, Copy)]
enum Part {
    Drains,
    Reservations,
    Jobs,
}

impl Part {
    const ALL: [Self; 3] = [Self::Drains, Self::Reservations, Self::Jobs];

    async fn run(self, site: &Site) -> Result<()> {
        match self {
            Self::Drains => drains::of_ours_come_and_go_and_others_stay(site).await,
            Self::Reservations => {
                reservations::take_the_shape_that_is_asked_for(site).await?;
                reservations::begin_by_slurmctlds_clock(site).await?;
                reservations::go_through_the_mouth_that_can(site).await
            }
            Self::Jobs => {
                jobs::are_seen_in_every_state(site).await?;
                jobs::without_a_limit_have_no_end(site).await
            }
        }
    }
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
    let apis: Vec<&str> = release.apis().iter().copied().chain([CLI]).collect();
    let nodes = Node::several(NODES * apis.len());
    // A job is completing for so long, which has to be seen also on a busy machine.
    let endless = format!("PartitionName={ENDLESS} Nodes=ALL MaxTime=UNLIMITED State=UP OverSubscribe=NO");
    let extra = vec!["KillWait=10".to_owned(), endless];
    let lab = Lab::up(slurm::Options { release, nodes, extra, ..slurm::Options::default() }).await?;
    let lab = Arc::new(lab);
    let mut sites = Vec::new();
    for (number, api) in apis.into_iter().enumerate() {
        sites.push(Arc::new(Site::new(&lab, number, api).await?));
    }
    // Without a word on it, the newest is used.
    let site = &sites[0];
    let free = connect(Options { api_version: None, ..site.options() })?;
    assert_eq!(free.api_version().await?, release.newest_api());
    assert_eq!(free.look(&[]).await?.nodes.len(), lab.options().nodes.len());

    let mut tried = JoinSet::new();
    for site in &sites {
        for part in Part::ALL {
            let site = Arc::clone(site);
            tried.spawn(async move {
                let what = format!("{} {} {part:?}", release.name(), site.api);
                // A task of its own, so that a failed assertion ends this part only.
                let part = tokio::spawn(async move { part.run(&site).await });
                (what, part.await)
            });
        }
    }
    let mut failed = Vec::new();
    while let Some(done) = tried.join_next().await {
        match done? {
            (what, Ok(Ok(()))) => println!("{what}: passed"),
            (what, Ok(Err(error))) => failed.push(format!("{what}: {error:#}")),
            (what, Err(error)) => failed.push(format!("{what}: {error}")),
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    // These change or stop what all versions use.
    rights::are_told(&lab, &sites).await?;
    away::is_said_so(&lab, &sites).await
}
