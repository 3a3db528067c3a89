//! Policies as files: built once by whoever runs first.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The shipped prewarm policy, built where it is missing.
pub async fn prewarm() -> anyhow::Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
    let built = gpu_bridge_labs::wasm::build_policies(workspace).await.context("building the policies")?;
    let prewarm = built
        .into_iter()
        .find(|file| file.file_stem().is_some_and(|name| name.to_string_lossy().contains("prewarm")));
    prewarm.context("no prewarm among the policies")
}
