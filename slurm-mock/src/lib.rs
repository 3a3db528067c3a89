//! A pure model of a Slurm cluster ([`Cluster`]), a slurmrestd and a scontrol on top of it.

pub mod hostlist;
pub mod model;

pub use model::Cluster;
