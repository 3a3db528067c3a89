//! Real Slurm and a real Kubernetes control plane on one machine, for tests.
