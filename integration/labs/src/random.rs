//! Secrets of a lab: keys and tokens that no other lab knows.

use std::fmt::Write as _;
use std::io::Read as _;

use crate::error::{Result, at};

const SOURCE: &str = "/dev/urandom";

/// `count` random bytes.
pub(crate) fn bytes(count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    std::fs::File::open(SOURCE).and_then(|mut file| file.read_exact(&mut bytes)).map_err(at(SOURCE))?;
    Ok(bytes)
}

/// A bearer token of 32 hexadecimal digits.
pub(crate) fn token() -> Result<String> {
    Ok(hex(&bytes(16)?))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
