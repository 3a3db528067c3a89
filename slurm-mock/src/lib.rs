//! A pure model of a Slurm cluster, and a slurmrestd on top of it.
