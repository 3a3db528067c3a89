//! Left-overs: reservations that bear our name and guard nothing any more (a ledger that was lost or cut, a slurmctld that
//! started from an old backup, another gpu-bridge that was here). Decides which those are and what to tell people; nothing is
//! written on their behalf here. On a node that is Slurm's [`crate::want`] deletes them once a permit allows it. Elsewhere
//! they stay: on a node that nobody manages such a reservation may be the last guard of pods that no ledger knows of.

use std::collections::BTreeSet;

use crate::book::{Book, Management};
use crate::facts::slurm::{Reservation, Slurm};
use crate::ids::{HandoverId, NodeName, SlurmNodeName};
use crate::mark::reservation_handover;
use crate::model::{Domain, Site};

/// An alarm for each left-over, as (key, node, text); the node where it is of one in the inventory.
pub fn leftovers(site: &Site, book: &Book, slurm: &Slurm) -> Vec<(String, Option<NodeName>, String)> {
    // Those that close a node, or belong to a handover under way.
    let closers = book.nodes.values().filter_map(|record| record.slurm_closed_by);
    let guards: BTreeSet<HandoverId> = closers.chain(book.under_way().map(|handover| handover.id)).collect();
    let ours = slurm.reservations.values().filter_map(|r| Some((r, reservation_handover(&r.name)?)));
    ours.filter(|(_, of)| !guards.contains(of)).map(|(r, of)| alarm(site, book, r, of)).collect()
}

fn alarm(
    site: &Site,
    book: &Book,
    reservation: &Reservation,
    of: HandoverId,
) -> (String, Option<NodeName>, String) {
    let name = &reservation.name;
    let known = |slurm: &SlurmNodeName| site.nodes.values().find(|node| node.slurm == *slurm);
    let first = reservation.nodes.iter().find_map(known).map(|node| node.name.clone());
    let whose = if book.handovers.contains_key(&of) {
        format!("handover {of} is over")
    } else {
        format!("the ledger knows no handover {of}")
    };
    let slurms = reservation.nodes.iter().all(|slurm| {
        known(slurm).is_some_and(|node| {
            matches!(book.record(&node.name).management, Management::Managed { owner: Domain::Slurm })
        })
    });
    let then = if slurms && !reservation.nodes.is_empty() {
        "it is deleted as soon as the Slurm gate may be opened".to_owned()
    } else {
        let adopt = first.as_ref().map_or(String::new(), |node| format!("`gpu-bridge adopt {node}`, or "));
        format!(
            "if no other gpu-bridge works on this cluster and no pod is on these nodes: {adopt}`scontrol delete \
             ReservationName={name}`"
        )
    };
    let nodes: Vec<&str> = reservation.nodes.iter().map(SlurmNodeName::as_str).collect();
    let text = format!(
        "reservation {name} keeps jobs off {} until {} and guards nothing ({whose}): {then}",
        nodes.join(","),
        reservation.end
    );
    (format!("reservation/{name}"), first, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::*;
    use crate::handover::State;

    /// What is said of the reservations in a look, with the book's records and handovers as given.
    fn said(book: &Book, reservations: &[Reservation]) -> Vec<(String, Option<NodeName>, String)> {
        let named = reservations.iter().map(|r| (r.name.clone(), r.clone()));
        leftovers(&site(), book, &Slurm { reservations: named.collect(), ..Slurm::default() })
    }

    #[test]
    fn what_guards_a_node_or_is_not_ours_is_none() {
        let mut book = Book::default();
        let mut closed = managed(Domain::Kubernetes, "burst");
        closed.slurm_closed_by = Some(EARLIER);
        book.nodes.insert(n(1), closed);
        let mut moving = managed(Domain::Slurm, "train");
        moving.handover = Some(CURRENT);
        book.nodes.insert(n(2), moving);
        book.handovers.insert(CURRENT, handover(CURRENT, 2, Domain::Kubernetes, State::Reserved));
        let theirs = their_reservation("maint", 3, at(0), at(60));
        let theirs_too = their_reservation("gpu-bridge_hello", 3, at(0), at(60));
        let ours = [reservation_of_ours(EARLIER, 1, at(0)), reservation_of_ours(CURRENT, 2, at(0))];
        assert_eq!(said(&book, &[ours.to_vec(), vec![theirs, theirs_too]].concat()), []);
    }

    #[test]
    fn each_other_one_is_told_of_with_what_becomes_of_it() {
        let mut book = Book::default();
        book.nodes.insert(n(1), managed(Domain::Slurm, "train"));
        book.nodes.insert(n(2), managed(Domain::Kubernetes, "burst"));
        let over = HandoverId(3);
        book.handovers.insert(over, handover(over, 1, Domain::Kubernetes, State::RolledBack));
        let stranger = HandoverId(77);
        let mut gone = reservation_of_ours(stranger, 1, at(0));
        gone.nodes = [SlurmNodeName::from("n99")].into();
        let mut both = reservation_of_ours(stranger, 1, at(0));
        both.nodes = [s(1), s(3)].into();
        for (left, node, words) in [
            (reservation_of_ours(over, 1, at(0)), Some(n(1)), ["h0003 is over", "it is deleted as soon as"]),
            (
                reservation_of_ours(stranger, 1, at(0)),
                Some(n(1)),
                ["no handover h0077", "it is deleted as soon as"],
            ),
            // Kubernetes has the node, nobody manages it, it is in no inventory, or one of two is unmanaged: hands off.
            (
                reservation_of_ours(over, 2, at(0)),
                Some(n(2)),
                ["h0003 is over", "`gpu-bridge adopt n2`, or `scontrol"],
            ),
            (
                reservation_of_ours(stranger, 3, at(0)),
                Some(n(3)),
                ["keeps jobs off n3", "`gpu-bridge adopt n3`, or `scontrol"],
            ),
            (
                gone,
                None,
                ["keeps jobs off n99", "on these nodes: `scontrol delete ReservationName=gpu-bridge_h0077`"],
            ),
            (both, Some(n(1)), ["keeps jobs off n1,n3", "if no other gpu-bridge"]),
        ] {
            let said = said(&book, std::slice::from_ref(&left));
            let [(key, of, text)] = said.as_slice() else { panic!("{said:?}") };
            assert_eq!((key.as_str(), of), (format!("reservation/{}", left.name).as_str(), &node));
            assert!(words.iter().all(|words| text.contains(words)), "{text}");
        }
    }
}
