//! Building the workspace's policies to WebAssembly modules, with rustup's target where there is one or rustup can fetch it, and
//! otherwise with Debian's rustc and its sources of the standard library. It does not know what a policy is: every package
//! under `policies/` with a `cdylib` is one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cache::{self, say};
use crate::command;
use crate::error::{Error, Result, at};

const TARGET: &str = "wasm32-unknown-unknown";
/// The cargo profile of guests, in the workspace's Cargo.toml.
const PROFILE: &str = "policy";
/// Policies' packages are named so; the rest is the module's name.
const PREFIX: &str = "gpu-bridge-policy-";
const ASK_LIMIT: Duration = Duration::from_mins(1);
const BUILD_LIMIT: Duration = Duration::from_mins(20);

/// How guests are compiled on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Toolchain {
    /// The toolchain in use has the target.
    Rustup,
    /// Debian's rustc (package rustc-web) compiles the standard library too (rust-web-src).
    Debian {
        /// Debian's rustc.
        rustc: PathBuf,
        /// The linker, from the toolchain in use.
        linker: PathBuf,
    },
}

/// Where built policies are kept: `policies` in cargo's target folder.
pub fn kept_in(workspace: &Path) -> PathBuf {
    workspace.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("policies")
}

/// Builds every policy under `workspace/policies` to `NAME.wasm` in [`kept_in`]; returns these files. Their bytes do not depend on
/// where the workspace and cargo's registry lie.
pub async fn build_policies(workspace: &Path) -> Result<Vec<PathBuf>> {
    let out = cache::make(&kept_in(workspace))?;
    let toolchain = Toolchain::find(&out).await?;
    build_policies_with(workspace, &toolchain).await
}

/// The same with a given toolchain.
pub async fn build_policies_with(workspace: &Path, toolchain: &Toolchain) -> Result<Vec<PathBuf>> {
    let packages = packages(workspace).await?;
    if packages.is_empty() {
        return Err(Error::Unknown(format!("no policies in {}", workspace.join("policies").display())));
    }
    let out = cache::make(&kept_in(workspace))?;
    let log = out.join("build.log");
    // Each compiler builds in a folder of its own, or it would throw away what the other built.
    let build = out.join(match toolchain {
        Toolchain::Rustup => "build",
        Toolchain::Debian { .. } => "build-debian",
    });
    let build_text = build.to_string_lossy();
    let mut argv = vec!["cargo", "build", "--locked", "--profile", PROFILE];
    argv.extend(["--target", TARGET, "--target-dir", &build_text]);
    for package in &packages {
        argv.extend(["--package", package]);
    }
    let (rustc, linker);
    let flags = remapping(workspace)?;
    let mut env = vec![("CARGO_ENCODED_RUSTFLAGS", flags.as_str())];
    match toolchain {
        Toolchain::Rustup => {
            say(&format!("building policies with rustup's toolchain (log: {})", log.display()));
        }
        Toolchain::Debian { rustc: debian, linker: lld } => {
            say("building policies with Debian's rustc-web, standard library included");
            (rustc, linker) = (debian.to_string_lossy(), lld.to_string_lossy());
            env.extend([
                ("RUSTC", rustc.as_ref()),
                ("RUSTC_BOOTSTRAP", "1"),
                ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker.as_ref()),
            ]);
            argv.push("-Zbuild-std=std,panic_abort");
        }
    }
    command::logged(&argv, workspace, &env, &log, BUILD_LIMIT).await?;
    let mut modules = Vec::new();
    for package in &packages {
        let fresh = build.join(TARGET).join(PROFILE).join(format!("{}.wasm", package.replace('-', "_")));
        let module = out.join(format!("{}.wasm", package.strip_prefix(PREFIX).unwrap_or(package)));
        // Written beside and renamed, so that nobody reads half a file.
        let partial = module.with_extension(format!("partial-{}", std::process::id()));
        std::fs::copy(&fresh, &partial).map_err(at(&fresh))?;
        std::fs::rename(&partial, &module).map_err(at(&module))?;
        modules.push(module);
    }
    Ok(modules)
}

impl Toolchain {
    /// Finds, and where needed fetches, what compiles guests. Logs go to the folder.
    async fn find(folder: &Path) -> Result<Self> {
        let log = &folder.join("toolchain.log");
        let libraries = ask(&["rustc", "--print", "target-libdir", "--target", TARGET]).await?;
        if Path::new(&libraries).is_dir() {
            return Ok(Self::Rustup);
        }
        if command::exists("rustup") {
            say(&format!("asking rustup for {TARGET}"));
            let added =
                command::logged(&["rustup", "target", "add", TARGET], folder, &[], log, ASK_LIMIT).await;
            match added {
                Ok(()) => return Ok(Self::Rustup),
                Err(error) => say(&format!("rustup cannot add it ({error}); using Debian's packages")),
            }
        }
        Self::debian(folder).await
    }

    /// Debian's compiler, installed if it is not there, with the linker of the toolchain in use.
    pub async fn debian(folder: &Path) -> Result<Self> {
        let log = &folder.join("toolchain.log");
        let rustc = PathBuf::from("/usr/bin/rustc");
        let whole = rustc.is_file()
            && ask(&["/usr/bin/rustc", "--print", "sysroot"]).await.is_ok_and(|root| {
                Path::new(&root).join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file()
            });
        if !whole {
            if !command::exists("apt-get") || !rustix::process::geteuid().is_root() {
                return Err(Error::Unsupported(format!(
                    "neither {TARGET} nor Debian's rustc-web and rust-web-src, and no way to install them"
                )));
            }
            say("installing Debian's rustc-web and rust-web-src");
            let env = [("DEBIAN_FRONTEND", "noninteractive")];
            command::logged(&["apt-get", "update", "-q"], folder, &env, log, BUILD_LIMIT).await?;
            let install =
                ["apt-get", "install", "-y", "-q", "--no-install-recommends", "rustc-web", "rust-web-src"];
            command::logged(&install, folder, &env, log, BUILD_LIMIT).await?;
        }
        let root = ask(&["rustc", "--print", "sysroot"]).await?;
        let host = ask(&["rustc", "--print", "host-tuple"]).await?;
        let own = Path::new(&root).join("lib/rustlib").join(host).join("bin/rust-lld");
        let linker = if own.is_file() { own } else { PathBuf::from("wasm-ld") };
        Ok(Self::Debian { rustc, linker })
    }
}

/// Flags that take this machine's folders out of panic messages and line tables.
fn remapping(workspace: &Path) -> Result<String> {
    let home = std::env::home_dir().unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let root = workspace.canonicalize().map_err(at(workspace))?;
    let flag = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    Ok([flag(&root, "/gpu-bridge"), flag(&cargo_home.join("registry"), "/registry")].join("\u{1f}"))
}

/// Names of the packages under `policies/` that make a module.
async fn packages(workspace: &Path) -> Result<Vec<String>> {
    let manifest = workspace.join("Cargo.toml");
    let manifest = manifest.to_string_lossy();
    let argv = ["cargo", "metadata", "--no-deps", "--format-version=1", "--manifest-path", &manifest];
    let text = command::output(&argv, ASK_LIMIT).await?.ok()?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| Error::Unknown(format!("cargo metadata: {error}")))?;
    let folder = workspace.join("policies");
    let policies = list(&metadata["packages"]).iter().filter(|package| {
        let under =
            package["manifest_path"].as_str().is_some_and(|path| Path::new(path).starts_with(&folder));
        let module = list(&package["targets"])
            .iter()
            .any(|target| list(&target["crate_types"]).iter().any(|kind| kind.as_str() == Some("cdylib")));
        under && module
    });
    Ok(policies.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect())
}

fn list(value: &serde_json::Value) -> &[serde_json::Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

async fn ask(argv: &[&str]) -> Result<String> {
    command::output(argv, ASK_LIMIT).await?.ok()
}
