//! The one binary of the control plane and the kubelet, built from Go modules into the user's cache folder. Its folder is named
//! by a hash of everything that goes into it, so that it is built again exactly when that changes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::cache::{self, Lock, say};
use crate::command;
use crate::error::{Error, Result, at};
use crate::random::hex;

/// The Kubernetes release, as in go.mod.
pub const VERSION: &str = "1.36.3";
/// The Go release that it needs at least.
const GO: (u32, u32) = (1, 26);
/// Named here as well as in the package's folder: a build needs nothing but these.
const SOURCES: [(&str, &str); 4] = [
    ("go.mod", include_str!("../../k8s/go.mod")),
    ("go.sum", include_str!("../../k8s/go.sum")),
    ("keys.go", include_str!("../../k8s/keys.go")),
    ("main.go", include_str!("../../k8s/main.go")),
];
const BUILD_LIMIT: Duration = Duration::from_mins(40);

/// Why this machine cannot build the binary, if it is not built and can't be.
pub async fn unsupported() -> Option<String> {
    if binary().is_ok_and(|path| path.is_file()) {
        return None;
    }
    if !command::exists("go") {
        return Some(format!("no Go on the PATH (at least {}.{})", GO.0, GO.1));
    }
    let asked = command::output(&["go", "env", "GOVERSION"], Duration::from_mins(1)).await;
    match asked.and_then(command::Output::ok) {
        Ok(version) if parse(&version).is_some_and(|found| found >= GO) => None,
        Ok(version) => Some(format!("Go is {version}; at least {}.{} is needed", GO.0, GO.1)),
        Err(error) => Some(error.to_string()),
    }
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("go")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The binary, built if it is not there yet (about 5 minutes on two cores the first time).
pub async fn prepare() -> Result<PathBuf> {
    let binary = binary()?;
    if binary.is_file() {
        return Ok(binary);
    }
    let folder = binary.parent().map(PathBuf::from).unwrap_or_default();
    cache::make(&folder)?;
    let _lock = Lock::take(&folder.join("lock"), "it builds Kubernetes").await?;
    if binary.is_file() {
        return Ok(binary);
    }
    if let Some(reason) = unsupported().await {
        return Err(Error::Unsupported(reason));
    }
    let start = Instant::now();
    let log = folder.join("build.log");
    say(&format!(
        "building Kubernetes {VERSION} (once, about 5 minutes on two cores; log: {})",
        log.display()
    ));
    for (name, text) in SOURCES {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(at(&path))?;
    }
    let (_, minor) = VERSION
        .split_once('.')
        .and_then(|(major, rest)| Some((major, rest.split_once('.')?.0)))
        .unwrap_or(("", ""));
    let package = "k8s.io/component-base/version";
    let linker = format!(
        "-s -w -X {package}.gitVersion=v{VERSION} -X {package}.gitMajor=1 -X {package}.gitMinor={minor}"
    );
    let fresh = folder.join("k8s-lab.building");
    let fresh = fresh.to_string_lossy();
    let argv = [
        "go",
        "build",
        "-mod=readonly",
        "-buildvcs=false",
        "-trimpath",
        "-ldflags",
        &linker,
        "-o",
        &fresh,
        ".",
    ];
    command::logged(&argv, &folder, &[("CGO_ENABLED", "0")], &log, BUILD_LIMIT).await?;
    std::fs::rename(fresh.as_ref(), &binary).map_err(at(&binary))?;
    say(&format!("built Kubernetes {VERSION} in {:.0} s", start.elapsed().as_secs_f32()));
    Ok(binary)
}

fn binary() -> Result<PathBuf> {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    let key = &hex(&hash.finalize())[..16];
    Ok(cache::folder()?.join("k8s-lab").join(format!("{VERSION}-{key}")).join("k8s-lab"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_compared_as_numbers() {
        for (text, enough) in
            [("go1.26.8", true), ("go1.26rc1", true), ("go1.9", false), ("go1.25.1", false), ("go2.0", true)]
        {
            assert_eq!(parse(text).is_some_and(|found| found >= GO), enough, "{text}");
        }
    }

    #[test]
    fn the_version_is_the_one_in_go_mod() {
        assert!(SOURCES[0].1.contains(&format!("k8s.io/kubernetes v{VERSION}\n")));
    }
}
