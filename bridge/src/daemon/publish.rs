//! Makes the value that the API serves from what the last tick saw.

use gpu_bridge_core::arbiter::Census;
use gpu_bridge_core::book::Management;
use gpu_bridge_core::calendar::Window;
use gpu_bridge_core::demand::Demand;
use gpu_bridge_core::facts::Seen;
use gpu_bridge_core::facts::slurm::{Index, Slurm};
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::model::{Domain, NodeWordRule};
use gpu_bridge_core::step;
use gpu_bridge_core::view::View;
use jiff::{SignedDuration, Timestamp};

use super::decider::{Mode, Seat};
use super::engine::Engine;
use super::published::{
    DemandStatus, DomainStatus, NodeStatus, PolicyStatus, PoolStatus, Published, UnderWay, WaitingStatus,
    WindowStatus,
};
use crate::ledger::Disk;

impl<D: Disk> Engine<D> {
    /// What the daemon shows of itself now.
    pub fn published(&self) -> Published {
        let now = self.parts.clock.now();
        let book = self.journal.book();
        let census = Census::new(&self.parts.site, book, now);
        let index = Index::new(&self.facts.slurm);
        let names: Vec<NodeName> = self.parts.site.nodes.keys().cloned().collect();
        Published {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at: now,
            epoch: self.epoch,
            domains: vec![
                DomainStatus {
                    reached: self.facts.slurm.value().map(|slurm| slurm.reached.clone()),
                    ..domain(Domain::Slurm, &self.facts.slurm)
                },
                domain(Domain::Kubernetes, &self.facts.kubernetes),
            ],
            nodes: names.iter().filter_map(|name| self.with_view(name, &index, node)).collect(),
            pools: self
                .parts
                .site
                .pools
                .values()
                .map(|pool| {
                    let count = census.of(&pool.name);
                    PoolStatus {
                        pool: pool.name.clone(),
                        domain: pool.domain(),
                        present: count.present,
                        arriving: count.arriving,
                        leaving: count.leaving,
                        floor: pool.floor,
                        ceiling: pool.ceiling,
                    }
                })
                .collect(),
            windows: self.parts.calendar.windows().map(|one| window(one, now)).collect(),
            demand: self.facts.slurm.value().map(|slurm| demand(slurm, now, self.parts.demand_age)),
            policies: self.parts.seats.iter().map(policy).collect(),
            alarms: self
                .ledger_alarm()
                .into_iter()
                .chain(book.alarms.values().map(|a| a.text.clone()))
                .collect(),
            plan: self.plan.clone(),
            handovers: book.under_way().cloned().collect(),
            ledger_seq: self.journal.last().0.0,
        }
    }
}

impl<D: Disk> Engine<D> {
    /// The one alarm that the ledger can't hold.
    fn ledger_alarm(&self) -> Option<String> {
        let why = self.ledger_fault.as_ref()?;
        Some(format!(
            "the ledger cannot be written: {why}. Nothing new is begun, closing goes on; free the disk"
        ))
    }
}

fn demand(slurm: &Slurm, now: Timestamp, age: SignedDuration) -> DemandStatus {
    let Demand { waiting, aside, young, never, unread } = Demand::of(slurm, now, age);
    let waiting = waiting.into_iter().map(|(alike, waiting)| WaitingStatus { alike, waiting }).collect();
    DemandStatus { waiting, aside, young, never, unread }
}

fn domain<T>(domain: Domain, seen: &Seen<T>) -> DomainStatus {
    match seen {
        Seen::At { at, .. } => DomainStatus { domain, seen_at: Some(*at), unknown: None, reached: None },
        Seen::Unknown { why } => {
            DomainStatus { domain, seen_at: None, unknown: Some(why.clone()), reached: None }
        }
    }
}

fn node(view: &View<'_>) -> NodeStatus {
    let record = view.record;
    let management = match (record.management, &record.quarantine) {
        (_, Some(_)) => "quarantined",
        (Management::Unmanaged, None) => "unmanaged",
        (Management::Adopting, None) => "adopting",
        (Management::Managed { .. }, None) => "managed",
        (Management::Releasing { .. }, None) => "releasing",
    };
    let managed = record.owner().is_some();
    NodeStatus {
        node: view.node.name.clone(),
        management: management.to_owned(),
        owner: record.owner(),
        pool: if managed { record.placement.as_ref().map(|p| p.pool.clone()) } else { None },
        slurm: view.slurm.clone(),
        kubernetes: view.kubernetes.clone(),
        handover: view.handover.map(|h| UnderWay { id: h.id, step: h.state.name().to_owned() }),
        waits_for: step::waits_for(view),
        node_word: match view.pool().map(|pool| &pool.node_word) {
            Some(NodeWordRule::Required) => "asked".to_owned(),
            Some(NodeWordRule::AbsentAllowed { reason }) => format!("no node check ({reason})"),
            None => "no pool".to_owned(),
        },
    }
}

fn window(window: &Window, now: Timestamp) -> WindowStatus {
    let spec = window.spec();
    let on = window.on_at(now);
    let shown = on.or_else(|| window.occurrences(now).find(|o| o.start > now));
    WindowStatus {
        window: spec.name.to_string(),
        pool: spec.pool.clone(),
        nodes: spec.nodes,
        on: on.is_some(),
        start: shown.map(|o| o.start),
        end: shown.map(|o| o.end),
        owner: spec.owner.clone(),
        ticket: spec.ticket.as_ref().map(ToString::to_string),
    }
}

fn policy(seat: &Seat) -> PolicyStatus {
    PolicyStatus {
        policy: seat.decider.name().to_string(),
        mode: match seat.mode {
            Mode::Active => "active".to_owned(),
            Mode::Shadow => "shadow".to_owned(),
        },
        error: seat.error.clone(),
        wants: seat.wants.clone(),
    }
}
