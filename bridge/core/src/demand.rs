//! Which waiting Slurm jobs more GPU nodes would let start, by partition, GPU type and size; and which would wait all the
//! same, and for what. It knows neither pools nor policies, and does not decide that anything moves.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::facts::slurm::{Job, JobState, Slurm};
use crate::ids::JobId;

/// Jobs that are listed by number in one look, of those that no node could ever run.
const NEVER_MAX: usize = 100;
/// Kinds of jobs that are told apart in one look: whoever submits jobs chooses their sizes.
const ALIKE_MAX: usize = 1_000;

/// What a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// Free nodes: more of them would help.
    Resources,
    /// Nodes that it names itself.
    NamedNodes,
    /// Somebody who releases it.
    Release,
    /// Another job.
    Dependency,
    /// A limit of its partition, QOS, association or array.
    Limit,
    /// A reservation.
    Reservation,
    /// Its begin time.
    BeginTime,
    /// Licences.
    Licences,
    /// Its partition, which is down or inactive.
    Partition,
    /// Something else, or for ever.
    Other,
}

impl WaitsFor {
    /// By Slurm's word for it. A job without one was not looked at by the scheduler yet: nothing but nodes is known to be
    /// missing.
    pub fn of(job: &Job) -> Self {
        let Some(reason) = job.pending_reason.as_deref() else { return Self::Resources };
        let held = ["JobHeld", "JobHold", "job requeued in held state", "launch failed requeued held"];
        let limits = [
            "QOS",
            "Assoc",
            "Max",
            "JobArrayTaskLimit",
            "Partition",
            "Account",
            "InvalidAccount",
            "InvalidQOS",
        ];
        let starts = |words: &[&str]| words.iter().any(|word| reason.starts_with(word));
        match reason {
            "Resources" | "Priority" | "None" => Self::Resources,
            _ if reason.starts_with("ReqNodeNotAvail") || reason.starts_with("Nodes required for job") => {
                if job.required_nodes.is_empty() {
                    Self::Resources
                } else {
                    Self::NamedNodes
                }
            }
            "PartitionDown" | "PartitionInactive" => Self::Partition,
            "BeginTime" => Self::BeginTime,
            _ if reason.starts_with("Licenses") => Self::Licences,
            _ if reason.starts_with("Dependency") => Self::Dependency,
            _ if reason.starts_with("Reservation") => Self::Reservation,
            _ if starts(&held) => Self::Release,
            _ if starts(&limits) => Self::Limit,
            _ => Self::Other,
        }
    }
}

/// Jobs that are alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Alike {
    /// The partition that they wait in. A job that names several waits in each.
    pub partition: String,
    /// The GPU type that they name; `None` for any.
    pub gpu_type: Option<String>,
    /// Nodes that each needs at once.
    pub nodes: u32,
    /// GPUs that each needs, on all its nodes together.
    pub gpus: u32,
}

/// How many of them wait.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Waiting {
    /// Jobs; each task of an array is one, and a heterogeneous job is one.
    pub jobs: u32,
    /// Are there more, in arrays of which Slurm cut the list short?
    pub and_more: bool,
    /// When the first of them was submitted.
    pub since: Option<Timestamp>,
}

/// What waits for GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demand {
    /// What more nodes would let start.
    pub waiting: BTreeMap<Alike, Waiting>,
    /// Jobs that wait for something else.
    pub aside: BTreeMap<WaitsFor, u32>,
    /// Jobs that are younger than the minimum age.
    pub young: u32,
    /// Jobs that no nodes of their partitions could run, the first hundred.
    pub never: BTreeSet<JobId>,
    /// Pending jobs that are counted and no more: beyond what one look reads, or of more kinds than are told apart.
    pub unread: u32,
}

impl Demand {
    /// The demand in a look at `now`; jobs younger than `minimum_age` may yet start by themselves.
    pub fn of(slurm: &Slurm, now: Timestamp, minimum_age: SignedDuration) -> Self {
        let mut demand = Self { unread: slurm.pending_unread, ..Self::default() };
        let mut sizes = Sizes { slurm, of: BTreeMap::new() };
        for components in whole_jobs(slurm) {
            demand.add(&mut sizes, &components, now, minimum_age);
        }
        demand
    }

    fn add(
        &mut self,
        sizes: &mut Sizes<'_>,
        components: &[&Job],
        now: Timestamp,
        minimum_age: SignedDuration,
    ) {
        let Some(first) = components.iter().find(|job| job.gpus_per_node > 0) else { return };
        // The tasks of an array are alike; components of a heterogeneous job have none.
        let tasks = first.tasks.unwrap_or(1);
        let partitions: Vec<&str> = first
            .partition
            .split(',')
            .filter(|partition| components.iter().all(|job| sizes.could_run(job, partition)))
            .collect();
        let waits_for = components.iter().map(|job| WaitsFor::of(job)).max().unwrap_or(WaitsFor::Other);
        if waits_for != WaitsFor::Resources {
            let aside = self.aside.entry(waits_for).or_default();
            *aside = aside.saturating_add(tasks);
        } else if partitions.is_empty() {
            if self.never.len() < NEVER_MAX {
                self.never.insert(first.id);
            }
        } else if first.submitted.is_none_or(|at| now.duration_since(at) < minimum_age)
            && !minimum_age.is_zero()
        {
            self.young = self.young.saturating_add(tasks);
        } else {
            let sum = |of: fn(&Job) -> u32| components.iter().map(|job| of(job)).fold(0, u32::saturating_add);
            let nodes = sum(|job| if job.gpus_per_node > 0 { job.node_count.max(1) } else { 0 });
            let gpus = sum(|job| job.gpus_per_node.saturating_mul(job.node_count.max(1)));
            for partition in partitions {
                let (partition, gpu_type) = (partition.to_owned(), first.gpu_type.clone());
                let alike = Alike { partition, gpu_type, nodes, gpus };
                if self.waiting.len() >= ALIKE_MAX && !self.waiting.contains_key(&alike) {
                    self.unread = self.unread.saturating_add(tasks);
                    continue;
                }
                let waiting = self.waiting.entry(alike).or_default();
                waiting.jobs = waiting.jobs.saturating_add(tasks);
                waiting.and_more |= first.tasks.is_none();
                waiting.since = [waiting.since, first.submitted].into_iter().flatten().min();
            }
        }
    }
}

/// Every pending job with its components: more than one of a heterogeneous one. Where one of them does not wait any more, the
/// job is starting.
fn whole_jobs(slurm: &Slurm) -> impl Iterator<Item = Vec<&Job>> {
    let mut whole: BTreeMap<JobId, Vec<&Job>> = BTreeMap::new();
    for job in slurm.jobs.values() {
        whole.entry(job.het_leader.unwrap_or(job.id)).or_default().push(job);
    }
    whole.into_values().filter(|jobs| jobs.iter().all(|job| job.state == JobState::Pending))
}

/// How large the nodes of partitions are. Each partition is walked through once, however many jobs wait in it.
struct Sizes<'a> {
    slurm: &'a Slurm,
    /// By partition, how many nodes have so many GPUs.
    of: BTreeMap<&'a str, BTreeMap<u32, usize>>,
}

impl Sizes<'_> {
    /// Whether the partition has nodes enough for the job, were they all free. (A component may be in another partition of its
    /// own; then that one counts.)
    fn could_run(&mut self, job: &Job, partition: &str) -> bool {
        let mut names = job.partition.split(',');
        let first = names.clone().next().unwrap_or_default();
        let name = if names.any(|name| name == partition) { partition } else { first };
        let Some((name, partition)) = self.slurm.partitions.get_key_value(name) else { return false };
        let sizes = self.of.entry(name).or_insert_with(|| {
            let mut sizes = BTreeMap::new();
            for node in &partition.nodes {
                // One that cannot be read may be large enough.
                let gpus = self.slurm.nodes.get(node).map_or(u32::MAX, |node| node.gpus);
                *sizes.entry(gpus).or_default() += 1;
            }
            sizes
        });
        let large: usize = sizes.range(job.gpus_per_node..).map(|(_, nodes)| nodes).sum();
        u32::try_from(large).unwrap_or(u32::MAX) >= job.node_count.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::NodeSet;
    use crate::facts::slurm::{BaseState, Node, Partition};

    const NOW: i64 = 10_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn job(id: u32, change: impl FnOnce(&mut Job)) -> Job {
        let mut job = Job {
            id: JobId(id),
            state: JobState::Pending,
            user: "alice".into(),
            partition: "main".into(),
            nodes: NodeSet::default(),
            required_nodes: NodeSet::default(),
            node_count: 1,
            gpus_per_node: 4,
            time_limit: None,
            start: None,
            end_by: None,
            requeue: true,
            pending_reason: Some("Resources".into()),
            submitted: Some(at(NOW - 1_000)),
            gpu_type: None,
            tasks: Some(1),
            het_leader: None,
        };
        change(&mut job);
        job
    }

    /// Four nodes of four GPUs in `main`, two of them in `small`.
    fn demand(jobs: Vec<Job>) -> Demand {
        let names: Vec<_> = (1..=4).map(|n| crate::ids::SlurmNodeName::new(format!("gpu{n}"))).collect();
        let node = Node {
            state: BaseState::Allocated,
            flags: BTreeSet::new(),
            reason: None,
            gpus: 4,
            gpus_used: Some(4),
            partitions: BTreeSet::new(),
        };
        let partition = |names: &[crate::ids::SlurmNodeName]| Partition {
            nodes: names.iter().cloned().collect(),
            max_time: None,
            up: true,
        };
        let slurm = Slurm {
            nodes: names.iter().map(|name| (name.clone(), node.clone())).collect(),
            partitions: [("main".into(), partition(&names)), ("small".into(), partition(&names[..2]))].into(),
            jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
            pending_unread: 7,
            ..Slurm::default()
        };
        Demand::of(&slurm, at(NOW), SignedDuration::from_secs(60))
    }

    fn alike(partition: &str, nodes: u32, gpus: u32) -> Alike {
        Alike { partition: partition.into(), gpu_type: None, nodes, gpus }
    }

    #[test]
    fn every_word_of_slurm_has_its_meaning() {
        for (reason, expected) in [
            ("Resources", WaitsFor::Resources),
            ("Priority", WaitsFor::Resources),
            ("ReqNodeNotAvail", WaitsFor::Resources),
            ("JobHeldUser", WaitsFor::Release),
            ("JobHeldAdmin", WaitsFor::Release),
            ("JobHoldMaxRequeue", WaitsFor::Release),
            ("job requeued in held state", WaitsFor::Release),
            ("Dependency", WaitsFor::Dependency),
            ("DependencyNeverSatisfied", WaitsFor::Dependency),
            ("QOSMaxGRESPerUser", WaitsFor::Limit),
            ("QOSGrpNodeLimit", WaitsFor::Limit),
            ("AssocGrpGRES", WaitsFor::Limit),
            ("AssociationJobLimit", WaitsFor::Limit),
            ("MaxGRESPerAccount", WaitsFor::Limit),
            ("JobArrayTaskLimit", WaitsFor::Limit),
            ("PartitionTimeLimit", WaitsFor::Limit),
            ("PartitionNodeLimit", WaitsFor::Limit),
            ("PartitionDown", WaitsFor::Partition),
            ("PartitionInactive", WaitsFor::Partition),
            ("Reservation", WaitsFor::Reservation),
            ("ReservationDeleted", WaitsFor::Reservation),
            ("BeginTime", WaitsFor::BeginTime),
            ("Licenses", WaitsFor::Licences),
            ("BadConstraints", WaitsFor::Other),
            ("FedJobLock", WaitsFor::Other),
        ] {
            let job = job(1, |job| job.pending_reason = Some(reason.to_owned()));
            assert_eq!(WaitsFor::of(&job), expected, "{reason}");
        }
        assert_eq!(WaitsFor::of(&job(1, |job| job.pending_reason = None)), WaitsFor::Resources);
        let named = job(1, |job| {
            job.pending_reason = Some("ReqNodeNotAvail, UnavailableNodes:gpu1".into());
            job.required_nodes = ["gpu1".into()].into();
        });
        assert_eq!(WaitsFor::of(&named), WaitsFor::NamedNodes);
    }

    #[test]
    fn jobs_are_counted_by_task_size_type_and_partition() {
        let found = demand(vec![
            job(1, |_| {}),
            job(2, |job| job.submitted = Some(at(NOW - 5_000))),
            job(3, |job| job.tasks = Some(100)),
            job(4, |job| job.node_count = 3),
            job(5, |job| job.gpu_type = Some("a100".into())),
            job(6, |job| job.partition = "main,small".into()),
            job(7, |job| (job.tasks, job.gpus_per_node) = (None, 2)),
            // No GPUs; running; too young.
            job(8, |job| job.gpus_per_node = 0),
            job(9, |job| job.state = JobState::Running),
            job(10, |job| job.submitted = Some(at(NOW - 59))),
            job(11, |job| job.submitted = None),
        ]);
        let waiting = |jobs, and_more, since| Waiting { jobs, and_more, since: Some(at(since)) };
        let typed = Alike { gpu_type: Some("a100".into()), ..alike("main", 1, 4) };
        let expected = BTreeMap::from([
            (alike("main", 1, 4), waiting(103, false, NOW - 5_000)),
            (alike("small", 1, 4), waiting(1, false, NOW - 1_000)),
            (alike("main", 3, 12), waiting(1, false, NOW - 1_000)),
            (alike("main", 1, 2), waiting(1, true, NOW - 1_000)),
            (typed, waiting(1, false, NOW - 1_000)),
        ]);
        assert_eq!(found.waiting, expected);
        assert_eq!((found.young, found.unread, found.never.len(), found.aside.len()), (2, 7, 0, 0));
    }

    #[test]
    fn a_heterogeneous_job_is_one_job_and_waits_for_what_any_component_waits_for() {
        let component = |id, gpus, reason: &str| {
            let reason = reason.to_owned();
            job(id, move |job| {
                (job.het_leader, job.gpus_per_node) = (Some(JobId(id / 10 * 10)), gpus);
                job.pending_reason = Some(reason);
            })
        };
        let found = demand(vec![
            component(10, 0, "Resources"),
            component(11, 2, "Resources"),
            component(12, 4, "Priority"),
            component(20, 1, "Resources"),
            component(21, 1, "Dependency"),
            component(30, 1, "Resources"),
            component(31, 9, "Resources"),
            component(40, 1, "Resources"),
            job(41, |job| (job.het_leader, job.state) = (Some(JobId(40)), JobState::Running)),
        ]);
        assert_eq!(found.waiting.keys().collect::<Vec<_>>(), [&alike("main", 2, 6)]);
        assert_eq!(found.aside, BTreeMap::from([(WaitsFor::Dependency, 1)]));
        assert_eq!(found.never, BTreeSet::from([JobId(30)]));
    }

    #[test]
    fn what_no_node_could_run_is_left_out_and_named() {
        let found = demand(vec![
            job(1, |job| job.gpus_per_node = 5),
            job(2, |job| job.node_count = 5),
            job(3, |job| (job.partition, job.node_count) = ("small".into(), 3)),
            job(4, |job| job.partition = "gone".into()),
            job(5, |job| (job.partition, job.node_count) = ("small,main".into(), 4)),
            // It waits for something else first.
            job(6, |job| (job.gpus_per_node, job.pending_reason) = (5, Some("JobHeldUser".into()))),
        ]);
        assert_eq!(found.never, BTreeSet::from([1, 2, 3, 4].map(JobId)));
        assert_eq!(found.waiting.keys().collect::<Vec<_>>(), [&alike("main", 4, 16)]);
        assert_eq!(found.aside, BTreeMap::from([(WaitsFor::Release, 1)]));
        let kinds =
            demand((0..2_000).map(|id| job(id, |job| job.gpu_type = Some(format!("t{id}")))).collect());
        assert_eq!((kinds.waiting.len(), kinds.unread), (ALIKE_MAX, 7 + 1_000));
        let many = demand((1..=500).map(|id| job(id, |job| job.gpus_per_node = 5)).collect());
        assert_eq!(many.never.len(), NEVER_MAX);
    }
}
