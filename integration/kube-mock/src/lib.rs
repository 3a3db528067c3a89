//! A small model of a Kubernetes API server, and the HTTP API on top of it.
