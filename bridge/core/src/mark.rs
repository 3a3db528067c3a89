//! Our marks on the two schedulers: how they are written, and how they are recognised again. Knows names and text only;
//! whether a mark stands on a node is for [`crate::gate`] to say.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, HandoverId};

/// Taint that keeps new pods off a node that is leaving Kubernetes (effect NoSchedule).
pub const TAINT_DRAINING: &str = "gpu-bridge.io/draining";
/// Taint of a node that Slurm owns (effect NoExecute). Kubelets register with it.
pub const TAINT_SLURM: &str = "gpu-bridge.io/slurm";
/// Plain taint that a released node of Slurm's keeps (effect NoSchedule). Taken off when an adopted node goes to
/// Kubernetes.
pub const TAINT_RELEASED: &str = "runs-slurm";
/// Label that tells a node's owner.
pub const LABEL_OWNER: &str = "gpu-bridge.io/owner";
/// Annotation with handover, epoch, step and what was found before us (JSON).
pub const ANNOTATION_HANDOVER: &str = "gpu-bridge.io/handover";
/// The annotation's step of a node in quarantine: it tells of one that could not be written to the ledger before the daemon
/// was killed.
pub const STEP_QUARANTINE: &str = "quarantine";
/// Name of our one Gate object.
pub const GATE_NAME: &str = "gate";

const REASON_PREFIX: &str = "gpu-bridge:";
const RESERVATION_PREFIX: &str = "gpu-bridge_";

/// The reason of our DRAIN: `gpu-bridge:h0042 e7 WHY`. `sinfo -R` shows 20 characters of it, so the id comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReason {
    /// The handover that closed the gate.
    pub handover: HandoverId,
    /// The leadership that wrote it.
    pub epoch: Epoch,
    /// For people.
    pub why: String,
}

impl fmt::Display for DrainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{REASON_PREFIX}{} {} {}", self.handover, self.epoch, self.why)
    }
}

impl DrainReason {
    /// Reads a node's reason; `None` where it is not ours (or not in our form, which is the same).
    pub fn parse(reason: &str) -> Option<Self> {
        let rest = reason.strip_prefix(REASON_PREFIX)?;
        let mut words = rest.splitn(3, ' ');
        let handover = words.next()?.parse().ok()?;
        let epoch = words.next()?.parse().ok()?;
        Some(Self { handover, epoch, why: words.next().unwrap_or_default().to_owned() })
    }
}

/// The name of a handover's reservation: `gpu-bridge_h0042`.
pub fn reservation_name(handover: HandoverId) -> String {
    format!("{RESERVATION_PREFIX}{handover}")
}

/// The handover whose reservation has this name; `None` for others' reservations. Only a name as [`reservation_name`] writes
/// it is ours: `gpu-bridge_h42` is not that of handover 42.
pub fn reservation_handover(name: &str) -> Option<HandoverId> {
    let id = name.strip_prefix(RESERVATION_PREFIX)?;
    let digits = id.strip_prefix('h')?;
    let as_written = digits.len() == 4 || (digits.len() > 4 && !digits.starts_with('0'));
    if as_written { id.parse().ok() } else { None }
}

/// What [`ANNOTATION_HANDOVER`] holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoverAnnotation {
    /// The handover that wrote the marks.
    pub handover: HandoverId,
    /// The leadership that wrote them.
    pub epoch: Epoch,
    /// The step it was in, in design's words, or [`STEP_QUARANTINE`].
    pub step: String,
}

impl fmt::Display for HandoverAnnotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

impl HandoverAnnotation {
    /// Reads the annotation; `None` where it is not in our form (edited by hand, of another version).
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_reason_is_recognised_and_others_are_not() {
        let ours = DrainReason { handover: HandoverId(42), epoch: Epoch(7), why: "window friday".into() };
        assert_eq!(ours.to_string(), "gpu-bridge:h0042 e7 window friday");
        assert_eq!(DrainReason::parse(&ours.to_string()), Some(ours));
        for theirs in [
            "",
            "bad disk",
            "gpu-bridge",
            "gpu-bridge:",
            "gpu-bridge:h1",
            "gpu-bridge:42 e7 x",
            "x gpu-bridge:h0042 e7 y",
        ] {
            assert_eq!(DrainReason::parse(theirs), None, "{theirs:?}");
        }
    }

    #[test]
    fn our_reservation_is_recognised_and_others_are_not() {
        for id in [0, 3, 9_999, 10_000, u64::MAX] {
            assert_eq!(reservation_handover(&reservation_name(HandoverId(id))), Some(HandoverId(id)));
        }
        for theirs in [
            "",
            "maint",
            "gpu-bridge_",
            "gpu-bridge_hx",
            "my-gpu-bridge_h0001",
            "gpu-bridge_h1",
            "gpu-bridge_h00001",
            "gpu-bridge_0001",
        ] {
            assert_eq!(reservation_handover(theirs), None, "{theirs:?}");
        }
    }
}
