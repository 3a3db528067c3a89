//! The daemon, as far as the core needs one.

use jiff::Timestamp;

use super::world::TICK;
use crate::book::Book;
use crate::event::Event;
use crate::facts::kubernetes::{BindingProbe, NodeLook};
use crate::facts::slurm::Index;
use crate::facts::{Facts, Seen};
use crate::fixtures::{handover, n, site};
use crate::handover::{Purpose, State};
use crate::ids::Epoch;
use crate::model::{Domain, Site};
use crate::view::{Inputs, View};

/// A ledger, and the book that it adds up to.
pub(super) struct Daemon {
    pub(super) site: Site,
    pub(super) ledger: Vec<(Timestamp, Event)>,
    pub(super) book: Book,
}

impl Daemon {
    pub(super) fn new() -> Self {
        Self { site: site(), ledger: vec![], book: Book::default() }
    }

    pub(super) fn log(&mut self, at: Timestamp, event: Event) {
        let seq = self.ledger.len() as u64;
        self.book.apply(seq, at, &event).unwrap_or_else(|error| panic!("{event:?}: {error}"));
        self.ledger.push((at, event));
    }

    /// The last first.
    pub(super) fn last_events(&self) -> Vec<&(Timestamp, Event)> {
        self.ledger.iter().rev().take(12).collect()
    }

    pub(super) fn crash(&mut self) {
        let mut book = Book::default();
        for (seq, (at, event)) in self.ledger.iter().enumerate() {
            book.apply(seq as u64, *at, event).unwrap();
        }
        assert_eq!(book, self.book, "replay gives the same book");
        self.book = book;
    }

    pub(super) fn plan(&mut self, now: Timestamp, to: Domain, purpose: Purpose, ticks: i32) {
        let id = self.book.next_handover();
        let mut handover = handover(id, 1, to, State::Planned);
        handover.purpose = purpose;
        (handover.planned_at, handover.since) = (now, now);
        (handover.reserve_at, handover.start_at) = (now, now + TICK);
        handover.deadline = now + TICK * ticks;
        self.log(now, Event::Planned(Box::new(handover)));
    }

    pub(super) fn view<R>(
        &self,
        now: Timestamp,
        facts: &Facts,
        look: &Seen<NodeLook>,
        probe: &Seen<BindingProbe>,
        judge: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let record = self.book.record(&n(1));
        let index = Index::new(&facts.slurm);
        judge(&View::new(Inputs {
            now,
            epoch: Epoch(1),
            site: &self.site,
            node: &self.site.nodes[&n(1)],
            record: &record,
            handover: self.book.handover_of(&n(1)),
            backwards: &self.book.backwards,
            facts,
            index: &index,
            look,
            probe,
        }))
    }
}
