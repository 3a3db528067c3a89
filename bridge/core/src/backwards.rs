//! Time that runs backwards in a scheduler: it was started from a restored backup, and may have forgotten jobs, pods and
//! marks. Each scheduler has a counter that it only ever counts up; this notices one that went down, and decides until
//! when nothing opens on that scheduler's word. It does not know what was forgotten: only a new look tells.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::book::Book;
use crate::event::Event;
use crate::facts::{Facts, Seen};
use crate::model::Domain;

/// The ledger gets a line of the counters this often: a backup older than the last one is noticed by a daemon that was
/// itself started between backup and restore.
const RECORDED_EVERY: SignedDuration = SignedDuration::from_hours(1);
/// How long the alarm stays on.
const ALARM: SignedDuration = SignedDuration::from_hours(24);

/// How far the schedulers' own counters have come; `None` where one was never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Slurm's next job id. It rolls over from MaxJobId (67,108,863 by default) to FirstJobId: that looks like a restored
    /// backup, once in a cluster's life, and costs one look.
    pub slurm: Option<u64>,
    /// The `resourceVersion` of a consistent LIST of the Nodes. By Kubernetes' own word comparable since 1.35 (KEP-5504),
    /// and a number on every server that keeps its objects in etcd; one that is no number is not compared.
    pub kubernetes: Option<u64>,
}

impl Counters {
    /// What a look shows of them.
    pub fn of(facts: &Facts) -> Self {
        Self {
            slurm: facts.slurm.value().and_then(|slurm| slurm.next_job_id).map(|id| u64::from(id.0)),
            kubernetes: facts.kubernetes.value().and_then(|kubernetes| kubernetes.revision),
        }
    }

    /// These, and where one could not be read the one `before`.
    #[must_use]
    pub fn or(self, before: Self) -> Self {
        Self { slurm: self.slurm.or(before.slurm), kubernetes: self.kubernetes.or(before.kubernetes) }
    }

    /// The first domain whose counter is below what it was `before`.
    pub fn below(self, before: Self) -> Option<Domain> {
        [Domain::Slurm, Domain::Kubernetes]
            .into_iter()
            .find(|domain| self.get(*domain).zip(before.get(*domain)).is_some_and(|(is, was)| is < was))
    }

    fn get(self, domain: Domain) -> Option<u64> {
        match domain {
            Domain::Slurm => self.slurm,
            Domain::Kubernetes => self.kubernetes,
        }
    }
}

/// What the book holds on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Backwards {
    /// The counters of the last line about them.
    pub counters: Counters,
    /// When that was.
    pub recorded_at: Option<Timestamp>,
    /// When Slurm's was last noticed to have gone down.
    pub slurm: Option<Timestamp>,
    /// When Kubernetes' was.
    pub kubernetes: Option<Timestamp>,
}

impl Backwards {
    /// When a domain's time was last noticed to have run backwards.
    pub fn noticed(&self, domain: Domain) -> Option<Timestamp> {
        match domain {
            Domain::Slurm => self.slurm,
            Domain::Kubernetes => self.kubernetes,
        }
    }

    /// Takes in a line of the ledger.
    pub(crate) fn recorded(&mut self, at: Timestamp, counters: Counters) {
        self.counters = counters;
        self.recorded_at = Some(at);
    }

    /// Takes in a notice: from here on it counts from where it `is`.
    pub(crate) fn went_down(&mut self, at: Timestamp, domain: Domain, is: u64) {
        let (noticed, counter) = match domain {
            Domain::Slurm => (&mut self.slurm, &mut self.counters.slurm),
            Domain::Kubernetes => (&mut self.kubernetes, &mut self.counters.kubernetes),
        };
        (*noticed, *counter) = (Some(at), Some(is));
    }

    /// May a look at `domain` of the instant `at` be believed? Not one from before the notice, nor the one that showed it.
    pub fn allows(&self, domain: Domain, at: Option<Timestamp>) -> bool {
        self.noticed(domain).is_none_or(|noticed| at.is_some_and(|at| at > noticed))
    }

    /// The alarm of a domain, as (key, text).
    pub fn alarm(&self, domain: Domain, now: Timestamp) -> Option<(String, String)> {
        let noticed = self.noticed(domain)?;
        let text = format!(
            "time ran backwards in {domain}, noticed at {noticed}: was it started from a backup? Every node is looked at \
             again before anything opens on it (GB0622)"
        );
        (noticed.duration_until(now) < ALARM).then(|| (format!("backwards/{domain}"), text))
    }
}

/// What the ledger is to be told: that a counter went down, as against `before` (the last look's, or the ledger's), and
/// from time to time how far they have come.
pub fn notices(book: &Book, before: Counters, facts: &Facts, now: Timestamp) -> Vec<Event> {
    let counters = Counters::of(facts);
    let went_down = |domain: Domain| {
        let (was, is) = (before.get(domain)?, counters.get(domain)?);
        (is < was).then_some(Event::TimeRanBackwards { domain, was, is })
    };
    let mut events: Vec<Event> =
        [Domain::Slurm, Domain::Kubernetes].into_iter().filter_map(went_down).collect();
    let due = book.backwards.recorded_at.is_none_or(|at| at.duration_until(now).abs() >= RECORDED_EVERY);
    let counters = counters.or(before);
    if due && counters != book.backwards.counters {
        events.push(Event::Counted { counters });
    }
    events
}

/// When the look at a whole domain was taken.
pub fn looked_at(facts: &Facts, domain: Domain) -> Option<Timestamp> {
    fn at<T>(seen: &Seen<T>) -> Option<Timestamp> {
        match seen {
            Seen::At { at, .. } => Some(*at),
            Seen::Unknown { .. } => None,
        }
    }
    match domain {
        Domain::Slurm => at(&facts.slurm),
        Domain::Kubernetes => at(&facts.kubernetes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Case, at};
    use crate::ids::JobId;

    fn facts(job: Option<u32>, revision: Option<u64>) -> Facts {
        let mut case = Case::of_slurm();
        case.slurm().next_job_id = job.map(JobId);
        case.kubernetes().revision = revision;
        case.facts
    }

    /// Slurm's and Kubernetes' counter, and the domains that are noticed, with was and is.
    type Row = (Option<u32>, Option<u64>, &'static [(Domain, u64, u64)]);

    #[test]
    fn only_a_counter_that_goes_down_is_noticed() {
        use Domain::{Kubernetes, Slurm};
        let before = Counters { slurm: Some(100), kubernetes: Some(5_000) };
        let rows: [Row; 6] = [
            (Some(100), Some(5_000), &[]),
            (Some(101), Some(5_001), &[]),
            (None, None, &[]),
            (Some(99), Some(5_001), &[(Slurm, 100, 99)]),
            (Some(101), Some(4_999), &[(Kubernetes, 5_000, 4_999)]),
            (Some(1), Some(1), &[(Slurm, 100, 1), (Kubernetes, 5_000, 1)]),
        ];
        let mut book = Book::default();
        book.apply(2, at(0), &Event::Counted { counters: before }).unwrap();
        for (job, revision, expected) in rows {
            let first = expected.first().map(|(domain, _, _)| *domain);
            assert_eq!(Counters::of(&facts(job, revision)).below(before), first, "{job:?} {revision:?}");
            let expected: Vec<Event> = expected
                .iter()
                .map(|(domain, was, is)| Event::TimeRanBackwards { domain: *domain, was: *was, is: *is })
                .collect();
            assert_eq!(
                notices(&book, before, &facts(job, revision), at(0)),
                expected,
                "{job:?} {revision:?}"
            );
        }
        let first = notices(&book, Counters::default(), &facts(Some(1), Some(1)), at(0));
        assert_eq!(first, [], "nothing to compare with");
    }

    /// The daemon was started between backup and restore: only the ledger knows how far the counters had come.
    #[test]
    fn the_ledger_remembers_how_far_the_counters_had_come() {
        let mut book = Book::default();
        let shown = facts(Some(100), Some(5_000));
        let counted = notices(&book, Counters::default(), &shown, at(0));
        assert_eq!(counted, [Event::Counted { counters: Counters::of(&shown) }]);
        book.apply(2, at(0), &counted[0]).unwrap();
        assert_eq!(
            notices(&book, book.backwards.counters, &facts(Some(101), None), at(0)),
            [],
            "not each tick"
        );
        let later = at(0) + RECORDED_EVERY;
        let counters = Counters { slurm: Some(101), kubernetes: Some(5_000) };
        let after_an_hour = notices(&book, book.backwards.counters, &facts(Some(101), None), later);
        assert_eq!(after_an_hour, [Event::Counted { counters }], "what can't be seen stays known");
        let restored = notices(&book, book.backwards.counters, &facts(Some(40), Some(6_000)), at(0));
        assert_eq!(restored, [Event::TimeRanBackwards { domain: Domain::Slurm, was: 100, is: 40 }]);
        book.apply(3, at(0), &restored[0]).unwrap();
        assert_eq!(
            notices(&book, book.backwards.counters, &facts(Some(41), Some(6_000)), at(0)),
            [],
            "told once"
        );
    }

    #[test]
    fn the_alarm_stays_on_for_a_day() {
        let mut backwards = Backwards::default();
        assert_eq!(backwards.alarm(Domain::Slurm, at(0)), None);
        backwards.went_down(at(0), Domain::Slurm, 40);
        assert!(backwards.alarm(Domain::Slurm, at(0) + ALARM / 2).is_some());
        assert_eq!(backwards.alarm(Domain::Slurm, at(0) + ALARM), None);
        assert_eq!(backwards.alarm(Domain::Kubernetes, at(0)), None);
    }
}
