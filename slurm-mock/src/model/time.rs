//! How the cluster changes when nobody asks for anything: jobs end, limits pass, machines fall silent and
//! come back, reservations begin and end. Time moves from one such event to the next.

use jiff::{SignedDuration, Timestamp};

use super::{
    Cluster, Health, Job, JobId, JobState, NodeName, PendingReason, ReturnToService,
    node::Reason,
    node::{DownCause, Node},
    plus,
    truth::{Cause, Ending},
};

/// How a run ends for slurmctld.
pub(super) struct End {
    pub(super) state: JobState,
    pub(super) cause: Cause,
    /// Its processes are killed, rather than gone by themselves.
    pub(super) kill: bool,
    /// It goes back to the queue.
    pub(super) requeue: bool,
}

impl Cluster {
    /// Lets time pass. A time that is not after [`Cluster::now`] changes nothing.
    pub fn advance_to(&mut self, t: Timestamp) {
        self.settle();
        while let Some(event) = self.next_event().filter(|&event| event <= t) {
            self.now = event;
            self.dirty = true;
            self.settle();
        }
        self.now = self.now.max(t);
    }

    /// The next time at which something changes by itself, if anything ever does.
    pub fn next_event(&self) -> Option<Timestamp> {
        let config = &self.config;
        let mut next: Option<Timestamp> = None;
        let mut at = |t: Option<Timestamp>| {
            if let Some(t) = t.filter(|&t| t > self.now) {
                next = Some(next.map_or(t, |n| n.min(t)));
            }
        };
        for job in self.ctld.jobs.values() {
            at(job.configuring_until.filter(|_| job.state == JobState::Running));
            at(job.finishes_at());
            at(job.limit_at());
            at(job.completing_until);
            at((job.state == JobState::Pending).then_some(job.eligible_at));
            at(job.ended_at.filter(|_| job.state.is_final()).map(|end| plus(end, config.min_job_age)));
        }
        for r in self.ctld.reservations.values() {
            at(Some(r.start));
            at(Some(plus(r.start, config.reservation_flag_lag)));
            at(Some(r.end));
            at(Some(plus(r.end, config.reservation_flag_lag)));
            at(Some(plus(r.end, config.reservation_linger)));
        }
        for node in self.ctld.nodes.values() {
            at(node.silent_until);
            at(node.unknown_until);
        }
        for machine in self.machines.values() {
            at(machine.registers_at);
            if let Health::SlurmdDead(since) | Health::PoweredOff(since) = machine.health {
                at(Some(plus(since, config.not_responding_after)));
                at(Some(plus(since, config.slurmd_timeout)));
            }
        }
        next
    }

    /// Does what is due and lets the scheduler look, until nothing changes any more.
    pub(super) fn settle(&mut self) {
        while self.dirty {
            self.dirty = false;
            self.end_processes();
            if self.up {
                self.end_jobs();
                self.look_at_reservations();
                self.look_at_machines();
                self.schedule();
            }
        }
    }

    /// Processes end by themselves even while slurmctld is away.
    fn end_processes(&mut self) {
        for job in self.ctld.jobs.values() {
            if let (Some(run), Some(end)) = (job.run, job.finishes_at().filter(|&end| end <= self.now)) {
                self.truth.end(run, end, |_| true);
            }
        }
    }

    fn end_jobs(&mut self) {
        let now = self.now;
        let is_up = |node: &NodeName| self.machines.get(node).is_some_and(|m| m.health == Health::Up);
        let mut ends = Vec::new();
        let mut purged = Vec::new();
        for job in self.ctld.jobs.values() {
            let heard = job.allocation.keys().all(is_up);
            let finished = job.finishes_at().filter(|&t| t <= now);
            let limited = job.limit_at().filter(|&t| t <= now);
            match (finished, limited) {
                _ if !heard => {}
                (Some(finish), limit) if limit.is_none_or(|limit| finish <= limit) => {
                    ends.push((job.id, JobState::Completed, Cause::Finished, false));
                }
                (_, Some(_)) => ends.push((job.id, JobState::Timeout, Cause::TimeLimit, true)),
                (Some(_) | None, None) => {}
            }
            let old = job.ended_at.is_some_and(|end| plus(end, self.config.min_job_age) <= now);
            if job.state.is_final() && old && !job.is_completing() {
                purged.push(job.id);
            }
        }
        let configured = self.ctld.jobs.values().any(|j| j.configuring_until == Some(now));
        if !purged.is_empty() || configured {
            self.updated.jobs = now;
        }
        for id in purged {
            self.ctld.jobs.remove(&id);
        }
        for (id, state, cause, kill) in ends {
            self.end_run(id, End { state, cause, kill, requeue: false });
        }
        self.end_epilogs();
    }

    fn end_epilogs(&mut self) {
        let now = self.now;
        let mut any = false;
        let machines = &self.machines;
        let nodes = &self.ctld.nodes;
        // slurmctld hears of an epilog's end from each slurmd, or takes the node DOWN.
        let heard = |node: &NodeName| {
            machines.get(node).is_none_or(|machine| machine.health == Health::Up)
                || nodes.get(node).is_none_or(|node| node.down.is_some())
        };
        for job in self.ctld.jobs.values_mut() {
            let done = job.completing_until.is_some_and(|until| until <= now);
            if done && job.allocation.keys().all(heard) {
                job.completing_until = None;
                any = true;
                if job.state == JobState::Pending {
                    job.allocation.clear();
                }
            }
        }
        if any {
            self.touch_jobs();
        }
    }

    /// Ends a job's present run.
    pub(super) fn end_run(&mut self, id: JobId, end: End) {
        let now = self.now;
        let Some(job) = self.ctld.jobs.get_mut(&id) else { return };
        let run = job.run.take();
        if let Some(run) = run.filter(|_| end.kill) {
            let machines = &self.machines;
            let reachable = |node: &NodeName| machines.get(node).is_some_and(|m| m.health == Health::Up);
            self.truth.end(run, plus(now, self.config.kill_wait), reachable);
        }
        let epilog =
            if end.kill { self.config.completing.max(self.config.kill_wait) } else { self.config.completing };
        let had_nodes = !job.allocation.is_empty();
        job.completing_until = (had_nodes && epilog > SignedDuration::ZERO).then(|| plus(now, epilog));
        job.ended_at = Some(now);
        job.suspended_at = None;
        job.suspended_for = SignedDuration::ZERO;
        if end.requeue {
            requeue(job, plus(now, self.config.requeue_delay));
        } else {
            job.state = end.state;
        }
        let user = job.spec.user.clone();
        for name in job.allocation.keys() {
            if let Some(node) = self.ctld.nodes.get_mut(name) {
                node.last_busy = now;
            }
        }
        self.truth.record(Ending { job: id, run, user, at: now, cause: end.cause, requeued: end.requeue });
        self.touch_jobs();
    }

    fn look_at_reservations(&mut self) {
        let (now, lag, linger) = (self.now, self.config.reservation_flag_lag, self.config.reservation_linger);
        let before = self.ctld.reservations.len();
        self.ctld.reservations.retain(|_, r| plus(r.end, linger) > now);
        if self.ctld.reservations.len() != before {
            self.updated.reservations = now;
        }
        let flips = |r: &super::Reservation| plus(r.start, lag) == now || plus(r.end, lag) == now;
        if self.ctld.reservations.values().any(flips) {
            self.updated.nodes = now;
        }
    }

    fn look_at_machines(&mut self) {
        let now = self.now;
        let mut died = Vec::new();
        let mut registered = Vec::new();
        for (name, node) in &mut self.ctld.nodes {
            let due = |t: &Option<Timestamp>| t.is_some_and(|t| t <= now);
            if due(&node.silent_until) || due(&node.unknown_until) {
                self.updated.nodes = now;
            }
            node.silent_until = node.silent_until.filter(|&t| t > now);
            node.unknown_until = node.unknown_until.filter(|&t| t > now);
            let Some(machine) = self.machines.get_mut(name) else { continue };
            match machine.health {
                Health::Up => {
                    if due(&machine.registers_at) {
                        machine.registers_at = None;
                        registered.push(name.clone());
                    }
                }
                Health::SlurmdDead(since) | Health::PoweredOff(since) => {
                    if plus(since, self.config.not_responding_after) == now {
                        self.updated.nodes = now;
                    }
                    if plus(since, self.config.slurmd_timeout) <= now && node.down.is_none() {
                        died.push(name.clone());
                    }
                }
            }
        }
        for name in died {
            let reason =
                Reason { text: "Not responding".to_owned(), user: "slurm".to_owned(), changed_at: now };
            let cause = Cause::NodeDied(name.clone());
            self.take_down(&name, DownCause::NotResponding, reason, &cause);
        }
        for name in registered {
            self.register(&name);
        }
    }

    /// Takes a node DOWN and its jobs with it. A reason that stands is kept.
    pub(super) fn take_down(&mut self, name: &NodeName, down: DownCause, reason: Reason, cause: &Cause) {
        let Some(node) = self.ctld.nodes.get_mut(name) else { return };
        node.down = Some(down);
        node.reason.get_or_insert(reason);
        self.touch_nodes();
        let hit = |j: &&Job| j.state.holds_nodes() && j.allocation.contains_key(name);
        let jobs: Vec<(JobId, bool)> =
            self.ctld.jobs.values().filter(hit).map(|j| (j.id, j.spec.requeue)).collect();
        for (id, requeue) in jobs {
            self.end_run(id, End { state: JobState::NodeFail, cause: cause.clone(), kill: true, requeue });
        }
    }

    /// slurmd reports to slurmctld: strangers on the node are killed, jobs that are not there have failed.
    fn register(&mut self, name: &NodeName) {
        let now = self.now;
        let back = self.config.return_to_service;
        if let Some(node) = self.ctld.nodes.get_mut(name) {
            return_to_service(node, back);
        }
        let here = |j: &Job| j.state.holds_nodes() && j.allocation.contains_key(name);
        for run in self.truth.living_runs() {
            if !self.ctld.jobs.values().any(|j| here(j) && j.run == Some(run)) {
                self.truth.end(run, now, |node| node == name);
            }
        }
        let lost = |j: &&Job| here(j) && j.run.is_none_or(|run| !self.truth.lives(run));
        let lost: Vec<(JobId, bool)> =
            self.ctld.jobs.values().filter(lost).map(|j| (j.id, j.spec.requeue)).collect();
        for (id, requeue) in lost {
            let cause = Cause::NodeDied(name.clone());
            self.end_run(id, End { state: JobState::NodeFail, cause, kill: true, requeue });
        }
        self.touch_nodes();
    }
}

fn requeue(job: &mut Job, eligible_at: Timestamp) {
    job.state = JobState::Pending;
    job.restarts += 1;
    job.eligible_at = eligible_at;
    job.reason = PendingReason::BeginTime;
    job.started_at = None;
    job.ended_at = None;
    job.configuring_until = None;
    if job.completing_until.is_none() {
        job.allocation.clear();
    }
}

fn return_to_service(node: &mut Node, policy: ReturnToService) {
    let up = match (policy, &node.down) {
        (_, None) | (ReturnToService::Never, Some(_)) => return,
        (ReturnToService::NonResponsive, Some(DownCause::NotResponding))
        | (ReturnToService::Always, Some(_)) => true,
        (ReturnToService::NonResponsive, Some(DownCause::Admin)) => false,
    };
    // A node that somebody drained meanwhile stays DOWN+DRAIN.
    if up && !node.drain {
        node.down = None;
        node.reason = None;
    }
}
