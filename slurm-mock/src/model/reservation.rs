//! Reservations: which are accepted, changed and deleted, as Slurm 24.11 does it. Whether a job may start
//! beside one is the scheduler's question; [`Reservation::admits`] answers its part of it.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{Cluster, Error, ids::NodeName, job::Job, plus};

/// A year, which is what UNLIMITED becomes.
pub const UNLIMITED: SignedDuration = SignedDuration::from_hours(365 * 24);

/// A reservation's flags, in the order in which Slurm lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservationFlag {
    /// System maintenance; may overlap others.
    Maint,
    /// May overlap others.
    Overlap,
    /// Created although jobs run.
    IgnoreJobs,
    /// Named nodes; Slurm sets it itself.
    SpecNodes,
    /// Jobs of its users run in it without asking.
    Magnetic,
}

impl ReservationFlag {
    /// As REST and scontrol spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Maint => "MAINT",
            Self::Overlap => "OVERLAP",
            Self::IgnoreJobs => "IGNORE_JOBS",
            Self::SpecNodes => "SPEC_NODES",
            Self::Magnetic => "MAGNETIC",
        }
    }

    /// Reads what a user may write. SPEC_NODES may not be written.
    pub fn parse(word: &str) -> Option<Self> {
        match word.to_ascii_uppercase().as_str() {
            "MAINT" => Some(Self::Maint),
            "OVERLAP" => Some(Self::Overlap),
            "IGNORE_JOBS" => Some(Self::IgnoreJobs),
            "MAGNETIC" => Some(Self::Magnetic),
            _ => None,
        }
    }
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// Its start.
    pub start: Timestamp,
    /// Its end.
    pub end: Timestamp,
    /// Its nodes.
    pub nodes: BTreeSet<NodeName>,
    /// Who may use it.
    pub users: Vec<String>,
    /// Its flags.
    pub flags: BTreeSet<ReservationFlag>,
}

impl Reservation {
    /// Whether it holds its nodes at `t`.
    pub fn is_active(&self, t: Timestamp) -> bool {
        self.start <= t && t < self.end
    }

    /// Whether the user may run jobs in it. root and slurm always may.
    pub fn admits(&self, user: &str) -> bool {
        matches!(user, "root" | "slurm") || self.users.iter().any(|u| u == user)
    }

    pub(crate) fn has(&self, flag: ReservationFlag) -> bool {
        self.flags.contains(&flag)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end && !self.nodes.is_disjoint(&other.nodes)
    }
}

/// A wanted reservation.
#[derive(Clone, Debug)]
pub struct ReservationRequest {
    /// Its name; `None` lets Slurm make one.
    pub name: Option<String>,
    /// Its start; `None` is now.
    pub start: Option<Timestamp>,
    /// How long; UNLIMITED is [`UNLIMITED`].
    pub duration: SignedDuration,
    /// Its nodes.
    pub nodes: Vec<NodeName>,
    /// Its users.
    pub users: Vec<String>,
    /// Its flags.
    pub flags: Vec<ReservationFlag>,
}

/// How a list changes: `=`, `+=` or `-=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListChange<T> {
    /// Replace.
    Set(Vec<T>),
    /// Add.
    Add(Vec<T>),
    /// Take away.
    Remove(Vec<T>),
}

impl<T: PartialEq + Clone> ListChange<T> {
    fn apply(&self, old: &[T]) -> Vec<T> {
        match self {
            Self::Set(new) => new.clone(),
            Self::Add(more) => old.iter().chain(more.iter().filter(|m| !old.contains(m))).cloned().collect(),
            Self::Remove(less) => old.iter().filter(|o| !less.contains(o)).cloned().collect(),
        }
    }
}

/// A wanted change; `None` leaves a thing as it is.
#[derive(Clone, Debug, Default)]
pub struct ReservationChange {
    /// New start; refused once it is active.
    pub start: Option<Timestamp>,
    /// New end.
    pub end: Option<Timestamp>,
    /// New duration, counted from the start.
    pub duration: Option<SignedDuration>,
    /// Nodes.
    pub nodes: Option<ListChange<NodeName>>,
    /// Users.
    pub users: Option<ListChange<String>>,
    /// Flags. As in Slurm, [`ListChange::Set`] only adds: a flag goes by [`ListChange::Remove`].
    pub flags: Option<ListChange<ReservationFlag>>,
}

impl Cluster {
    /// The reservations slurmctld lists, by name; ended ones linger a little.
    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.ctld.reservations.values()
    }

    /// One reservation.
    pub fn reservation(&self, name: &str) -> Option<&Reservation> {
        self.ctld.reservations.get(name)
    }

    /// Creates a reservation and returns its name.
    ///
    /// Refused: by other than operators, in the past, without users, with unknown nodes, with a name that is
    /// taken, over another one (unless either is MAINT or OVERLAP), over running jobs (unless IGNORE_JOBS).
    pub fn create_reservation(&mut self, request: ReservationRequest, by: &str) -> Result<String, Error> {
        self.require_operator(by)?;
        let start = request.start.unwrap_or(self.now);
        if plus(start, self.config.reservation_past_slack) < self.now || request.duration.is_negative() {
            return Err(Error::InvalidTime);
        }
        if request.users.is_empty() {
            return Err(Error::ReservationEmpty);
        }
        let name = match request.name {
            Some(name) => name,
            None => self.free_reservation_name(request.users.first().map_or("resv", String::as_str)),
        };
        if self.ctld.reservations.contains_key(&name) {
            return Err(Error::ReservationNameTaken);
        }
        let mut flags: BTreeSet<ReservationFlag> = request.flags.into_iter().collect();
        flags.insert(ReservationFlag::SpecNodes);
        let made = Reservation {
            name: name.clone(),
            start,
            end: plus(start, request.duration),
            nodes: request.nodes.into_iter().collect(),
            users: request.users,
            flags,
        };
        self.check_reservation(&made)?;
        self.ctld.reservations.insert(name.clone(), made);
        self.touch_reservations();
        Ok(name)
    }

    /// Changes a reservation.
    pub fn update_reservation(
        &mut self,
        name: &str,
        change: &ReservationChange,
        by: &str,
    ) -> Result<(), Error> {
        self.require_operator(by)?;
        let old = self.ctld.reservations.get(name).ok_or(Error::ReservationInvalid)?;
        let mut new = old.clone();
        if let Some(start) = change.start {
            if old.start <= self.now {
                return Err(Error::ReservationStarted);
            }
            if plus(start, self.config.reservation_past_slack) < self.now {
                return Err(Error::InvalidTime);
            }
            new.end = plus(start, old.end.duration_since(old.start));
            new.start = start;
        }
        if let Some(end) = change.end {
            new.end = end;
        }
        if let Some(duration) = change.duration {
            new.end = plus(new.start, duration);
        }
        if new.end < self.now || new.end < new.start {
            return Err(Error::InvalidTime);
        }
        if let Some(nodes) = &change.nodes {
            let old: Vec<NodeName> = new.nodes.iter().cloned().collect();
            new.nodes = nodes.apply(&old).into_iter().collect();
        }
        if let Some(users) = &change.users {
            new.users = users.apply(&new.users);
            if new.users.is_empty() {
                return Err(Error::ReservationEmpty);
            }
        }
        match &change.flags {
            Some(ListChange::Set(flags) | ListChange::Add(flags)) => new.flags.extend(flags),
            Some(ListChange::Remove(flags)) => new.flags.retain(|f| !flags.contains(f)),
            None => {}
        }
        self.check_reservation(&new)?;
        self.ctld.reservations.insert(name.to_owned(), new);
        self.touch_reservations();
        Ok(())
    }

    /// Deletes a reservation. Refused while a job runs in it.
    pub fn delete_reservation(&mut self, name: &str, by: &str) -> Result<(), Error> {
        self.require_operator(by)?;
        if !self.ctld.reservations.contains_key(name) {
            return Err(Error::ReservationInvalid);
        }
        let uses = |j: &Job| j.state.holds_nodes() && j.spec.reservation.as_deref() == Some(name);
        if self.ctld.jobs.values().any(uses) {
            return Err(Error::ReservationBusy);
        }
        self.ctld.reservations.remove(name);
        self.touch_reservations();
        Ok(())
    }

    fn check_reservation(&self, wanted: &Reservation) -> Result<(), Error> {
        if wanted.nodes.is_empty() || !wanted.nodes.iter().all(|n| self.ctld.nodes.contains_key(n)) {
            return Err(Error::InvalidNodeName);
        }
        // On 24.11 it is enough that one of the two may overlap.
        let may = |r: &Reservation| r.has(ReservationFlag::Maint) || r.has(ReservationFlag::Overlap);
        let mut others = self.ctld.reservations.values().filter(|r| r.name != wanted.name && !may(r));
        if !may(wanted) && others.any(|r| r.overlaps(wanted)) {
            return Err(Error::ReservationOverlap);
        }
        let in_the_way = |job: &Job| {
            job.spec.reservation.as_deref() != Some(&wanted.name)
                && job.expected_end(self.now).is_some_and(|end| end > wanted.start)
                && job.allocation.keys().any(|node| wanted.nodes.contains(node))
        };
        if !wanted.has(ReservationFlag::IgnoreJobs) && self.ctld.jobs.values().any(in_the_way) {
            return Err(Error::NodesBusy);
        }
        Ok(())
    }

    fn free_reservation_name(&self, user: &str) -> String {
        let mut number = 1_u32;
        while self.ctld.reservations.contains_key(&format!("{user}_{number}")) {
            number += 1;
        }
        format!("{user}_{number}")
    }
}
