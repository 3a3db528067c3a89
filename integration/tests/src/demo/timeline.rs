//! Prints what happens as a person would tell it: one line an event, the same for the stand-ins and the real thing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpu_bridge::ledger::{self, Entries};
use gpu_bridge_core::calendar::Zone;
use gpu_bridge_core::event::{Event, Outcome};
use gpu_bridge_core::handover;
use gpu_bridge_core::ids::{HandoverId, NodeName};
use gpu_bridge_core::model::Domain;
use jiff::Timestamp;

/// A running account.
pub(super) struct Timeline {
    zone: Zone,
    ledger: PathBuf,
    told: u64,
    handovers: BTreeMap<HandoverId, (NodeName, Domain)>,
    evictions_blocked: u32,
}

impl Timeline {
    /// In the site's zone, following the ledger in this state folder.
    pub(super) fn new(zone: Zone, state_dir: &Path) -> Self {
        Self {
            zone,
            ledger: ledger::path_in(state_dir),
            told: 0,
            handovers: BTreeMap::new(),
            evictions_blocked: 0,
        }
    }

    /// Says something about one of the worlds.
    pub(super) fn say(&self, at: Timestamp, who: &str, what: &str) {
        let clock = self.zone.wall_clock(at).strftime("%H:%M:%S");
        println!("  {clock}  {who:<10}  {what}");
    }

    /// Tells what is new in the ledger.
    pub(super) fn follow(&mut self) -> anyhow::Result<()> {
        for entry in Entries::<Event>::open(&self.ledger)? {
            let entry = entry?;
            if entry.seq.0 <= self.told {
                continue;
            }
            self.told = entry.seq.0;
            if let Some(what) = self.words(&entry.event) {
                self.say(entry.at, "gpu-bridge", &what);
            }
        }
        Ok(())
    }

    /// Evictions that a budget put off.
    pub(super) fn evictions_blocked(&self) -> u32 {
        self.evictions_blocked
    }

    fn words(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::Planned(h) => {
                self.handovers.insert(h.id, (h.node.clone(), h.to));
                let drain = self.zone.wall_clock(h.start_at).strftime("%H:%M");
                Some(match (h.purpose, h.to) {
                    (handover::Purpose::Adoption, to) => format!("{} {}: adopting for {to}", h.id, h.node),
                    (handover::Purpose::Move, Domain::Kubernetes) => {
                        format!("{} {}: to Kubernetes at {drain}, because {}", h.id, h.node, h.why)
                    }
                    (handover::Purpose::Move, Domain::Slurm) => {
                        format!("{} {}: home to Slurm, because {}", h.id, h.node, h.why)
                    }
                })
            }
            Event::Handover { id, event } => {
                let (node, to) = self.handovers.get(id)?;
                let words = step_words(event, *to)?;
                Some(format!("{id} {node}: {words}"))
            }
            Event::Outcome { outcome: Outcome::Budget { .. }, .. } => {
                self.evictions_blocked += 1;
                (self.evictions_blocked == 1)
                    .then(|| "a disruption budget says not now; it is asked again every 5 s".to_owned())
            }
            Event::Quarantined { node, why } => Some(format!("{node}: QUARANTINED: {why}")),
            Event::AlarmRaised { text, .. } => Some(format!("ALARM {text}")),
            Event::Outcome {
                outcome:
                    Outcome::Done | Outcome::Refused { .. } | Outcome::Denied { .. } | Outcome::Unknown { .. },
                ..
            }
            | Event::Started { .. }
            | Event::Stopped
            | Event::IdsSeen { .. }
            | Event::Counted { .. }
            | Event::TimeRanBackwards { .. }
            | Event::Found { .. }
            | Event::DrainLifted { .. }
            | Event::SeenInQuarantine { .. }
            | Event::Intent { .. }
            | Event::Decision { .. }
            | Event::Refused { .. }
            | Event::AlarmCleared { .. }
            | Event::QuarantineEnded { .. }
            | Event::Imported { .. }
            | Event::ReleaseStarted { .. }
            | Event::Released { .. }
            | Event::Note { .. } => None,
        }
    }
}

fn step_words(event: &handover::Event, to: Domain) -> Option<String> {
    use handover::Event as E;
    Some(match event {
        E::Reserved => "reserved: no job starts there that would overrun".to_owned(),
        E::DrainStarted => "drained: running jobs end by themselves".to_owned(),
        E::Sealed => "empty twice over; the reservation is sealed".to_owned(),
        E::Permitted(evidence) => format!("{} is closed and empty, so {to} may open", evidence.domain),
        E::Opened => format!("OPEN for {to}"),
        E::ClosingStarted => "closing to Kubernetes".to_owned(),
        E::Closed { .. } => {
            "closed: a binding was tried and refused; what runs there is waited for".to_owned()
        }
        E::HoldersGone { .. } => "no GPU holder left".to_owned(),
        E::NodeReplaced { .. } => "another Node under the same name: closing starts again".to_owned(),
        E::RollBack { why } => format!("rolls back: {why}"),
        E::JobsSeen { .. }
        | E::PodsSeen { .. }
        | E::EmptyLook { .. }
        | E::BusyLook { .. }
        | E::Extended { .. } => return None,
    })
}
