//! How one ledger line is framed: `{"seq":1,"at":"…","event":{…},"prev":"…","sum":"…"}`.
//!
//! Decides what a well-framed line is, to the byte: we only ever read what we wrote, so the frame is compared and not
//! parsed, and only the event goes through JSON. `prev` is the SHA-256 of the previous line without its newline
//! (`sed -n 41p ledger.jsonl | tr -d '\n' | sha256sum`), `sum` the first four bytes of the SHA-256 of the line up
//! to there: the chain proves every line but the last, the sum proves that one. Knows nothing of files or order.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::Error;

/// Longest line with its newline, in bytes. Bounds what a reader must hold.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Version of this format, in the header event of line 1.
pub const FORMAT: u32 = 1;

const SEQ: &[u8] = b"{\"seq\":";
const AT: &[u8] = b",\"at\":\"";
const EVENT: &[u8] = b"\",\"event\":";
const PREV: &[u8] = b",\"prev\":\"";
const SUM: &[u8] = b"\",\"sum\":\"";
const END: &[u8] = b"\"}";
const HASH_HEX: usize = 64;
const SUM_HEX: usize = 8;
const TAIL: usize = PREV.len() + HASH_HEX + SUM.len() + SUM_HEX + END.len();

/// Number of a line, from 1, without gaps. Line 1 is the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The line after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// SHA-256 of a line without its newline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LineHash(pub [u8; 32]);

impl LineHash {
    /// What stands as `prev` in line 1.
    pub const NONE: LineHash = LineHash([0; 32]);

    fn hex(self) -> [u8; HASH_HEX] {
        let mut out = [0; HASH_HEX];
        to_hex(&self.0, &mut out);
        out
    }
}

impl serde::Serialize for LineHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hex().iter().try_for_each(|digit| fmt::Write::write_char(f, char::from(*digit)))
    }
}

impl fmt::Debug for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Event of line 1.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// Name and version of the format.
    pub(crate) gpu_bridge_ledger: u32,
}

/// The parts of a framed line, none of them checked against its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) seq: Seq,
    pub(crate) at: &'a str,
    pub(crate) event: &'a [u8],
    prev_hex: &'a [u8],
    sum_hex: &'a [u8],
    /// What `sum` covers.
    body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes a line without its newline apart; `None` if it is not framed as we write it.
    pub(crate) fn split(line: &'a [u8]) -> Option<Self> {
        let (head, tail) = line.split_at_checked(line.len().checked_sub(TAIL)?)?;
        let tail = tail.strip_prefix(PREV)?;
        let (prev_hex, tail) = tail.split_at_checked(HASH_HEX)?;
        let tail = tail.strip_prefix(SUM)?;
        let (sum_hex, tail) = tail.split_at_checked(SUM_HEX)?;
        let body = line.get(..line.len() - SUM.len() - SUM_HEX - END.len())?;
        let rest = head.strip_prefix(SEQ)?;
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, rest) = rest.split_at_checked(digits)?;
        let seq = Seq(std::str::from_utf8(number).ok()?.parse().ok()?);
        let rest = rest.strip_prefix(AT)?;
        let quote = rest.iter().position(|b| *b == b'"')?;
        let (at, rest) = rest.split_at_checked(quote)?;
        let event = rest.strip_prefix(EVENT)?;
        let at = std::str::from_utf8(at).ok()?;
        let canonical = tail == END && !number.starts_with(b"0") && is_hex(prev_hex) && is_hex(sum_hex);
        canonical.then_some(Frame { seq, at, event, prev_hex, sum_hex, body })
    }

    /// Whether the line names `hash` as its predecessor.
    pub(crate) fn follows(&self, hash: LineHash) -> bool {
        self.prev_hex == hash.hex()
    }

    /// The predecessor that the line names, for messages.
    pub(crate) fn prev(&self) -> String {
        text(self.prev_hex)
    }

    /// The hash of the line, or the sum that it should have had.
    pub(crate) fn hash(&self) -> Result<LineHash, BadSum> {
        let mut hasher = Sha256::new_with_prefix(self.body);
        let sum = sum_of(hasher.clone());
        if self.sum_hex != sum {
            return Err(BadSum { found: text(self.sum_hex), expected: text(&sum) });
        }
        hasher.update(SUM);
        hasher.update(sum);
        hasher.update(END);
        Ok(LineHash(hasher.finalize().into()))
    }
}

/// A line whose sum does not fit its bytes: it was altered after it was written.
#[derive(Debug)]
pub(crate) struct BadSum {
    pub(crate) found: String,
    pub(crate) expected: String,
}

fn text(hex: &[u8]) -> String {
    String::from_utf8_lossy(hex).into_owned()
}

/// Appends one line with its newline to `out` and returns its hash. `out` is as before if the event is refused.
pub(crate) fn write(
    out: &mut Vec<u8>,
    seq: Seq,
    at: Timestamp,
    event: &[u8],
    prev: LineHash,
) -> Result<LineHash, Error> {
    let start = out.len();
    out.extend_from_slice(SEQ);
    out.extend_from_slice(seq.0.to_string().as_bytes());
    out.extend_from_slice(AT);
    out.extend_from_slice(at.to_string().as_bytes());
    out.extend_from_slice(EVENT);
    out.extend_from_slice(event);
    out.extend_from_slice(PREV);
    out.extend_from_slice(&prev.hex());
    let mut hasher = Sha256::new_with_prefix(&out[start..]);
    let body_end = out.len();
    let sum = sum_of(hasher.clone());
    out.extend_from_slice(SUM);
    out.extend_from_slice(&sum);
    out.extend_from_slice(END);
    hasher.update(&out[body_end..]);
    out.push(b'\n');
    let bytes = out.len() - start;
    if bytes > MAX_LINE_BYTES {
        out.truncate(start);
        return Err(Error::TooLong { bytes, limit: MAX_LINE_BYTES });
    }
    Ok(LineHash(hasher.finalize().into()))
}

fn sum_of(hasher: Sha256) -> [u8; SUM_HEX] {
    let digest: [u8; 32] = hasher.finalize().into();
    let mut out = [0; SUM_HEX];
    to_hex(&digest[..SUM_HEX / 2], &mut out);
    out
}

fn to_hex(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

fn is_hex(text: &[u8]) -> bool {
    text.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_line_is_json_and_splits_into_what_was_written() {
        let mut out = b"before".to_vec();
        let at: Timestamp = "2026-11-30T18:00:00.25Z".parse().unwrap();
        let hash = write(&mut out, Seq(41), at, br#"{"say":"a\"b"}"#, LineHash([7; 32])).unwrap();
        let line = &out[6..out.len() - 1];
        assert_eq!(hash, LineHash(Sha256::digest(line).into()));
        let json: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert_eq!((&json["seq"], &json["event"]["say"]), (&41.into(), &"a\"b".into()));
        let frame = Frame::split(line).unwrap();
        assert_eq!(
            (frame.seq, frame.at, frame.event),
            (Seq(41), "2026-11-30T18:00:00.25Z", &br#"{"say":"a\"b"}"#[..])
        );
        assert_eq!(frame.hash().unwrap(), hash);
        assert!(frame.follows(LineHash([7; 32])) && !frame.follows(LineHash::NONE));
    }

    #[test]
    fn anything_else_is_not_framed() {
        let mut out = Vec::new();
        write(&mut out, Seq(10), Timestamp::UNIX_EPOCH, b"1", LineHash::NONE).unwrap();
        let line = out[..out.len() - 1].to_vec();
        assert!(Frame::split(&line).is_some());
        for cut in 0..line.len() {
            assert_eq!(Frame::split(&line[..cut]), None, "cut at {cut}");
        }
        let text = String::from_utf8(line).unwrap();
        for (from, to) in
            [("10", "010"), ("10", "-1"), ("10", ""), ("seq", "Seq"), ("00000", "0000A"), ("\"}", "\"} ")]
        {
            assert_eq!(Frame::split(text.replacen(from, to, 1).as_bytes()), None, "{from} -> {to}");
        }
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_leaves_no_trace() {
        let mut out = b"x".to_vec();
        let event = vec![b'1'; MAX_LINE_BYTES];
        let refused = write(&mut out, Seq(1), Timestamp::UNIX_EPOCH, &event, LineHash::NONE);
        assert!(matches!(refused, Err(Error::TooLong { limit: MAX_LINE_BYTES, .. })));
        assert_eq!(out, b"x");
    }
}
