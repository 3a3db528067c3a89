//! A pure model of a Slurm cluster ([`Cluster`]), a slurmrestd and a scontrol on top of it.

pub mod hostlist;
pub mod model;
pub mod rest;
pub mod scontrol;
pub mod server;

pub use model::Cluster;
