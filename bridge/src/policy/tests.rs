//! Files that are no policies for this daemon. Those that are, and misbehave, are in `bridge/tests/policy.rs`: they need
//! a compiler for WebAssembly.

use super::*;

fn load(bytes: &[u8]) -> Error {
    match Policy::load(bytes, &LoadOptions::new("test")) {
        Ok(policy) => panic!("loaded {:?}", policy.describe()),
        Err(error) => error,
    }
}

/// A component whose `decider` has functions without parameters and results.
fn component(import: &str, name: &str, functions: &[&str]) -> String {
    let exports: Vec<String> = functions.iter().map(|f| format!("(export \"{f}\" (func $f))")).collect();
    let exports = exports.concat();
    format!(
        r#"(component {import}
            (core module $m (func (export "f")))
            (core instance $i (instantiate $m))
            (func $f (canon lift (core func $i "f")))
            (instance $d {exports})
            (export "{name}" (instance $d)))"#
    )
}

#[test]
fn what_is_no_policy_is_refused_with_its_class_and_the_reason() {
    let all = ["describe", "validate-settings", "decide"];
    let ours = "gpu-bridge:policy/decider@1.0.0";
    let cases: &[(&str, &str, Class, &[&str])] = &[
        ("a core module without WIT", "(module)", Class::AbiMismatch, &["exports nothing", ours]),
        (
            "WASI in a core module",
            r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32))))"#,
            Class::RefusedImport,
            &["wasi_snapshot_preview1 fd_write", "wasm32-unknown-unknown"],
        ),
        (
            "WASI in a component",
            r#"(component (import "wasi:cli/environment@0.2.0" (instance)))"#,
            Class::RefusedImport,
            &["wasi:cli/environment@0.2.0"],
        ),
        (
            "another function of the world",
            r#"(component (import "random" (func (result u64))))"#,
            Class::RefusedImport,
            &["random"],
        ),
        (
            "an import inside is none of the component",
            r#"(component (component (import "random" (func (result u64)))))"#,
            Class::AbiMismatch,
            &["exports nothing"],
        ),
        ("an empty component", "(component)", Class::AbiMismatch, &["exports nothing"]),
        (
            "another export",
            &component("", "acme:policy/decider@1.0.0", &all),
            Class::AbiMismatch,
            &["it exports acme:policy/decider@1.0.0, but not", ours],
        ),
        (
            "a later major version",
            &component("", "gpu-bridge:policy/decider@2.0.0", &all),
            Class::AbiMismatch,
            &["built for gpu-bridge:policy@2.0.0, this daemon offers gpu-bridge:policy@1.0.0"],
        ),
        (
            "a later minor version",
            &component("", "gpu-bridge:policy/decider@1.1.0", &all),
            Class::AbiMismatch,
            &["built for gpu-bridge:policy@1.1.0"],
        ),
        (
            "a function is missing",
            &component("", ours, &["describe", "validate-settings"]),
            Class::AbiMismatch,
            &["has no function decide"],
        ),
        ("other types", &component("", ours, &all), Class::AbiMismatch, &["types differ"]),
        (
            "another type of log",
            &component(r#"(import "log" (func (param "x" u32)))"#, ours, &all),
            Class::AbiMismatch,
            &["log"],
        ),
    ];
    for (name, text, class, parts) in cases {
        let error = load(&wat::parse_str(text).unwrap());
        assert_eq!(error.class(), *class, "{name}: {error}");
        for part in *parts {
            assert!(error.to_string().contains(part), "{name}: {error}");
        }
    }
}

#[test]
fn what_is_not_webassembly_is_refused() {
    let whole = wat::parse_str("(module (func (export \"f\")))").unwrap();
    let cut = &whole[..whole.len() - 3];
    let elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0";
    for (bytes, says) in [
        (&b""[..], "an empty file"),
        (b"\0asm", "damaged or unfinished WebAssembly"),
        (b"#!/bin/sh\necho more than this", r##"text that begins with "#!/bin/sh\necho m""##),
        (elf, "an ELF file"),
        (b"(module)", "the text form of WebAssembly"),
        (b"MZ\x90\0\x03", "the bytes 4d 5a 90 00 03"),
        (b"\0asm\x09\0\0\0", "damaged or unfinished WebAssembly"),
        (cut, "damaged or unfinished WebAssembly"),
    ] {
        let error = load(bytes);
        let told = error.to_string();
        assert_eq!(error.class(), Class::NotWasm, "{bytes:?}: {told}");
        assert!(told.contains(says), "{bytes:?}: {told}");
        assert!(told.lines().count() == 1 && told.contains("wasm32-unknown-unknown"), "{told}");
    }
}

#[test]
fn size_and_digest_are_looked_at_before_anything_else() {
    let mut options = LoadOptions::new("test");
    options.sha256 = Some(Digest::of(b"other"));
    let load =
        |options: &LoadOptions| Policy::load(b"anything", options).err().map(|error| error.to_string());
    let message = load(&options).unwrap();
    for digest in [Digest::of(b"other"), Digest::of(b"anything")] {
        assert!(message.contains(&digest.to_string()), "{message}");
    }
    options.limits.component_bytes = 7;
    assert_eq!(load(&options).unwrap(), "the file has 8 bytes, more than the 7 allowed");
    options.limits.component_bytes = 8;
    options.sha256 = Some(Digest::of(b"anything"));
    assert!(load(&options).unwrap().contains("expected a WebAssembly module"));
}

#[test]
fn only_the_newest_bundles_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = |now| Bundle {
        format: bundle::FORMAT,
        policy: "a/b".to_owned(),
        sha256: Digest::of(b""),
        class: Class::Panic,
        error: String::new(),
        settings: "{}".to_owned(),
        usage: Usage::default(),
        snapshot: Snapshot { now, ..Snapshot::default() },
    };
    std::fs::write(folder.path().join("notes.txt"), "not ours").unwrap();
    let mut last = None;
    for now in 0..i64::try_from(bundle::KEPT).unwrap() + 3 {
        last = Some(bundle(now * 1000).save(folder.path()).unwrap());
    }
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), bundle::KEPT + 1);
    assert!(names[1].to_str().unwrap().starts_with("policy-failure-000000003000-a-b-panic-"), "{names:?}");
    assert_eq!(Bundle::read(&last.unwrap()).unwrap().snapshot.now, 34_000);
}

/// The codes stand in the host and in the SDK, which shares nothing with it: a code of two meanings would be a move to the
/// wrong side.
#[test]
fn host_and_sdk_agree_on_every_code() {
    fn codes(source: &str) -> Vec<String> {
        let mut module = "";
        let mut codes = Vec::new();
        for line in source.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(" {")) {
                module = name;
            }
            // `kind::ALL` is the host's own list of them.
            if let Some(code) = line.strip_prefix("pub const ").filter(|code| !code.starts_with("ALL:")) {
                codes.push(format!("{module}::{code}"));
            }
        }
        codes
    }
    let (host, sdk) = (codes(include_str!("abi.rs")), codes(include_str!("../../../policy-sdk/src/code.rs")));
    assert!(host.len() >= 15, "{host:?}");
    assert_eq!(host, sdk);
}
