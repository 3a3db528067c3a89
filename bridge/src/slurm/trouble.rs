//! Something that is wrong for a while, look after look: decides when people hear of it, which is once when it begins and
//! once when it is over. It does not know what is wrong.

use std::sync::atomic::{AtomicBool, Ordering};

/// What to say of a trouble now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It begins.
    Begins,
    /// It was told before.
    GoesOn,
    /// It is over.
    Over,
    /// There is none.
    None,
}

/// One kind of trouble.
#[derive(Debug)]
pub(super) struct Trouble {
    what: &'static str,
    stands: AtomicBool,
}

impl Trouble {
    /// A trouble by this name, which does not stand.
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, stands: AtomicBool::new(false) }
    }

    /// After a look that showed it for this reason, or did not show it: logs what is to be said.
    pub(super) fn looked(&self, why: Option<&str>) {
        let (what, stands) = (self.what, why.is_some());
        let why = why.unwrap_or_default();
        match self.turn(stands) {
            Turn::Begins => tracing::warn!(%why, "{what}"),
            Turn::GoesOn => tracing::debug!(%why, "still: {what}"),
            Turn::Over => tracing::info!("no longer: {what}"),
            Turn::None => {}
        }
    }

    fn turn(&self, stands: bool) -> Turn {
        match (self.stands.swap(stands, Ordering::Relaxed), stands) {
            (false, true) => Turn::Begins,
            (true, true) => Turn::GoesOn,
            (true, false) => Turn::Over,
            (false, false) => Turn::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_when_it_begins_and_when_it_is_over() {
        let trouble = Trouble::new("it is wrong");
        let turns = [false, true, true, true, false, false, true].map(|stands| trouble.turn(stands));
        let expected =
            [Turn::None, Turn::Begins, Turn::GoesOn, Turn::GoesOn, Turn::Over, Turn::None, Turn::Begins];
        assert_eq!(turns, expected);
    }
}
