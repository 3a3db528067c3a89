//! The simulator: the daemon's engine in virtual time against models of both schedulers, with random load, faults, people
//! and crashes, all from one seed. The checker knows what really runs on every node and believes nothing of what the
//! daemon says.
//!
//! [`run`] plays one seed. `world` has the models, what goes wrong on the way to them, and judges each change; `people` is
//! what happens by itself; `slurm` and `kubernetes` are the ports; `check` judges over many ticks; `mirror` reads the
//! ledger as a stranger would.

mod check;
mod decider;
mod dice;
mod kubernetes;
mod mirror;
mod people;
mod run;
#[cfg(test)]
mod scripts;
mod shared;
mod slurm;
mod world;

pub use run::{Outcome, run};
pub use world::Counts;

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn a_seed_gives_the_same_story_each_time() {
        let (first, second) = (run(7, 60).unwrap(), run(7, 60).unwrap());
        assert!(first.story.len() > 50, "{:?}", first.counts);
        assert_eq!(first, second);
    }
}
