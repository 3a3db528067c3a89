//! The systemd unit: systemd itself finds nothing to say about it, and it names what the daemon and the example
//! configuration name.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, helpers included")]

use std::path::{Path, PathBuf};
use std::process::Command;

const BINARY: &str = "/usr/bin/gpu-bridge";

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

fn unit() -> String {
    std::fs::read_to_string(deploy("gpu-bridge.service")).unwrap()
}

/// The value of a key that stands once.
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("{key} is not set"));
    assert_eq!(values.next(), None, "{key} is set twice");
    value
}

#[test]
fn systemd_accepts_the_unit() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        println!("skipped: no systemd-analyze here (package systemd)");
        return;
    };
    assert!(version.status.success());
    // verify wants the program to exist, which is not installed here.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("gpu-bridge.service");
    std::fs::write(&copy, unit().replace(BINARY, env!("CARGO_BIN_EXE_gpu-bridge"))).unwrap();
    // Not the machine's own units: they are not ours to judge. (Those that ours orders itself after need not exist.)
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(&copy)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{}: {said}", verified.status);
    assert_eq!(said, "", "systemd-analyze verify has something to say");
}

#[test]
fn the_unit_and_the_example_agree() {
    let unit = unit();
    let example = std::fs::read_to_string(deploy("gpu-bridge.example.toml")).unwrap();
    for (line, directory, folder) in [
        ("state_dir = \"/var/lib/gpu-bridge\"", "StateDirectory", "gpu-bridge"),
        ("socket = \"/run/gpu-bridge/gpu-bridge.sock\"", "RuntimeDirectory", "gpu-bridge"),
    ] {
        assert!(example.contains(line), "{line}");
        assert_eq!(value(&unit, directory), folder);
    }
    let file = "/etc/gpu-bridge/gpu-bridge.toml";
    assert_eq!(value(&unit, "ExecStartPre"), format!("{BINARY} check {file}"));
    assert_eq!(value(&unit, "ExecStart"), format!("{BINARY} run --config {file}"));
    assert_eq!(value(&unit, "Type"), "notify");
    assert_eq!(value(&unit, "RestartPreventExitStatus"), "78");
    // Policies are compiled to machine code.
    assert!(!unit.lines().any(|line| line.starts_with("MemoryDenyWriteExecute")));
}
