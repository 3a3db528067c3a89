//! Building policies without rustup's target, which a machine may be unable to fetch.
#![allow(clippy::unwrap_used, reason = "this is a test, helpers included")]

use std::path::Path;

use gpu_bridge_labs::wasm::{Toolchain, build_policies_with};

#[tokio::test]
#[ignore = "installs Debian's compiler (root) and builds the standard library"]
async fn debians_compiler_builds_policies() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let scratch = workspace.join("target/policies");
    std::fs::create_dir_all(&scratch).unwrap();
    let debian = Toolchain::debian(&scratch).await.unwrap();
    let modules = build_policies_with(&workspace, &debian).await.unwrap();
    assert!(!modules.is_empty());
    for module in modules {
        assert!(std::fs::read(&module).unwrap().starts_with(b"\0asm"), "{}", module.display());
    }
}
