//! Policies of the simulator: windows that need nodes some time ahead, and one that changes its mind.

use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge::daemon::decider::Decider;
use gpu_bridge::policy::abi;
use gpu_bridge_core::ids::PolicyName;

use super::dice::Dice;

/// The pool that borrows nodes.
pub(super) const BURST: &str = "gpu-burst";

/// Nodes wanted over some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    from: i64,
    until: i64,
    lead: i64,
    count: u32,
}

/// Wants what its spans say.
#[derive(Debug, Clone)]
pub(super) struct Spans {
    pub(super) name: &'static str,
    pub(super) spans: Vec<Span>,
}

impl Spans {
    /// A few windows over the time from `start` to `end`, in seconds since 1970.
    pub(super) fn windows(dice: &mut Dice, start: i64, end: i64, nodes: i64) -> Self {
        let mut spans = Vec::new();
        let mut at = start + dice.within(60..1200);
        while at < end {
            let until = at + dice.within(300..3600);
            let count = u32::try_from(dice.within(1..nodes + 1)).unwrap_or(1);
            spans.push(Span { from: at, until: until.min(end), lead: dice.within(60..1800), count });
            at = until + dice.within(120..2400);
        }
        Self { name: "windows", spans }
    }

    /// Wants that last a minute or two and contradict each other.
    pub(super) fn flips(dice: &mut Dice, start: i64, end: i64, nodes: i64) -> Self {
        let mut spans = Vec::new();
        let mut at = start + 300;
        while at < end {
            let until = at + dice.within(30..600);
            let count = u32::try_from(dice.within(0..nodes + 1)).unwrap_or(0);
            spans.push(Span { from: at, until: until.min(end), lead: 0, count });
            at = until;
        }
        Self { name: "flips", spans }
    }
}

#[async_trait]
impl Decider for Spans {
    fn name(&self) -> PolicyName {
        PolicyName::new(self.name)
    }

    async fn decide(&self, snapshot: Arc<abi::Snapshot>) -> Result<Vec<abi::Proposal>, String> {
        let now = snapshot.now;
        let pool = snapshot.pools.iter().position(|pool| pool.name == BURST).ok_or("no such pool")?;
        let on = self
            .spans
            .iter()
            .filter(|span| span.count > 0 && span.from - span.lead <= now && now < span.until);
        Ok(on
            .map(|span| abi::Proposal {
                kind: abi::kind::WANT_READY,
                pool: u32::try_from(pool).unwrap_or(0),
                count: span.count,
                nodes: Vec::new(),
                from: span.from,
                until: span.until,
                priority: 1,
                reason: format!("{} {}", self.name, span.from),
            })
            .collect())
    }
}
