//! Adoption: taking an unmanaged (or quarantined) node under management. Decides who is to own it and what would be
//! closed for that, or why not; the closing itself is a handover with [`Purpose::Adoption`].

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::book::{Book, Management, Record};
use crate::denied::Denied;
use crate::event::Found;
use crate::facts::kubernetes::NodeLook;
use crate::facts::slurm::Index;
use crate::facts::{Facts, Seen};
use crate::gate;
use crate::handover::{Handover, Looks, Purpose, Requester, State};
use crate::ids::{Epoch, HandoverId, NodeName, PoolName};
use crate::mark::{DrainReason, LABEL_OWNER, TAINT_DRAINING, TAINT_RELEASED, TAINT_SLURM};
use crate::model::{Domain, Node, Site};
use crate::view::View;

/// Closing by hand takes this long at most before the adoption gives up and puts everything back.
pub const DEADLINE: SignedDuration = SignedDuration::from_mins(30);

/// What adopting one node would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// Which node.
    pub node: NodeName,
    /// Who is to own it.
    pub owner: Domain,
    /// The pool it is to serve.
    pub pool: PoolName,
    /// Work that Slurm has on it.
    pub slurm_work: Vec<String>,
    /// Work that Kubernetes has on it.
    pub kubernetes_work: Vec<String>,
    /// What would be written, for people.
    pub closes: String,
    /// How it looks now.
    pub found: Found,
    /// It ends a quarantine: then it never rolls back by itself.
    pub ends_quarantine: bool,
}

/// What adopting `node` would do, by a look of now; `owner` where a person names one.
pub fn propose(
    site: &Site,
    book: &Book,
    node: &Node,
    owner: Option<Domain>,
    facts: &Facts,
    look: &Seen<NodeLook>,
) -> Result<Adoption, Denied> {
    let record = book.record(&node.name);
    match (record.management, record.handover) {
        (Management::Unmanaged, None) => {}
        // What the quarantine caught (a handover, an adoption, a release) ends with it: nothing else could end either.
        (
            Management::Adopting | Management::Managed { .. } | Management::Releasing { .. },
            None | Some(_),
        ) if record.quarantine.is_some() => {}
        // It can't be put back as found, so with the wrong owner it would wait for ever: it begins anew with another one.
        (Management::Adopting, Some(under_way)) if restarts(book, &record, under_way, owner) => {}
        (
            Management::Unmanaged
            | Management::Adopting
            | Management::Managed { .. }
            | Management::Releasing { .. },
            Some(handover),
        ) => return Err(Denied::InHandover { node: node.name.clone(), handover }),
        (Management::Managed { owner } | Management::Releasing { owner, .. }, None) => {
            return Err(Denied::AlreadyThere { node: node.name.clone(), domain: owner });
        }
        (Management::Adopting, None) => {
            return Err(Denied::NotFit { why: "its adoption is under way".to_owned() });
        }
    }
    let in_slurm = gate::slurm::find(&facts.slurm, &node.slurm);
    let in_kubernetes = gate::kubernetes::find(&facts.kubernetes, &node.kubernetes);
    let not_in_kubernetes = in_kubernetes.as_ref().err().map(String::as_str).or(look.unknown_why());
    if let Some(why) = unseen(in_slurm.as_ref().err().map(String::as_str), not_in_kubernetes) {
        return Err(Denied::NotFit { why });
    }
    let (Ok(in_slurm), Ok(in_kubernetes), Some(look)) = (in_slurm, in_kubernetes, look.value()) else {
        return Err(Denied::NotFit { why: "it must be seen on both sides".to_owned() });
    };
    let slurm_work: Vec<String> = gate::slurm::jobs_on(&Index::new(&facts.slurm), &node.slurm)
        .keys()
        .map(|id| {
            facts
                .slurm
                .value()
                .and_then(|s| s.jobs.get(id))
                .map_or_else(|| format!("job {id}"), |job| format!("job {id} of {}", job.user))
        })
        .collect();
    let kubernetes_work: Vec<String> = look.holders.iter().map(gate::kubernetes::describe).collect();
    let home = site.pools.get(&node.home).ok_or_else(|| Denied::UnknownPool { pool: node.home.clone() })?;
    let both = || Denied::WorkOnBothSides {
        node: node.name.clone(),
        work: slurm_work.iter().chain(&kubernetes_work).cloned().collect::<Vec<_>>().join("; "),
    };
    let owner = match (owner, slurm_work.is_empty(), kubernetes_work.is_empty()) {
        (_, false, false) => return Err(both()),
        (Some(owner), _, _) => owner,
        (None, false, true) => Domain::Slurm,
        (None, true, false) => Domain::Kubernetes,
        (None, true, true) => home.domain(),
    };
    let blocking = match owner {
        Domain::Slurm => &kubernetes_work,
        Domain::Kubernetes => &slurm_work,
    };
    if !blocking.is_empty() {
        let emptiness = gate::Emptiness::Busy { by: blocking.clone() };
        return Err(Denied::NotEmpty { domain: owner.other(), emptiness });
    }
    let pool = if home.domain() == owner {
        home.name.clone()
    } else {
        let first = site.pools.values().find(|pool| pool.domain() == owner);
        first.map(|pool| pool.name.clone()).ok_or_else(|| Denied::UnknownPool { pool: node.home.clone() })?
    };
    let found = match &record.found {
        // Adopted before and quarantined since: what was found is what was found then.
        Some(found) => found.clone(),
        None => found(site, in_slurm, in_kubernetes),
    };
    let closes = match owner {
        Domain::Slurm => format!(
            "puts {} on the Gate's closed list and sets {TAINT_DRAINING}:NoSchedule, then {TAINT_SLURM}:NoExecute",
            node.kubernetes
        ),
        Domain::Kubernetes => {
            let over = match &found.slurm_drain {
                Some(reason) if DrainReason::parse(reason).is_none() => {
                    format!(", over the drain found there ({reason:?}), which comes back at its return")
                }
                Some(_) | None => String::new(),
            };
            format!("reserves {} for root (MAINT) and drains it{over}", node.slurm)
        }
    };
    Ok(Adoption {
        node: node.name.clone(),
        owner,
        pool,
        slurm_work,
        kubernetes_work,
        closes,
        found,
        // Also where the daemon stopped, or the ledger failed, between the quarantine's end and the adoption's beginning.
        ends_quarantine: record.quarantine.is_some() || record.adopted_from_quarantine,
    })
}

/// That a node is not seen on a side, or on both, by why not; `None` where it is seen on both.
pub fn unseen(slurm: Option<&str>, kubernetes: Option<&str>) -> Option<String> {
    let sides = [(Domain::Slurm, slurm), (Domain::Kubernetes, kubernetes)];
    let sides = sides.into_iter().filter_map(|(domain, why)| Some(format!("not in {domain} ({})", why?)));
    let sides: Vec<String> = sides.collect();
    (!sides.is_empty()).then(|| format!("it must be seen on both sides, and is {}", sides.join(" and ")))
}

/// Does an adoption out of quarantine begin anew? Only for a person who names another owner than it has.
fn restarts(book: &Book, record: &Record, under_way: HandoverId, owner: Option<Domain>) -> bool {
    let another = |handover: &Handover| owner.is_some_and(|owner| owner != handover.to);
    record.adopted_from_quarantine && book.handovers.get(&under_way).is_some_and(another)
}

fn found(
    site: &Site,
    in_slurm: gate::slurm::SeenNode<'_>,
    in_kubernetes: gate::kubernetes::SeenNode<'_>,
) -> Found {
    let gate::kubernetes::SeenNode { node: kube_node, standing, .. } = in_kubernetes;
    // Marks of ours without a record are left-overs, but what they close was found closed, so they stay where the adoption
    // comes to nothing.
    let slurm_drain = in_slurm.our_reason().or(match in_slurm.drain {
        gate::slurm::Drain::Theirs { text, .. } => Some(text),
        gate::slurm::Drain::Ours(_) | gate::slurm::Drain::None => None,
    });
    let closing = [TAINT_RELEASED, TAINT_SLURM, TAINT_DRAINING];
    let pool_taints: BTreeSet<&str> = site.pool_taint_keys().collect();
    let pool_labels: BTreeSet<&str> = site.pool_label_keys().collect();
    Found {
        slurm_drain,
        taints: kube_node
            .taints
            .iter()
            .filter(|t| pool_taints.contains(t.key.as_str()) || closing.contains(&t.key.as_str()))
            .cloned()
            .collect(),
        labels: kube_node
            .labels
            .iter()
            .filter(|(key, _)| pool_labels.contains(key.as_str()) && *key != LABEL_OWNER)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        annotation: None,
        listed: standing.listed,
    }
}

/// Did its people lift the drain that was found on the node? Told only while no drain of ours can stand over theirs: a node
/// that is Slurm's, and before a handover drains it.
pub fn drain_was_lifted(view: &View<'_>) -> bool {
    if view.record.found.as_ref().is_none_or(|found| found.slurm_drain.is_none()) {
        return false;
    }
    let before_ours = match view.record.management {
        Management::Managed { owner: Domain::Slurm } => view.handover.is_none_or(is_not_drained_yet),
        // On its way to Slurm by adoption: that side is not touched.
        Management::Adopting => view.handover.is_some_and(|h| h.to == Domain::Slurm || is_not_drained_yet(h)),
        Management::Managed { owner: Domain::Kubernetes }
        | Management::Unmanaged
        | Management::Releasing { .. } => false,
    };
    let drained = match &view.in_slurm {
        Ok(seen) => seen.drain != gate::slurm::Drain::None,
        Err(_) => true,
    };
    before_ours && view.record.quarantine.is_none() && !drained
}

/// To Kubernetes, and before a DRAIN of ours is written.
fn is_not_drained_yet(handover: &Handover) -> bool {
    handover.state.leaves_gate_open() && handover.to == Domain::Kubernetes
}

impl Adoption {
    /// The handover that carries it out.
    pub fn handover(&self, id: HandoverId, epoch: Epoch, user: &str, now: Timestamp) -> Handover {
        let deadline = if self.ends_quarantine { crate::want::SEAL_LENGTH } else { DEADLINE };
        Handover {
            id,
            node: self.node.clone(),
            to: self.owner,
            purpose: Purpose::Adoption,
            pool: self.pool.clone(),
            why: format!("adopted for {}", self.owner),
            requester: Requester::Person { user: user.to_owned() },
            ticket: None,
            epoch,
            planned_at: now,
            reserve_at: now,
            start_at: now,
            deadline: now.saturating_add(deadline).unwrap_or(now),
            due_back: None,
            state: State::Planned,
            since: now,
            jobs_seen: gate::slurm::JobsSeen::new(),
            lease_at_last_holder: None,
            pods_seen: gate::kubernetes::PodsSeen::new(),
            looks: Looks::default(),
            late_since: None,
            node_uid: None,
            rollback: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::slurm::{NodeFlag, Reason};
    use crate::fixtures::*;

    fn drained(case: &mut Case, text: &str) {
        let node = case.slurm_node();
        node.flags.insert(NodeFlag::Drain);
        node.reason = Some(Reason { text: text.to_owned(), user: "olga".to_owned(), at: None });
    }

    fn found(drain: Option<&str>) -> Found {
        Found {
            slurm_drain: drain.map(str::to_owned),
            taints: Vec::new(),
            labels: std::collections::BTreeMap::new(),
            annotation: None,
            listed: false,
        }
    }

    /// A person who mends the one that is named would only then hear of the other.
    #[test]
    fn each_side_that_does_not_show_the_node_is_named() {
        let away = |why: &str| Some(why.to_owned());
        for (slurm, kubernetes, says) in [
            (away("ctl"), None, Some("not in slurm (ctl)")),
            (None, away("api"), Some("not in kubernetes (api)")),
            (away("ctl"), away("api"), Some("not in slurm (ctl) and not in kubernetes (api)")),
            (None, None, None),
        ] {
            let mut case = Case::of_slurm();
            if let Some(why) = &slurm {
                case.facts.slurm = Seen::unknown(why);
            }
            if let Some(why) = &kubernetes {
                case.facts.kubernetes = Seen::unknown(why);
                case.look = Seen::unknown(why);
            }
            let node = case.site.nodes[&n(1)].clone();
            let denied =
                propose(&case.site, &Book::default(), &node, Some(Domain::Slurm), &case.facts, &case.look);
            let says = says
                .map(|says| Denied::NotFit { why: format!("it must be seen on both sides, and is {says}") });
            assert_eq!(denied.err(), says);
        }
    }

    type Row = (&'static str, fn() -> Case, bool);

    /// It came back once, at the first return from Kubernetes.
    #[test]
    fn a_found_drain_is_lifted_only_where_no_drain_of_ours_could_hide_it() {
        let rows: [Row; 7] = [
            ("gone", Case::of_slurm, true),
            (
                "it stands",
                || {
                    let mut case = Case::of_slurm();
                    drained(&mut case, "bad fan");
                    case
                },
                false,
            ),
            (
                "Slurm unseen",
                || {
                    let mut case = Case::of_slurm();
                    case.facts.slurm = Seen::unknown("away");
                    case
                },
                false,
            ),
            ("with Kubernetes, ours stands over it", Case::of_kubernetes, false),
            (
                "with Kubernetes, and others took ours",
                || {
                    let mut case = Case::of_kubernetes();
                    case.slurm_node().flags.remove(&NodeFlag::Drain);
                    case
                },
                false,
            ),
            (
                "being drained, and others took ours",
                || {
                    let mut case = Case::to_kubernetes(State::Draining);
                    case.slurm_node().flags.remove(&NodeFlag::Drain);
                    case
                },
                false,
            ),
            (
                "not drained yet",
                || {
                    let mut case = Case::to_kubernetes(State::Reserved);
                    case.slurm_node().flags.remove(&NodeFlag::Drain);
                    case
                },
                true,
            ),
        ];
        for (what, case, expected) in rows {
            let mut case = case();
            case.record.found = Some(found(Some("bad fan")));
            case.judge(|view| assert_eq!(drain_was_lifted(view), expected, "{what}"));
            case.record.found = Some(found(None));
            case.judge(|view| assert!(!drain_was_lifted(view), "{what}, found without a drain"));
        }
    }
}
