//! Which waiting job starts where, and what the others wait for: priority order, and backfill that never
//! delays the planned start of a job that comes first. It reads nodes, jobs, partitions and reservations as
//! slurmctld keeps them; it does not know how long a job will really run, only its limit.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::{SignedDuration, Timestamp};

use super::{
    Cluster, Health, Job, JobId, JobSpec, JobState, NodeName, NodeSpec, Partition, PartitionState,
    PendingReason, Process, Reservation, ReservationFlag, Share, plus,
};

/// What is free on a node, and when more will be.
struct Free<'a> {
    spec: &'a NodeSpec,
    /// New jobs may start here at all.
    usable: bool,
    /// An epilog runs until then.
    epilog_until: Option<Timestamp>,
    /// Held now, with the time at which each is expected back.
    held: Vec<(Timestamp, &'a Share)>,
}

/// Periods that are promised to jobs which come first.
type Claims = BTreeMap<NodeName, Vec<(Timestamp, Timestamp)>>;

enum Placement {
    Now(BTreeMap<NodeName, Share>),
    Later(Timestamp, Vec<NodeName>, PendingReason),
    Never(PendingReason),
}

impl JobSpec {
    /// How many nodes it gets.
    pub(super) fn node_count(&self) -> usize {
        let count = usize::try_from(self.nodes).unwrap_or(usize::MAX);
        count.max(self.required_nodes.len()).max(1)
    }
}

impl NodeSpec {
    /// Whether an empty node of this kind has what the job wants.
    pub(super) fn could_run(&self, spec: &JobSpec) -> bool {
        let gpus = self.indices(spec.gpu_kind.as_deref()).len();
        u32::try_from(gpus).is_ok_and(|gpus| gpus >= spec.gpus_per_node)
            && self.cpus >= spec.cpus_per_node
            && self.memory_mb >= spec.memory_mb_per_node
    }
}

impl Free<'_> {
    /// What the job would get here, if at `t` it fits.
    fn share(&self, job: &JobSpec, t: Timestamp) -> Option<Share> {
        let held = || self.held.iter().filter(move |(end, _)| *end > t).map(|(_, share)| *share);
        if job.exclusive && held().next().is_some() {
            return None;
        }
        let cpus = self.spec.cpus.checked_sub(held().map(|s| s.cpus).sum())?;
        let memory_mb = self.spec.memory_mb.checked_sub(held().map(|s| s.memory_mb).sum())?;
        let used: BTreeSet<u32> = held().flat_map(|s| s.gpus.iter().copied()).collect();
        let mut gpus = self.spec.indices(job.gpu_kind.as_deref());
        gpus.retain(|index| !used.contains(index));
        let wanted = usize::try_from(job.gpus_per_node).ok()?;
        if cpus < job.cpus_per_node || memory_mb < job.memory_mb_per_node || gpus.len() < wanted {
            return None;
        }
        Some(if job.exclusive {
            Share { cpus: self.spec.cpus, memory_mb: self.spec.memory_mb, gpus: gpus.into_iter().collect() }
        } else {
            let gpus = gpus.into_iter().take(wanted).collect();
            Share { cpus: job.cpus_per_node, memory_mb: job.memory_mb_per_node, gpus }
        })
    }

    /// The first time from `now` on at which the job fits, by the limits of those that run.
    fn fits_at(&self, job: &JobSpec, now: Timestamp) -> Option<Timestamp> {
        if !self.usable || !self.spec.could_run(job) {
            return None;
        }
        let first = self.epilog_until.map_or(now, |until| until.max(now));
        let mut times: Vec<Timestamp> =
            self.held.iter().map(|(end, _)| *end).filter(|&t| t > first).collect();
        times.sort_unstable();
        std::iter::once(first).chain(times).find(|&t| self.share(job, t).is_some())
    }
}

impl Cluster {
    /// One look at the queue.
    pub(super) fn schedule(&mut self) {
        let mut claims = Claims::new();
        let mut planned_for = 0;
        let mut blocked: BTreeSet<String> = BTreeSet::new();
        for id in self.queue() {
            let Some(job) = self.ctld.jobs.get(&id) else { continue };
            let placement = self.place(job, &claims);
            let partition = job.partition.clone();
            match placement {
                Placement::Now(allocation) => self.start(id, allocation),
                Placement::Later(start, nodes, reason) => {
                    let end = plus(start, job.time_limit);
                    if planned_for < self.config.backfill_depth {
                        planned_for += 1;
                        for node in &nodes {
                            claims.entry(node.clone()).or_default().push((start, end));
                        }
                    }
                    let first = blocked.insert(partition);
                    let reason = if reason == PendingReason::Resources && !first {
                        PendingReason::Priority
                    } else {
                        reason
                    };
                    self.wait(id, reason, Some((start, nodes)));
                }
                Placement::Never(reason) => self.wait(id, reason, None),
            }
        }
        for (name, node) in &mut self.ctld.nodes {
            let planned = claims.contains_key(name);
            if node.planned != planned {
                node.planned = planned;
                self.updated.nodes = self.now;
            }
        }
    }

    fn queue(&self) -> Vec<JobId> {
        let waits = |j: &&Job| {
            j.state == JobState::Pending && j.eligible_at <= self.now && !j.spec.hold && !j.is_completing()
        };
        let mut queue: Vec<&Job> = self.ctld.jobs.values().filter(waits).collect();
        queue.sort_by_key(|j| (Reverse(j.spec.priority), j.id));
        queue.into_iter().map(|j| j.id).collect()
    }

    fn place(&self, job: &Job, claims: &Claims) -> Placement {
        let Some(partition) = self.partitions.iter().find(|p| p.name == job.partition) else {
            return Placement::Never(PendingReason::PartitionDown);
        };
        if partition.state == PartitionState::Down {
            return Placement::Never(PendingReason::PartitionDown);
        }
        if partition.max_time.is_some_and(|max| job.time_limit > max) {
            return Placement::Never(PendingReason::PartitionTimeLimit);
        }
        let asked = job.spec.reservation.as_deref().map(|name| self.ctld.reservations.get(name));
        let own = match asked {
            Some(Some(r)) if r.is_active(self.now) && r.admits(&job.spec.user) => Some(r),
            Some(_) => return Placement::Never(PendingReason::Reservation),
            None => None,
        };
        let free = self.free(partition);
        self.choose(job, partition, own, &free, claims)
    }

    fn choose(
        &self,
        job: &Job,
        partition: &Partition,
        own: Option<&Reservation>,
        free: &BTreeMap<&NodeName, Free<'_>>,
        claims: &Claims,
    ) -> Placement {
        let spec = &job.spec;
        let allowed = |n: &&NodeName| own.is_none_or(|r| r.nodes.contains(*n));
        let when = |name: &NodeName| -> Option<(Timestamp, Delay)> {
            let fits = free.get(name)?.fits_at(spec, self.now)?;
            let (start, delay) = self.clear_of_others(name, job, own, claims, fits);
            let in_own = own.is_none_or(|r| plus(start, job.time_limit) <= r.end);
            in_own.then_some((start, delay))
        };
        let required = &spec.required_nodes;
        let unusable: Vec<NodeName> =
            required.iter().filter(|n| free.get(n).is_none_or(|f| !f.usable)).cloned().collect();
        if !unusable.is_empty() {
            return Placement::Never(PendingReason::NodesUnavailable(unusable));
        }
        let mut candidates: Vec<(bool, Timestamp, usize, &NodeName, Delay)> = partition
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| allowed(n))
            .filter_map(|(order, n)| when(n).map(|(t, delay)| (!required.contains(n), t, order, n, delay)))
            .collect();
        candidates.sort_unstable_by_key(|(optional, t, order, ..)| (*optional, *t, *order));
        let wanted = spec.node_count();
        let lacks_required = candidates.iter().filter(|(optional, ..)| !optional).count() < required.len();
        if candidates.len() < wanted || lacks_required {
            return Placement::Never(PendingReason::PartitionNodesUnavailable);
        }
        candidates.truncate(wanted);
        let start = candidates.iter().map(|(_, t, ..)| *t).max().unwrap_or(self.now);
        let nodes: Vec<NodeName> = candidates.iter().map(|(_, _, _, n, _)| (*n).clone()).collect();
        if start > self.now {
            let reserved =
                candidates.iter().any(|(optional, .., delay)| !optional && *delay == Delay::Reservation);
            let reason = if reserved { PendingReason::MaybeReserved } else { PendingReason::Resources };
            return Placement::Later(start, nodes, reason);
        }
        let share = |n: NodeName| free.get(&n)?.share(spec, self.now).map(|share| (n, share));
        Placement::Now(nodes.into_iter().filter_map(share).collect())
    }

    /// The first time from `from` on at which neither a reservation nor a claim stands in the way for as long
    /// as the job may run.
    fn clear_of_others(
        &self,
        node: &NodeName,
        job: &Job,
        own: Option<&Reservation>,
        claims: &Claims,
        from: Timestamp,
    ) -> (Timestamp, Delay) {
        let mut start = from;
        let mut delay = Delay::None;
        loop {
            let end = plus(start, job.time_limit);
            let bars = |r: &&Reservation| {
                r.nodes.contains(node) && start < r.end && r.start < end && !passes(r, own, &job.spec.user)
            };
            let reserved = self.ctld.reservations.values().filter(bars).map(|r| r.end).max();
            let claimed = claims.get(node).into_iter().flatten();
            let claimed = claimed.filter(|(from, to)| start < *to && *from < end).map(|(_, to)| *to).max();
            start = match (reserved, claimed) {
                (Some(until), _) => {
                    delay = Delay::Reservation;
                    until
                }
                (None, Some(until)) => until,
                (None, None) => return (start, delay),
            };
        }
    }

    fn free<'a>(&'a self, partition: &'a Partition) -> BTreeMap<&'a NodeName, Free<'a>> {
        let mut free = BTreeMap::new();
        for name in &partition.nodes {
            let Some(node) = self.ctld.nodes.get(name) else { continue };
            let health = self.machines.get(name).map_or(Health::Up, |m| m.health);
            let usable = !node.drain
                && !node.fail
                && node.down.is_none()
                && node.registered(self.now)
                && node.responds(health, self.config.not_responding_after, self.now);
            free.insert(name, Free { spec: &node.spec, usable, epilog_until: None, held: Vec::new() });
        }
        for job in self.ctld.jobs.values() {
            for (name, share) in &job.allocation {
                let Some(node) = free.get_mut(name) else { continue };
                node.epilog_until = node.epilog_until.max(job.completing_until);
                if let Some(end) = job.expected_end(self.now) {
                    // One that should have ended is expected back in a moment.
                    let end = end.max(plus(self.now, SignedDuration::from_secs(1)));
                    node.held.push((end, share));
                }
            }
        }
        free
    }

    fn start(&mut self, id: JobId, allocation: BTreeMap<NodeName, Share>) {
        let now = self.now;
        let Some(job) = self.ctld.jobs.get_mut(&id) else { return };
        let run = self.truth.new_run();
        let prolog = self.config.configuring;
        job.state = JobState::Running;
        job.reason = PendingReason::None;
        job.planned = None;
        job.started_at = Some(now);
        job.ended_at = None;
        job.configuring_until = (prolog > SignedDuration::ZERO).then(|| plus(now, prolog));
        job.run = Some(run);
        for (name, share) in &allocation {
            // A node that died a moment ago gets the job, but no process.
            if self.machines.get(name).is_some_and(|m| m.health == Health::Up) {
                self.truth.start(Process {
                    run,
                    job: id,
                    user: job.spec.user.clone(),
                    node: name.clone(),
                    gpus: u32::try_from(share.gpus.len()).unwrap_or(u32::MAX),
                    started_at: plus(now, prolog),
                    ended_at: None,
                });
            }
        }
        job.allocation = allocation;
        self.touch_jobs();
    }

    fn wait(&mut self, id: JobId, reason: PendingReason, planned: Option<(Timestamp, Vec<NodeName>)>) {
        let Some(job) = self.ctld.jobs.get_mut(&id) else { return };
        if job.reason != reason || job.planned != planned {
            job.reason = reason;
            job.planned = planned;
            self.updated.jobs = self.now;
        }
    }
}

/// What pushed a job's start away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delay {
    None,
    Reservation,
}

/// Whether a reservation lets the job of `user`, which runs in `own`, start on its nodes.
fn passes(reservation: &Reservation, own: Option<&Reservation>, user: &str) -> bool {
    match own {
        Some(own) => own.name == reservation.name || own.has(ReservationFlag::Maint),
        None => reservation.has(ReservationFlag::Magnetic) && reservation.admits(user),
    }
}
