//! Decides whether a file is a policy that this daemon can run: the pinned bytes, WebAssembly, no imports but `log`, our
//! interface in our version. What the policy does is not known here.

use wasmparser::{Encoding, Parser, Payload};
use wit_component::ComponentEncoder;

use super::digest::Digest;
use super::error::Error;
use super::sandbox::Limits;

/// The package of the ABI.
const PACKAGE: &str = "gpu-bridge:policy";
/// The exported interface, without version.
const INTERFACE: &str = "gpu-bridge:policy/decider@";
/// The version that this daemon offers. Within one minor version the types are the same.
const OFFERED: (&str, &str) = ("1.0.", "1.0.0");

/// A component that was looked at and may be compiled.
pub(super) struct Checked {
    /// Of the file as it was given.
    pub(super) digest: Digest,
    /// The component.
    pub(super) component: Vec<u8>,
    /// The full name of its `decider`.
    pub(super) interface: String,
    /// The version that it was built for.
    pub(super) version: String,
}

/// Looks at a file.
pub(super) fn check(bytes: &[u8], pinned: Option<Digest>, limits: &Limits) -> Result<Checked, Error> {
    if bytes.len() > limits.component_bytes {
        return Err(Error::TooBig { bytes: bytes.len(), limit: limits.component_bytes });
    }
    let digest = Digest::of(bytes);
    if let Some(pinned) = pinned.filter(|pinned| *pinned != digest) {
        return Err(Error::DigestMismatch { pinned, found: digest });
    }
    let component = match encoding(bytes)? {
        Encoding::Component => bytes.to_vec(),
        Encoding::Module => wrap(bytes)?,
    };
    let (imports, exports) = surface(&component)?;
    if let Some(name) = imports.into_iter().find(|name| name != "log") {
        return Err(Error::RefusedImport { name });
    }
    let (interface, version) = decider(&exports)?;
    Ok(Checked { digest, component, interface, version })
}

fn not_wasm(error: &wasmparser::BinaryReaderError) -> Error {
    Error::NotWasm { found: damaged(&error.to_string()) }
}

/// A file that begins as WebAssembly and does not go on so, by the words of a parser: these may have several lines.
pub(super) fn damaged(words: &str) -> String {
    let words: Vec<&str> = words.split_whitespace().collect();
    format!("damaged or unfinished WebAssembly ({})", words.join(" "))
}

fn encoding(bytes: &[u8]) -> Result<Encoding, Error> {
    if !bytes.starts_with(b"\0asm") {
        return Err(Error::NotWasm { found: described(bytes) });
    }
    match Parser::new(0).parse_all(bytes).next() {
        Some(Ok(Payload::Version { encoding, .. })) => Ok(encoding),
        Some(Ok(_)) | None => Err(Error::NotWasm { found: "WebAssembly without a header".to_owned() }),
        Some(Err(error)) => Err(not_wasm(&error)),
    }
}

/// What a file is that is no WebAssembly, by its first bytes.
fn described(bytes: &[u8]) -> String {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"\x7fELF", "an ELF file, a program or library of this machine"),
        (b"!<arch>\n", "a static library"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"PK\x03\x04", "a zip archive"),
        (b"version https://git-lfs", "a pointer of Git LFS, whose file was not fetched"),
        (b"(module", "the text form of WebAssembly"),
        (b"(component", "the text form of WebAssembly"),
    ];
    const SHOWN: usize = 16;
    if bytes.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some((_, what)) = KNOWN.iter().find(|(start, _)| bytes.starts_with(start)) {
        return (*what).to_owned();
    }
    let start = bytes.get(..SHOWN).unwrap_or(bytes);
    match std::str::from_utf8(start) {
        Ok(text) if !text.contains('\0') => format!("text that begins with {text:?}"),
        Ok(_) | Err(_) => {
            let hex: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("a file that begins with the bytes {}", hex.join(" "))
        }
    }
}

/// Turns a core module that carries its WIT section into a component.
fn wrap(module: &[u8]) -> Result<Vec<u8>, Error> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::ImportSection(section) = payload.map_err(|error| not_wasm(&error))? {
            for import in section.into_imports() {
                let import = import.map_err(|error| not_wasm(&error))?;
                // How the two manglings of the component model name the world itself.
                if !matches!((import.module, import.name), ("$root" | "cm32p2", "log")) {
                    let name = format!("{} {}", import.module, import.name);
                    return Err(Error::RefusedImport { name });
                }
            }
        }
    }
    let encode = || ComponentEncoder::default().validate(true).module(module)?.encode();
    encode().map_err(|error| Error::AbiMismatch {
        reason: format!(
            "the module cannot be made a component of {PACKAGE}@1 (was it built with the SDK?): {error:#}"
        ),
    })
}

/// Names of the component's imports and exports.
fn surface(component: &[u8]) -> Result<(Vec<String>, Vec<String>), Error> {
    let (mut imports, mut exports) = (vec![], vec![]);
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(|error| not_wasm(&error))? {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    imports.push(import.map_err(|error| not_wasm(&error))?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    exports.push(export.map_err(|error| not_wasm(&error))?.name.name.to_owned());
                }
            }
            // Many kinds of sections that say nothing about the surface; the list is not ours.
            _ => {}
        }
    }
    Ok((imports, exports))
}

/// The full name and version of the `decider` among the exports.
fn decider(exports: &[String]) -> Result<(String, String), Error> {
    let versions: Vec<&str> = exports.iter().filter_map(|name| name.strip_prefix(INTERFACE)).collect();
    if let Some(version) = versions.iter().find(|version| version.starts_with(OFFERED.0)) {
        return Ok((format!("{INTERFACE}{version}"), (*version).to_owned()));
    }
    let offered = OFFERED.1;
    let reason = match versions.first() {
        Some(version) => format!("built for {PACKAGE}@{version}, this daemon offers {PACKAGE}@{offered}"),
        None if exports.is_empty() => {
            format!("it exports nothing; a policy exports {INTERFACE}{offered} (was it built with the SDK?)")
        }
        None => format!("it exports {}, but not {INTERFACE}{offered}", exports.join(", ")),
    };
    Err(Error::AbiMismatch { reason })
}
