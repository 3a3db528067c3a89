//! What users, administrators and bad luck do to a cluster: submit, cancel, suspend, requeue; drain, resume,
//! down; machines that die and come back; slurmctld stopped, started, or put back to an older state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{
    Cause, Cluster, Error, Health, Job, JobId, JobSpec, JobState, NodeAction, NodeName, NodeUpdate,
    PendingReason, Reason, RunId,
    node::{DownCause, Node},
    plus,
    time::End,
    truth::Ending,
};

/// How slurmctld starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After a clean stop: everything is as it was.
    Clean,
    /// After kill -9: nodes are UNKNOWN until they register.
    AfterKill,
    /// `slurmctld -c`: drains and jobs are lost, reservations stay.
    Cold,
}

/// A copy of slurmctld's state folder.
#[derive(Clone, Debug)]
pub struct SavedState(super::Controller);

impl Cluster {
    /// Submits a job.
    pub fn submit(&mut self, spec: JobSpec) -> Result<JobId, Error> {
        self.require_up()?;
        let partition = match &spec.partition {
            Some(name) => self.partitions.iter().find(|p| p.name == *name),
            None => self.partitions.first(),
        }
        .ok_or(Error::InvalidPartition)?;
        if spec.required_nodes.iter().any(|n| !partition.nodes.contains(n)) {
            return Err(Error::InvalidNodeName);
        }
        let able = |n: &&NodeName| self.ctld.nodes.get(n).is_some_and(|n| n.spec.could_run(&spec));
        let able: Vec<&NodeName> = partition.nodes.iter().filter(able).collect();
        let wanted = spec.node_count();
        if able.len() < wanted || spec.required_nodes.iter().any(|n| !able.contains(&n)) {
            return Err(Error::ConfigUnavailable);
        }
        if let Some(name) = &spec.reservation {
            let reservation = self.ctld.reservations.get(name).ok_or(Error::ReservationInvalid)?;
            if !reservation.admits(&spec.user) {
                return Err(Error::ReservationAccess);
            }
        }
        let id = JobId(self.ctld.next_job_id);
        self.ctld.next_job_id = self.ctld.next_job_id.wrapping_add(1).max(1);
        let job = Job {
            id,
            partition: partition.name.clone(),
            time_limit: spec.time_limit.unwrap_or(partition.default_time),
            state: JobState::Pending,
            configuring_until: None,
            completing_until: None,
            allocation: BTreeMap::new(),
            submitted_at: self.now,
            eligible_at: self.now,
            started_at: None,
            ended_at: None,
            suspended_at: None,
            suspended_for: SignedDuration::ZERO,
            restarts: 0,
            reason: if spec.hold { PendingReason::HeldByUser } else { PendingReason::None },
            planned: None,
            run: None,
            spec,
        };
        self.ctld.jobs.insert(id, job);
        self.touch_jobs();
        self.changed();
        Ok(id)
    }

    /// Cancels a job for a user: its owner, an operator or an administrator.
    pub fn cancel(&mut self, id: JobId, by: &str) -> Result<(), Error> {
        let job = self.owned_job(id, by)?;
        if job.state.is_final() {
            return Err(Error::AlreadyDone);
        }
        let cause = Cause::CancelledBy(by.to_owned());
        self.end_run(id, End { state: JobState::Cancelled, cause, kill: true, requeue: false });
        self.changed();
        Ok(())
    }

    /// Puts a running job back into the queue.
    pub fn requeue(&mut self, id: JobId, by: &str) -> Result<(), Error> {
        let job = self.owned_job(id, by)?;
        if !job.spec.requeue {
            return Err(Error::Disabled);
        }
        if !job.state.holds_nodes() {
            return Err(Error::JobNotRunning);
        }
        let cause = Cause::RequeuedBy(by.to_owned());
        self.end_run(id, End { state: JobState::Pending, cause, kill: true, requeue: true });
        self.changed();
        Ok(())
    }

    /// Suspends a running job. Its CPUs are free, its GPUs and memory are not. Operators only.
    pub fn suspend(&mut self, id: JobId, by: &str) -> Result<(), Error> {
        self.require_operator(by).map_err(to_access_denied)?;
        let now = self.now;
        let job = self.ctld.jobs.get_mut(&id).ok_or(Error::InvalidJobId)?;
        if job.state != JobState::Running {
            return Err(Error::JobNotRunning);
        }
        job.state = JobState::Suspended;
        job.suspended_at = Some(now);
        self.touch_jobs();
        self.changed();
        Ok(())
    }

    /// Lets a suspended job run on, on a drained node too. Operators only.
    pub fn resume_job(&mut self, id: JobId, by: &str) -> Result<(), Error> {
        self.require_operator(by).map_err(to_access_denied)?;
        let now = self.now;
        let job = self.ctld.jobs.get_mut(&id).ok_or(Error::InvalidJobId)?;
        let since = job.suspended_at.take().ok_or(Error::JobNotSuspended)?;
        job.state = JobState::Running;
        job.suspended_for = job.suspended_for.saturating_add(now.duration_since(since));
        self.touch_jobs();
        self.changed();
        Ok(())
    }

    /// Lets a held job go.
    pub fn release(&mut self, id: JobId, by: &str) -> Result<(), Error> {
        self.owned_job(id, by)?;
        let job = self.ctld.jobs.get_mut(&id).ok_or(Error::InvalidJobId)?;
        job.spec.hold = false;
        self.touch_jobs();
        self.changed();
        Ok(())
    }

    /// Shrinks a job: it gives a node back and runs on on its others. The processes on that node are killed,
    /// unless its slurmd does not answer: then they live on, and slurmctld has forgotten them.
    pub fn shrink_job(&mut self, id: JobId, node: &NodeName, by: &str) -> Result<(), Error> {
        self.owned_job(id, by)?;
        let job = self.ctld.jobs.get_mut(&id).ok_or(Error::InvalidJobId)?;
        if !job.state.holds_nodes() || job.allocation.len() < 2 {
            return Err(Error::JobNotRunning);
        }
        job.allocation.remove(node).ok_or(Error::InvalidNodeName)?;
        let up = self.machines.get(node).is_some_and(|m| m.health == Health::Up);
        if let Some(run) = job.run.filter(|_| up) {
            self.truth.end(run, self.now, |n| n == node);
        }
        self.touch_jobs();
        self.changed();
        Ok(())
    }

    /// Updates a node. Administrators only.
    pub fn update_node(&mut self, name: &NodeName, update: &NodeUpdate, by: &str) -> Result<(), Error> {
        self.require_up()?;
        // Who asks is judged before what is meant.
        self.require_administrator(by)?;
        let node = self.ctld.nodes.get(name).ok_or(Error::InvalidNodeName)?;
        let marked = node.drain || node.fail || node.down.is_some();
        if update.action == Some(NodeAction::Resume) && !marked {
            return Err(Error::InvalidNodeState);
        }
        let now = self.now;
        let reason = |text: &str| Reason { text: text.to_owned(), user: by.to_owned(), changed_at: now };
        let silence = self.config.resume_not_responding;
        let until = (silence > SignedDuration::ZERO).then(|| plus(now, silence));
        let keeps_reason = self.config.reason_survives_resume;
        let given = update.reason.as_deref().map(reason);
        let node = self.ctld.nodes.get_mut(name).ok_or(Error::InvalidNodeName)?;
        match update.action {
            Some(NodeAction::Undrain) => {
                let silent = node.drain && node.down.is_none();
                let keeps = keeps_reason || node.down.is_some() || node.fail;
                node.drain = false;
                node.reason = node.reason.take().filter(|_| keeps);
                node.silent_until = until.filter(|_| silent).or(node.silent_until);
            }
            Some(NodeAction::Resume | NodeAction::Idle) => {
                let reason = node.reason.take().filter(|_| keeps_reason);
                *node = Node { drain: false, fail: false, down: None, reason, ..node.clone() };
                node.silent_until = until.filter(|_| marked).or(node.silent_until);
                self.restart_timeout(name);
            }
            Some(NodeAction::Drain) => {
                node.drain = true;
                set_reason(node, given);
            }
            Some(NodeAction::Fail) => {
                node.fail = true;
                set_reason(node, given);
            }
            Some(NodeAction::Down) => {
                set_reason(node, given);
                let cause = Cause::NodeSetDownBy(name.clone(), by.to_owned());
                self.take_down(name, DownCause::Admin, reason(""), &cause);
            }
            None => set_reason(node, given),
        }
        self.touch_nodes();
        self.changed();
        Ok(())
    }

    /// slurmd dies or hangs: its processes live on, slurmctld hears nothing of the node any more.
    pub fn kill_slurmd(&mut self, name: &NodeName) -> Result<(), Error> {
        let now = self.now;
        let machine = self.machines.get_mut(name).ok_or(Error::InvalidNodeName)?;
        machine.health = Health::SlurmdDead(now);
        machine.registers_at = None;
        self.changed();
        Ok(())
    }

    /// The machine loses its power, and with it all processes.
    pub fn power_off(&mut self, name: &NodeName) -> Result<(), Error> {
        let now = self.now;
        let machine = self.machines.get_mut(name).ok_or(Error::InvalidNodeName)?;
        machine.health = Health::PoweredOff(now);
        machine.registers_at = None;
        for run in self.truth.living_runs() {
            self.truth.end(run, now, |node| node == name);
        }
        self.changed();
        Ok(())
    }

    /// slurmd (and the machine) starts again; it registers after [`super::Config::registration`].
    pub fn start_slurmd(&mut self, name: &NodeName) -> Result<(), Error> {
        let (now, delay) = (self.now, self.config.registration);
        let machine = self.machines.get_mut(name).ok_or(Error::InvalidNodeName)?;
        machine.health = Health::Up;
        machine.slurmd_start = now;
        machine.registers_at = Some(plus(now, delay));
        if let Some(node) = self.ctld.nodes.get_mut(name) {
            node.silent_until = Some(plus(now, delay));
        }
        self.changed();
        Ok(())
    }

    /// Stops slurmctld. Jobs run on; nothing is scheduled, noticed or answered.
    pub fn stop_controller(&mut self) {
        self.settle();
        self.up = false;
    }

    /// Starts slurmctld again.
    pub fn start_controller(&mut self, start: Start) {
        self.up = true;
        match start {
            Start::Clean => {}
            Start::AfterKill => self.forget_registrations(),
            Start::Cold => {
                let jobs: Vec<JobId> = self.ctld.jobs.keys().copied().collect();
                for id in jobs {
                    self.forget_job(id);
                }
                for node in self.ctld.nodes.values_mut() {
                    *node =
                        Node { last_busy: node.last_busy, ..Node::new(node.spec.clone(), node.last_busy) };
                }
                self.forget_registrations();
            }
        }
        self.touch_reservations();
        self.touch_jobs();
        self.changed();
    }

    /// A copy of the state folder.
    pub fn save(&self) -> SavedState {
        SavedState(self.ctld.clone())
    }

    /// Stops slurmctld, puts an older state folder in place and starts it: drains, reservations and jobs are
    /// those of then, job numbers will be given out again, and jobs it does not know are killed.
    pub fn restore(&mut self, saved: &SavedState) {
        let runs: BTreeSet<RunId> = saved.0.jobs.values().filter_map(|j| j.run).collect();
        for job in self.ctld.jobs.values().filter(|j| !j.state.is_final()) {
            let old = saved.0.jobs.get(&job.id).filter(|old| old.submitted_at == job.submitted_at);
            let known = job.run.map_or(old.is_some(), |run| runs.contains(&run));
            if !known {
                self.truth.record(forgotten(job, self.now, old.is_some()));
            }
        }
        self.ctld = saved.0.clone();
        self.start_controller(Start::AfterKill);
    }

    fn forget_job(&mut self, id: JobId) {
        if let Some(job) = self.ctld.jobs.remove(&id).filter(|j| !j.state.is_final()) {
            self.truth.record(forgotten(&job, self.now, false));
        }
    }

    fn forget_registrations(&mut self) {
        let at = plus(self.now, self.config.registration);
        for (name, node) in &mut self.ctld.nodes {
            node.unknown_until = Some(at);
            if let Some(machine) = self.machines.get_mut(name).filter(|m| m.health == Health::Up) {
                machine.registers_at = Some(at);
            }
        }
    }

    /// A resumed node whose slurmd is dead gets a new SlurmdTimeout.
    fn restart_timeout(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(name) else { return };
        machine.health = match machine.health {
            Health::Up => Health::Up,
            Health::SlurmdDead(_) => Health::SlurmdDead(now),
            Health::PoweredOff(_) => Health::PoweredOff(now),
        };
        if machine.health != Health::Up
            && let Some(node) = self.ctld.nodes.get_mut(name)
        {
            node.silent_until = Some(plus(now, self.config.slurmd_timeout));
        }
    }

    fn owned_job(&self, id: JobId, by: &str) -> Result<&Job, Error> {
        self.require_up()?;
        let job = self.ctld.jobs.get(&id).ok_or(Error::InvalidJobId)?;
        if job.spec.user != by {
            self.require_operator(by).map_err(to_access_denied)?;
        }
        Ok(job)
    }
}

fn forgotten(job: &Job, at: Timestamp, requeued: bool) -> Ending {
    let (run, user) = (job.run, job.spec.user.clone());
    Ending { job: job.id, run, user, at, cause: Cause::ControllerForgot, requeued }
}

fn to_access_denied(error: Error) -> Error {
    if error == Error::InvalidUser { Error::AccessDenied } else { error }
}

fn set_reason(node: &mut Node, given: Option<Reason>) {
    if let Some(reason) = given {
        node.reason = (!reason.text.is_empty()).then_some(reason);
    }
}
