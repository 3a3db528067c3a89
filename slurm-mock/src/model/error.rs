//! What slurmctld says when it refuses. Numbers and texts are those of Slurm 24.11.

/// A refused request. `to_string()` is Slurm's own wording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such partition.
    #[error("Invalid partition name specified")]
    InvalidPartition,
    /// Not the job's owner and no operator.
    #[error("Access/permission denied")]
    AccessDenied,
    /// Not an administrator.
    #[error("Invalid user id")]
    InvalidUser,
    /// More than any node or the whole partition could ever give.
    #[error("Requested node configuration is not available")]
    ConfigUnavailable,
    /// A running job stands in the way of a reservation without IGNORE_JOBS.
    #[error("Requested nodes are busy")]
    NodesBusy,
    /// No such job.
    #[error("Invalid job id specified")]
    InvalidJobId,
    /// No such node.
    #[error("Invalid node name specified")]
    InvalidNodeName,
    /// The job has ended already.
    #[error("Job/step already completing or completed")]
    AlreadyDone,
    /// For instance RESUME of a node that is neither down, drained nor failing.
    #[error("Invalid node state specified")]
    InvalidNodeState,
    /// The job may not use the reservation it names.
    #[error("Access denied to requested reservation")]
    ReservationAccess,
    /// No such reservation, or a description that makes no sense.
    #[error("Requested reservation is invalid")]
    ReservationInvalid,
    /// A time in the past.
    #[error("Invalid time specified")]
    InvalidTime,
    /// The start of an active reservation does not change.
    #[error("Reservation already started")]
    ReservationStarted,
    /// A job runs in the reservation.
    #[error("Requested reservation is in use")]
    ReservationBusy,
    /// Another reservation holds a node in the same time.
    #[error("Requested reservation overlaps with another reservation")]
    ReservationOverlap,
    /// The name is taken, perhaps by one that ended and lingers.
    #[error("Duplicate reservation name")]
    ReservationNameTaken,
    /// Neither users nor accounts were given.
    #[error("Reservation request lacks users, groups or accounts")]
    ReservationEmpty,
    /// Only a running job can be suspended.
    #[error("Job is not running")]
    JobNotRunning,
    /// Only a suspended job can be resumed.
    #[error("Job is not suspended")]
    JobNotSuspended,
    /// The job was submitted with `--no-requeue`.
    #[error("Requested operation is presently disabled")]
    Disabled,
    /// slurmctld is not running.
    #[error("Unable to contact slurm controller (connect failure)")]
    ControllerDown,
}

impl Error {
    /// Slurm's error number (`slurm_errno.h`, 24.11).
    pub fn code(self) -> i32 {
        match self {
            Self::ControllerDown => 1800,
            Self::InvalidPartition => 2000,
            Self::AccessDenied => 2002,
            Self::InvalidUser => 2010,
            Self::ConfigUnavailable => 2014,
            Self::NodesBusy => 2016,
            Self::InvalidJobId => 2017,
            Self::InvalidNodeName => 2018,
            Self::AlreadyDone => 2021,
            Self::InvalidNodeState => 2028,
            Self::Disabled => 2029,
            Self::ReservationAccess => 2052,
            Self::ReservationInvalid => 2053,
            Self::InvalidTime => 2054,
            Self::ReservationStarted => 2056,
            Self::ReservationBusy => 2055,
            Self::ReservationOverlap => 2058,
            Self::ReservationEmpty => 2080,
            Self::ReservationNameTaken => 2082,
            Self::JobNotRunning => 2085,
            Self::JobNotSuspended => 2087,
        }
    }
}
