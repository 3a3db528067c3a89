//! What the calendar's windows want of a pool over time, as a step function. Knows of each window only the occurrence
//! that the snapshot shows as present or last, and the next. Whether there are nodes for it is not known here.

use std::collections::BTreeMap;

use crate::{Snapshot, Window, overlap};

/// A step: `count` nodes from `from` (included) until `until` (excluded), both in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First instant.
    pub from: i64,
    /// First instant after it.
    pub until: i64,
    /// Nodes; never 0.
    pub count: u32,
}

/// The occurrences of a window that the snapshot knows: present or last, and next. An empty one is none.
fn occurrences(window: &Window) -> impl Iterator<Item = (i64, i64)> {
    [(window.start, window.end), (window.next_start, window.next_end)]
        .into_iter()
        .filter_map(|(start, end)| Some((start?, end?)))
        .filter(|(start, end)| start < end)
}

/// Windows of `pool` with their positions.
fn of_pool(snapshot: &Snapshot, pool: u32) -> impl Iterator<Item = (usize, &Window)> {
    snapshot.windows.iter().enumerate().filter(move |(_, window)| window.pool == pool)
}

/// Nodes that the windows of `pool` which are on at instant `at` need, without lead and cool-down.
pub fn demand_at(snapshot: &Snapshot, pool: u32, at: i64) -> u32 {
    let on = |window: &Window| occurrences(window).any(|(start, end)| (start..end).contains(&at));
    let mut active = Active::default();
    for (_, window) in of_pool(snapshot, pool).filter(|(_, window)| on(window)) {
        active.begin(window.overlap, window.nodes);
    }
    active.count()
}

/// Windows for which nodes may be taken now: on, or starting within their own lead. With their positions.
pub fn windows_due(snapshot: &Snapshot) -> impl Iterator<Item = (usize, &Window)> {
    snapshot.windows.iter().enumerate().filter(|(_, window)| due(window, snapshot.now, window.lead))
}

/// Windows that are on, or start within `lead` seconds, whatever their own lead. With their positions.
pub fn windows_within(snapshot: &Snapshot, lead: u32) -> impl Iterator<Item = (usize, &Window)> {
    snapshot.windows.iter().enumerate().filter(move |(_, window)| due(window, snapshot.now, lead))
}

fn due(window: &Window, now: i64, lead: u32) -> bool {
    occurrences(window).any(|(start, end)| start.saturating_sub(lead.into()) <= now && now < end)
}

/// Windows of `pool` with an occurrence that, with its lead and cool-down, meets a span. With their positions.
pub fn windows_for(snapshot: &Snapshot, pool: u32, span: Span) -> impl Iterator<Item = (usize, &Window)> {
    of_pool(snapshot, pool).filter(move |(_, window)| {
        occurrences(window).any(|(start, end)| {
            start.saturating_sub(window.lead.into()) < span.until
                && end.saturating_add(window.cool_down.into()) > span.from
        })
    })
}

/// What is active at an instant: the numbers that add up, and how often each of those of which the largest counts.
#[derive(Default)]
struct Active {
    added: u64,
    largest: BTreeMap<u32, usize>,
}

impl Active {
    fn begin(&mut self, how: u8, nodes: u32) {
        if how == overlap::ADD {
            self.added += u64::from(nodes);
        } else {
            *self.largest.entry(nodes).or_default() += 1;
        }
    }

    fn end(&mut self, how: u8, nodes: u32) {
        if how == overlap::ADD {
            self.added -= u64::from(nodes);
        } else if let Some(times) = self.largest.get_mut(&nodes) {
            *times -= 1;
            if *times == 0 {
                self.largest.remove(&nodes);
            }
        }
    }

    /// The sum of those that add, plus the largest of the others. Saturates.
    fn count(&self) -> u32 {
        let largest = self.largest.last_key_value().map_or(0, |(nodes, _)| *nodes);
        u32::try_from(self.added + u64::from(largest)).unwrap_or(u32::MAX)
    }
}

/// What begins and ends at one instant.
#[derive(Default)]
struct Edge {
    /// How and how many.
    begin: Vec<(u8, u32)>,
    end: Vec<(u8, u32)>,
    /// Longest lead of what begins, longest cool-down of what ends.
    lead: u32,
    cool_down: u32,
}

/// What the windows of `pool` want, with lead and cool-down: a rise comes by the lead of the windows that begin there,
/// a fall waits for the cool-down of the windows that end there. Nodes that cool down serve a window that begins
/// meanwhile, so what is wanted is the largest number needed at once, never a sum over time. Ordered, no overlaps.
pub fn wanted(snapshot: &Snapshot, pool: u32) -> Vec<Span> {
    let mut edges: BTreeMap<i64, Edge> = BTreeMap::new();
    for (_, window) in of_pool(snapshot, pool) {
        for (start, end) in occurrences(window) {
            let edge = edges.entry(start).or_default();
            edge.begin.push((window.overlap, window.nodes));
            edge.lead = edge.lead.max(window.lead);
            let edge = edges.entry(end).or_default();
            edge.end.push((window.overlap, window.nodes));
            edge.cool_down = edge.cool_down.max(window.cool_down);
        }
    }
    let mut padded: BTreeMap<i64, Edge> = BTreeMap::new();
    for (piece, lead, cool_down) in pieces(&edges) {
        let count = (overlap::MAX, piece.count);
        padded.entry(piece.from.saturating_sub(lead.into())).or_default().begin.push(count);
        padded.entry(piece.until.saturating_add(cool_down.into())).or_default().end.push(count);
    }
    let mut result = vec![];
    for (piece, ..) in pieces(&padded) {
        append(&mut result, piece);
    }
    result
}

/// The steps between the edges, each with the lead of its first edge and the cool-down of its last. Stretches where
/// nothing is wanted are left out.
fn pieces(edges: &BTreeMap<i64, Edge>) -> Vec<(Span, u32, u32)> {
    let mut active = Active::default();
    let mut pieces = vec![];
    for ((from, first), (until, last)) in edges.iter().zip(edges.iter().skip(1)) {
        first.end.iter().for_each(|(how, nodes)| active.end(*how, *nodes));
        first.begin.iter().for_each(|(how, nodes)| active.begin(*how, *nodes));
        let count = active.count();
        if count > 0 {
            pieces.push((Span { from: *from, until: *until, count }, first.lead, last.cool_down));
        }
    }
    pieces
}

/// Appends a step, as part of the last one when that wants the same number.
fn append(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(last) if last.until == span.from && last.count == span.count => last.until = span.until,
        Some(_) | None => spans.push(span),
    }
}

/// Fills the valleys that are shorter than `gap` seconds, up to the lower of their two banks: nodes that would be given
/// back and taken again within a round trip stay. Expects and gives ordered spans without overlaps.
pub fn bridge_gaps(spans: &[Span], gap: u32) -> Vec<Span> {
    let mut filled: Vec<Span> = vec![];
    for span in spans {
        // The empty stretches are valleys, too.
        if let Some(from) = filled.last().map(|last| last.until).filter(|from| *from < span.from) {
            filled.push(Span { from, until: span.from, count: 0 });
        }
        // Each step closes the valley before it; filling that may make it part of a higher valley, which is closed in turn.
        while let [.., left, valley] = filled.as_mut_slice()
            && valley.count < left.count.min(span.count)
            && valley.until - valley.from < gap.into()
        {
            if left.count <= span.count {
                left.until = valley.until;
                filled.pop();
            } else {
                valley.count = span.count;
            }
        }
        append(&mut filled, *span);
    }
    filled.retain(|span| span.count > 0);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(list: &[(i64, i64, u32)]) -> Vec<Span> {
        list.iter().map(|&(from, until, count)| Span { from, until, count }).collect()
    }

    #[test]
    fn valleys_shorter_than_the_gap_are_filled_to_the_lower_bank() {
        type Steps = &'static [(i64, i64, u32)];
        let cases: &[(u32, Steps, Steps)] = &[
            (10, &[], &[]),
            (10, &[(0, 5, 3), (14, 20, 3)], &[(0, 20, 3)]),
            (10, &[(0, 5, 3), (15, 20, 3)], &[(0, 5, 3), (15, 20, 3)]),
            (0, &[(0, 5, 3), (6, 20, 3)], &[(0, 5, 3), (6, 20, 3)]),
            (10, &[(0, 5, 2), (9, 20, 3)], &[(0, 9, 2), (9, 20, 3)]),
            (10, &[(0, 5, 3), (9, 20, 2)], &[(0, 5, 3), (5, 20, 2)]),
            // A valley inside a valley: each level by its own length.
            (10, &[(0, 5, 3), (5, 8, 1), (8, 12, 2), (12, 20, 3)], &[(0, 20, 3)]),
            (6, &[(0, 5, 3), (5, 8, 1), (8, 12, 2), (12, 20, 3)], &[(0, 5, 3), (5, 12, 2), (12, 20, 3)]),
            (10, &[(0, 5, 1), (8, 9, 1), (12, 13, 1)], &[(0, 13, 1)]),
            (10, &[(0, 5, 5), (9, 12, 2), (12, 20, 6)], &[(0, 12, 5), (12, 20, 6)]),
            (6, &[(0, 5, 5), (9, 12, 2), (12, 20, 6)], &[(0, 5, 5), (5, 12, 2), (12, 20, 6)]),
            // Only the bottom of a wide valley is narrow.
            (5, &[(0, 5, 5), (9, 20, 3), (22, 30, 4)], &[(0, 5, 5), (5, 22, 3), (22, 30, 4)]),
        ];
        for (gap, before, after) in cases {
            assert_eq!(bridge_gaps(&spans(before), *gap), spans(after), "{before:?} with {gap}");
        }
    }
}
