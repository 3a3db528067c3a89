//! Import: what to believe of marks of ours that no ledger explains (a lost disk, a restored or cut ledger, a second head
//! node). They are adopted as they stand, fail closed; ids that they carry are never given out again.

use std::collections::BTreeSet;

use crate::book::{Book, Management};
use crate::event::Event;
use crate::facts::Facts;
use crate::gate::{self, slurm::Drain};
use crate::ids::{Epoch, HandoverId, NodeName};
use crate::mark::{HandoverAnnotation, STEP_QUARANTINE, reservation_handover};
use crate::model::{Domain, Node, Site};

/// Why a node is in quarantine whose ledger ends one and begins no adoption.
const NEVER_BEGAN: &str = "its quarantine was ended for an adoption that never began";
/// Why a node is in quarantine whose marks know of one and whose ledger does not.
const TOLD_BY_MARKS: &str =
    "its marks tell of a quarantine, and the ledger does not: it could not be written, or was lost";

/// The events that import every managed-looking node, and the highest id and epoch seen in any mark.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Import {
    /// What goes to the ledger.
    pub events: Vec<Event>,
    /// The highest epoch seen: a new leadership begins above it.
    pub highest_epoch: Option<Epoch>,
}

/// Of these nodes, those that a later look must show: nodes that are nobody's by the ledger, and that this one does not show
/// on both sides.
pub fn unread(site: &Site, book: &Book, facts: &Facts, of: &BTreeSet<NodeName>) -> BTreeSet<NodeName> {
    let waits = |name: &&NodeName| {
        let unmanaged = book.record(name).management == Management::Unmanaged;
        site.nodes.get(*name).is_some_and(|node| unmanaged && !is_shown(node, facts))
    };
    of.iter().filter(waits).cloned().collect()
}

/// Does this look show one of these nodes on both sides?
pub fn shows_any(site: &Site, facts: &Facts, of: &BTreeSet<NodeName>) -> bool {
    of.iter().filter_map(|name| site.nodes.get(name)).any(|node| is_shown(node, facts))
}

fn is_shown(node: &Node, facts: &Facts) -> bool {
    gate::slurm::find(&facts.slurm, &node.slurm).is_ok()
        && gate::kubernetes::find(&facts.kubernetes, &node.kubernetes).is_ok()
}

/// Reads the marks of these nodes off a look at both sides, where it shows them. `None` while one side can't be seen: then
/// nothing can be imported yet.
pub fn import(site: &Site, book: &Book, facts: &Facts, of: &BTreeSet<NodeName>) -> Option<Import> {
    let slurm = facts.slurm.value()?;
    facts.kubernetes.value()?;
    let mut import = Import::default();
    let mut highest: Option<HandoverId> =
        slurm.reservations.keys().filter_map(|name| reservation_handover(name)).max();
    for node in site.nodes.values() {
        let marks = marks_of(node, facts);
        highest = highest.max(marks.slurm).max(marks.kubernetes);
        if of.contains(&node.name) {
            import.highest_epoch = import.highest_epoch.max(marks.epoch);
        }
        // What the ledger tells of a node is believed before its marks are, unless they are newer ([`doubts`]).
        if book.record(&node.name).management == Management::Unmanaged
            && of.contains(&node.name)
            && is_shown(node, facts)
        {
            let ended = book.record(&node.name).adopted_from_quarantine;
            let doubt = ended.then(|| NEVER_BEGAN.to_owned()).or_else(|| of_another(book, node, &marks));
            import.events.extend(events(site, node, &marks, doubt.as_deref()));
        }
    }
    let seen = highest.filter(|highest| Some(*highest) > book.highest_handover);
    let seen = seen.map(|highest| Event::IdsSeen { highest });
    // Doubts first: once the ids are on record, the marks are no longer newer than the ledger.
    let first = doubts(site, book, facts).into_iter().chain(seen);
    import.events = first.chain(import.events).collect();
    Some(import)
}

/// Quarantines for managed nodes with marks that are newer than the ledger, of another node's handover, or that tell of a
/// quarantine which the ledger could not be told of. Needs no more than one side: what the ledger wants on the side that is
/// seen must not be done while the other is away.
pub fn doubts(site: &Site, book: &Book, facts: &Facts) -> Vec<Event> {
    let doubt = |node: &Node| {
        let record = book.record(&node.name);
        let marks = marks_of(node, facts);
        if record.management == Management::Unmanaged || record.quarantine.is_some() {
            return None;
        }
        let newest = marks.slurm.max(marks.kubernetes)?;
        // Those of an older handover are left over from a quarantine that an adoption ends.
        let untold = marks.quarantined.is_some() && marks.quarantined == record.marked_by();
        let why = if Some(newest) > book.highest_handover {
            format!("its marks name {newest}, which the ledger does not know: the ledger is older")
        } else if untold {
            TOLD_BY_MARKS.to_owned()
        } else {
            of_another(book, node, &marks)?
        };
        Some(Event::Quarantined { node: node.name.clone(), why })
    };
    site.nodes.values().filter_map(doubt).collect()
}

/// Why a node's marks are another one's: the configuration pairs a name in Slurm with a name in Kubernetes, and after an
/// edit that shifts them one host would be judged by another's marks.
fn of_another(book: &Book, node: &Node, marks: &Marks) -> Option<String> {
    let sides = [("Slurm", marks.slurm), ("Kubernetes", marks.kubernetes)];
    sides.into_iter().find_map(|(side, mark)| {
        let handover = book.handovers.get(&mark?)?;
        (handover.node != node.name).then(|| {
            format!(
                "its marks in {side} are of {}, a handover of node {}: do `slurm` and `kubernetes` of both nodes name \
                 the same host?",
                handover.id, handover.node
            )
        })
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    slurm: Option<HandoverId>,
    kubernetes: Option<HandoverId>,
    /// Closing marks stand on the Kubernetes side (not only a label or an annotation).
    kubernetes_closed: bool,
    /// The handover of marks that tell of a quarantine.
    quarantined: Option<HandoverId>,
    epoch: Option<Epoch>,
}

fn marks_of(node: &Node, facts: &Facts) -> Marks {
    let mut marks = Marks::default();
    if let Ok(seen) = gate::slurm::find(&facts.slurm, &node.slurm)
        && let Drain::Ours(reason) = seen.drain
    {
        marks.slurm = Some(reason.handover);
        marks.epoch = Some(reason.epoch);
    }
    if let Ok(seen) = gate::kubernetes::find(&facts.kubernetes, &node.kubernetes) {
        let annotation = seen.node.handover_annotation.as_deref().and_then(HandoverAnnotation::parse);
        // On the list alone is any node of the inventory, where somebody made a Gate anew: no word about whose it is.
        marks.kubernetes_closed = seen.standing.draining || (seen.standing.listed && annotation.is_some());
        if let Some(annotation) = annotation {
            marks.kubernetes = Some(annotation.handover);
            marks.quarantined = (annotation.step == STEP_QUARANTINE).then_some(annotation.handover);
            marks.epoch = marks.epoch.max(Some(annotation.epoch));
        }
    }
    marks
}

/// What brings a node with our marks back; `doubt` is what the ledger has against trusting it.
fn events(site: &Site, node: &Node, marks: &Marks, doubt: Option<&str>) -> Vec<Event> {
    let closed_slurm = marks.slurm;
    let closed_kubernetes = if marks.kubernetes_closed { marks.kubernetes } else { None };
    let (owner, both) = match (closed_slurm, marks.kubernetes_closed) {
        (None, false) => return Vec::new(),
        (Some(_), false) => (Domain::Kubernetes, None),
        (None, true) => (Domain::Slurm, None),
        (Some(_), true) => {
            (Domain::Slurm, Some("both sides bear our marks, and no ledger tells whose it is"))
        }
    };
    let doubt = doubt.or(marks.quarantined.map(|_| TOLD_BY_MARKS)).or(both);
    let pool = site
        .pools
        .get(&node.home)
        .filter(|pool| pool.domain() == owner)
        .or_else(|| site.pools.values().find(|pool| pool.domain() == owner))
        .map_or_else(|| node.home.clone(), |pool| pool.name.clone());
    let imported = Event::Imported {
        node: node.name.clone(),
        owner,
        slurm_closed_by: closed_slurm,
        kubernetes_closed_by: closed_kubernetes,
        pool,
    };
    let quarantined = doubt.map(|why| Event::Quarantined { node: node.name.clone(), why: why.to_owned() });
    // In doubt first: a crash between the two must not leave the node managed and trusted.
    quarantined.into_iter().chain([imported]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::*;

    fn quarantines(import: &Import) -> Vec<usize> {
        let is = |event: &Event| matches!(event, Event::Quarantined { .. });
        import.events.iter().enumerate().filter(|(_, event)| is(event)).map(|(place, _)| place).collect()
    }

    /// Crash between the two events: the node was managed, never quarantined, and its pods got NoExecute.
    fn all(case: &Case) -> BTreeSet<NodeName> {
        case.site.nodes.keys().cloned().collect()
    }

    /// An administrator's comment made the node unreadable in the first look, and its marks were never read after that: a
    /// node of Kubernetes' stayed unmanaged, watched by nobody.
    #[test]
    fn marks_of_a_node_that_could_not_be_read_are_imported_later() {
        let mut case = Case::of_kubernetes();
        let mut unread = all(&case);
        let node = case.slurm().nodes.shift_remove(&s(1)).unwrap();
        case.slurm().unreadable_nodes.insert(s(1), "two states at once".into());
        let first = import(&case.site, &Book::default(), &case.facts, &unread).unwrap();
        assert!(!first.events.iter().any(|event| event.about().node == Some(&n(1))), "{first:?}");
        unread = super::unread(&case.site, &Book::default(), &case.facts, &unread);
        assert_eq!(unread, [n(1)].into());
        assert!(!shows_any(&case.site, &case.facts, &unread));
        case.slurm().unreadable_nodes.clear();
        case.slurm().nodes.insert(s(1), node);
        assert!(shows_any(&case.site, &case.facts, &unread));
        let later = import(&case.site, &Book::default(), &case.facts, &unread).unwrap();
        let owner = later.events.iter().find_map(|event| match event {
            Event::Imported { node, owner, .. } if *node == n(1) => Some(*owner),
            _ => None,
        });
        assert_eq!(owner, Some(Domain::Kubernetes), "{later:?}");
        // Marks of the other nodes, ours of this epoch among them, say nothing of those that are read now.
        let nobody = import(&case.site, &Book::default(), &case.facts, &BTreeSet::new()).unwrap();
        assert!(!nobody.events.iter().any(|event| matches!(event, Event::Imported { .. })), "{nobody:?}");
        assert_eq!((first.highest_epoch, nobody.highest_epoch), (Some(Epoch(1)), None));
    }

    #[test]
    fn doubt_is_recorded_before_the_import_that_it_is_about() {
        let mut case = Case::of_slurm();
        let now = case.now;
        close_slurm(case.slurm(), 1, CURRENT, now);
        let import = import(&case.site, &Book::default(), &case.facts, &all(&case)).unwrap();
        let of_n1 = |event: &Event| matches!(event, Event::Imported { node, .. } if *node == n(1));
        let imported = import.events.iter().position(of_n1).unwrap();
        assert_eq!(quarantines(&import), [imported - 1]);
    }

    /// An older ledger, restored: by it the node was still Slurm's, and its pods got NoExecute without an eviction.
    #[test]
    fn marks_that_are_newer_than_the_ledger_quarantine_the_node() {
        let mut book = Book { highest_handover: Some(EARLIER), ..Book::default() };
        for i in 1..=4 {
            book.nodes.insert(n(i), managed(Domain::Slurm, "train"));
        }
        let mut case = Case::of_slurm();
        assert_eq!(quarantines(&import(&case.site, &book, &case.facts, &all(&case)).unwrap()), [0_usize; 0]);
        let now = case.now;
        close_slurm(case.slurm(), 1, CURRENT, now);
        open_kubernetes(case.kubernetes(), 1, CURRENT);
        let import = import(&case.site, &book, &case.facts, &all(&case)).unwrap();
        assert_eq!(quarantines(&import), [0], "{import:?}");
        assert_eq!(import.events[1..], [Event::IdsSeen { highest: CURRENT }], "after the doubt");
        // With one side away nothing is imported, and what is seen is in doubt all the same.
        case.facts.slurm = crate::facts::Seen::unknown("away");
        assert_eq!(super::import(&case.site, &book, &case.facts, &all(&case)), None);
        assert_eq!(doubts(&case.site, &book, &case.facts).len(), 1);
    }

    /// The disk was full when both gates were seen open, and the daemon was killed: by the ledger the node was still fine.
    #[test]
    fn marks_that_tell_of_a_quarantine_bring_it_back() {
        let marked = |by: HandoverId, step: &str| {
            let mut case = Case::of_slurm();
            let annotation = HandoverAnnotation { handover: by, epoch: Epoch(1), step: step.to_owned() };
            let node = case.kubernetes().nodes.get_mut(&k(1)).unwrap();
            node.handover_annotation = Some(annotation.to_string());
            case
        };
        let mut book = Book { highest_handover: Some(CURRENT), ..Book::default() };
        book.nodes.insert(n(1), managed(Domain::Slurm, "train"));
        book.nodes.entry(n(1)).or_default().kubernetes_closed_by = Some(CURRENT);
        for (by, step, count) in
            [(CURRENT, STEP_QUARANTINE, 1), (EARLIER, STEP_QUARANTINE, 0), (CURRENT, "closed", 0)]
        {
            let case = marked(by, step);
            assert_eq!(doubts(&case.site, &book, &case.facts).len(), count, "{by} {step}");
        }
        let case = marked(CURRENT, STEP_QUARANTINE);
        assert_eq!(
            quarantines(&import(&case.site, &Book::default(), &case.facts, &all(&case)).unwrap()).len(),
            1,
            "no ledger"
        );
    }

    /// The configuration paired names anew, shifted by one: a node was judged by another host's marks, and its Kubernetes
    /// side opened while Slurm ran jobs on that host.
    #[test]
    fn marks_of_another_nodes_handover_quarantine_both() {
        let mut case = Case::of_slurm();
        let now = case.now;
        let (lent, kept) = (HandoverId(11), HandoverId(12));
        let mut book = Book { highest_handover: Some(kept), ..Book::default() };
        for i in 1..=4 {
            book.nodes.insert(n(i), managed(Domain::Slurm, "train"));
        }
        book.nodes.insert(n(2), managed(Domain::Kubernetes, "burst"));
        for (id, i) in [(lent, 2), (kept, 3)] {
            book.handovers.insert(id, handover(id, i, Domain::Kubernetes, crate::handover::State::Open));
        }
        close_slurm(case.slurm(), 2, lent, now);
        open_kubernetes(case.kubernetes(), 2, lent);
        close_kubernetes(case.kubernetes(), 3, kept);
        let quarantined = |case: &Case| doubts(&case.site, &book, &case.facts).len();
        assert_eq!(quarantined(&case), 0);
        let name = |case: &Case, i| case.site.nodes[&n(i)].kubernetes.clone();
        let (second, third) = (name(&case, 2), name(&case, 3));
        case.site.nodes.get_mut(&n(2)).unwrap().kubernetes = third;
        case.site.nodes.get_mut(&n(3)).unwrap().kubernetes = second;
        let doubts = doubts(&case.site, &book, &case.facts);
        assert_eq!(doubts.len(), 2, "{doubts:?}");
        let Event::Quarantined { node, why } = &doubts[0] else { panic!("{doubts:?}") };
        assert!(
            *node == n(2) && why.contains("marks in Kubernetes are of h0012, a handover of node n3"),
            "{why}"
        );
    }

    /// The Gate was made anew with the whole inventory on it: nodes that nobody adopted got NoExecute.
    #[test]
    fn a_node_that_is_only_on_the_list_is_not_imported() {
        let mut case = Case::of_slurm();
        let everyone = case.site.nodes.values().map(|node| node.kubernetes.clone()).collect();
        for node in case.kubernetes().nodes.values_mut() {
            node.handover_annotation = None;
            node.taints.clear();
        }
        case.kubernetes().gate.as_mut().unwrap().closed = everyone;
        let imported = import(&case.site, &Book::default(), &case.facts, &all(&case)).unwrap();
        assert_eq!(imported.events, [], "{imported:?}");
    }

    /// The disk was full right after the first line of an adoption out of quarantine: the next start took the marks for the
    /// truth, and NoExecute went on a node that pods ran on.
    #[test]
    fn an_adoption_that_never_began_leaves_the_quarantine() {
        let case = Case::of_slurm();
        let mut book = Book::default();
        assert_eq!(quarantines(&import(&case.site, &book, &case.facts, &all(&case)).unwrap()), [0_usize; 0]);
        book.nodes.entry(n(1)).or_default().adopted_from_quarantine = true;
        let import = import(&case.site, &book, &case.facts, &all(&case)).unwrap();
        let of_n1 = |event: &Event| matches!(event, Event::Imported { node, .. } if *node == n(1));
        let imported = import.events.iter().position(of_n1).unwrap();
        assert_eq!(quarantines(&import), [imported - 1]);
    }
}
