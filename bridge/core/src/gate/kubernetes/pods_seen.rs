//! GPU pods that were seen on a node, and what is known of their end. An object that is gone proves nothing: a pod that is
//! force-deleted goes from the LIST at once, and so does one that a restored etcd has forgotten, while a live kubelet lets
//! its containers end by their grace. So each pod is noted, and holds the node until its containers were seen terminated,
//! or until its kubelet has had the time to end them. That time is told by the kubelet's Leases, on its own clock alone:
//! a first renewal after the pod was told to end (or was gone) shows that the kubelet can know of it, and one a grace later
//! that it lived through that. It does not know of pods that no look of the handover showed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::facts::kubernetes::{Eviction, NodeLook, Pod};

/// Beyond a pod's grace: what a kubelet needs to hear of an end, and to kill and reap what did not end by itself.
pub const KILL_MARGIN: SignedDuration = SignedDuration::from_secs(5);

/// Pods that were seen, by UID.
pub type PodsSeen = BTreeMap<String, PodSeen>;

/// A GPU pod that was seen on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSeen {
    /// `namespace/name`, for people.
    pub pod: String,
    /// How long its containers may take to end, in seconds.
    pub grace_s: u32,
    /// What is known of its end.
    pub end: End,
}

/// What is known of a pod's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Nothing: it runs.
    Runs,
    /// It was told to end, or its object is gone.
    Told {
        /// The kubelet's Lease when that was first seen.
        lease: Option<Timestamp>,
    },
    /// Its kubelet was there after that, so its grace runs.
    Known {
        /// The first Lease that showed it.
        since: Timestamp,
    },
    /// Its containers were seen terminated.
    Seen,
}

/// A kubelet's Lease around a look (its renewTime, by its own clock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    /// Read before the pods were listed: what it shows was so by then.
    pub before: Option<Timestamp>,
    /// The newest that is known, read after the pods were listed where that could be: renewals up to it prove nothing of
    /// what the look showed.
    pub newest: Option<Timestamp>,
}

/// What a look adds to what is known.
pub fn news(seen: &PodsSeen, look: &NodeLook, leases: Leases) -> PodsSeen {
    let listed: BTreeMap<&str, &Pod> = super::holding_pods(look)
        .filter(|pod| pod.eviction != Eviction::Nominated)
        .map(|pod| (pod.pod.uid.as_str(), pod))
        .collect();
    let first = listed.iter().filter(|(uid, _)| !seen.contains_key(**uid)).map(|(uid, pod)| {
        let end = if pod.told_to_end { End::Told { lease: leases.newest } } else { End::Runs };
        ((*uid).to_owned(), noted(pod, end))
    });
    let again = seen.iter().filter_map(|(uid, known)| {
        let pod = listed.get(uid.as_str());
        let end = match (pod, known.end) {
            (None, _) if look.ended.contains(uid) => End::Seen,
            // Listed as running after it was told to end: an etcd that was restored. Its grace begins anew.
            (Some(pod), _) if !pod.told_to_end => End::Runs,
            (Some(_), End::Seen) | (_, End::Runs | End::Told { lease: None }) => {
                End::Told { lease: leases.newest }
            }
            (_, End::Told { lease: Some(lease) }) => match leases.before {
                Some(since) if since > lease => End::Known { since },
                Some(_) | None => known.end,
            },
            (_, End::Known { .. }) | (None, End::Seen) => known.end,
        };
        let now = match (pod, known.end) {
            // Until it is told to end, what its object says; from then on what was said first: it only gets shorter.
            (Some(pod), End::Runs) => noted(pod, end),
            (Some(_) | None, _) => PodSeen { end, ..known.clone() },
        };
        (now != *known).then(|| (uid.clone(), now))
    });
    first.chain(again).collect()
}

fn noted(pod: &Pod, end: End) -> PodSeen {
    PodSeen { pod: format!("{}/{}", pod.pod.namespace, pod.pod.name), grace_s: pod.grace_s, end }
}

/// A pod whose containers may live, in words: by this look, and with the kubelet's Lease of `renewed`.
pub fn may_live(seen: &PodsSeen, look: &NodeLook, renewed: Option<Timestamp>) -> Option<String> {
    seen.iter().find_map(|(uid, seen)| {
        let grace = SignedDuration::from_secs(i64::from(seen.grace_s)) + KILL_MARGIN;
        let until = match seen.end {
            End::Seen => return None,
            End::Known { since } => Some(since.saturating_add(grace).unwrap_or(Timestamp::MAX)),
            End::Runs | End::Told { .. } => None,
        };
        let over = until.is_some_and(|until| renewed.is_some_and(|renewed| renewed >= until));
        (!over && !look.ended.contains(uid)).then(|| {
            let when = match until {
                Some(until) => format!("until the kubelet renews its Lease at {until} or later"),
                None => format!("for its grace of {} s, once the kubelet renewed its Lease", seen.grace_s),
            };
            format!("pod {} is gone and was not seen to end: its containers may live on {when}", seen.pod)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, holder, pod};

    const GRACE_S: u32 = 120;

    fn running() -> Pod {
        Pod { grace_s: GRACE_S, ..pod("a", Eviction::Allowed) }
    }

    fn told() -> Pod {
        Pod { told_to_end: true, eviction: Eviction::Terminating, ..running() }
    }

    fn listed(pods: &[Pod]) -> NodeLook {
        NodeLook { holders: pods.iter().cloned().map(holder).collect(), ..NodeLook::default() }
    }

    fn ended() -> NodeLook {
        NodeLook { ended: [running().pod.uid].into(), ..NodeLook::default() }
    }

    /// Looks with the Lease's minute before them and after.
    type Looks<'a> = &'a [(NodeLook, i64, i64)];

    fn after(looks: Looks<'_>) -> PodsSeen {
        let mut seen = PodsSeen::new();
        for (look, before, newest) in looks {
            let leases = Leases { before: Some(at(*before)), newest: Some(at(*newest)) };
            let news = news(&seen, look, leases);
            seen.extend(news);
            let again = super::news(&seen, look, leases);
            assert_eq!(again, PodsSeen::new(), "one look has news once: {look:?}");
        }
        seen
    }

    #[test]
    fn a_pod_that_is_gone_holds_until_its_kubelet_had_time_to_end_it() {
        let gone = NodeLook::default;
        let other =
            Pod { pod: crate::facts::kubernetes::PodRef { uid: "x".into(), ..running().pod }, ..running() };
        // The looks, and the first minute of a Lease (of those tried) with which it counts as ended.
        let rows: &[(&str, Looks<'_>, Option<i64>)] = &[
            ("never seen", &[(gone(), 1, 1)], Some(0)),
            ("runs", &[(listed(&[running()]), 1, 1)], None),
            ("just gone", &[(listed(&[running()]), 1, 1), (gone(), 1, 1)], None),
            (
                "gone, and the Lease is that of before",
                &[(listed(&[running()]), 1, 1), (gone(), 2, 3), (gone(), 3, 3)],
                None,
            ),
            (
                "gone, and the kubelet was there at 4",
                &[(listed(&[running()]), 1, 1), (gone(), 2, 3), (gone(), 4, 4)],
                Some(7),
            ),
            (
                "gone, and looked at for long",
                &[(listed(&[running()]), 1, 1), (gone(), 2, 2), (gone(), 4, 4), (gone(), 9, 9)],
                Some(7),
            ),
            (
                "told at 2, heard at 3, gone at 4",
                &[(listed(&[told()]), 2, 2), (listed(&[told()]), 3, 3), (gone(), 4, 4)],
                Some(6),
            ),
            ("told at 2, gone before it was heard", &[(listed(&[told()]), 2, 2), (gone(), 3, 3)], Some(6)),
            ("seen to end", &[(listed(&[running()]), 1, 1), (ended(), 2, 2), (gone(), 3, 3)], Some(0)),
            ("told, and seen to end", &[(listed(&[told()]), 1, 1), (ended(), 2, 2)], Some(0)),
            (
                "gone and back, by a restored etcd",
                &[(listed(&[running()]), 1, 1), (gone(), 2, 2), (gone(), 3, 3), (listed(&[running()]), 9, 9)],
                None,
            ),
            (
                "another pod of its name",
                &[(listed(&[running()]), 1, 1), (ended(), 2, 2), (listed(&[other]), 3, 3)],
                None,
            ),
        ];
        for (row, looks, expected) in rows {
            let seen = after(looks);
            let found = (0..20).find(|minute| may_live(&seen, &gone(), Some(at(*minute))).is_none());
            assert_eq!(found, *expected, "{row}: {seen:?}");
            assert_eq!(may_live(&seen, &gone(), None).is_none(), *expected == Some(0), "{row}: no Lease");
        }
    }

    #[test]
    fn a_nominated_pod_is_not_noted() {
        let nominated = Pod { eviction: Eviction::Nominated, ..running() };
        assert_eq!(after(&[(listed(&[nominated]), 1, 1)]), PodsSeen::new());
    }
}
