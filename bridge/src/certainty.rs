//! What a failed call tells about the write that it asked for. Shared by both ports, so that the daemon treats an answer
//! it never saw the same way on both sides.

/// Whether a write that failed may have taken effect all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// It certainly did not happen.
    NotDone,
    /// It may have happened, or may yet happen: only a look tells.
    MayBeDone,
}
