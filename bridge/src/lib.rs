//! Moves GPU nodes between Slurm and Kubernetes without ever letting both start work on one node.
