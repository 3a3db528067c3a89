//! Reads an answer of slurmrestd that was saved to a file, as a bug report would attach it, into the facts that a look
//! would make of it, or into the error. Asks nobody and decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu_bridge_core::facts::slurm::{Node, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use serde::Serialize;

use super::answer::Asked;
use super::error::Error;
use super::shape::{self, JobRecord, NodeRecord, Ping};
use super::version::{Version, known};

/// What the answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// `nodes/`
    Nodes,
    /// `node/NAME` (stale in every release: the daemon never asks it)
    Node,
    /// `jobs/`
    Jobs,
    /// `job/ID`
    Job,
    /// `jobs/state/`
    JobStates,
    /// `reservations/` or `reservation/NAME`
    Reservations,
    /// `partitions/` or `partition/NAME`
    Partitions,
    /// `ping/`
    Ping,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decoded {
    /// Nodes.
    Nodes(BTreeMap<SlurmNodeName, NodeSaid>),
    /// Jobs.
    Jobs(BTreeMap<JobId, JobRecord>),
    /// Slurm's words for the state of each job.
    JobStates(BTreeMap<JobId, Vec<String>>),
    /// Reservations.
    Reservations(BTreeMap<String, Reservation>),
    /// Partitions.
    Partitions(BTreeMap<String, Partition>),
    /// Controllers.
    Pings(Vec<Ping>),
}

/// What is said of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum NodeSaid {
    /// It can be read.
    Read(NodeRecord),
    /// Its state cannot be read.
    Unreadable {
        /// What was found instead.
        unreadable: String,
    },
}

/// Reads an answer to a request of version `api`; `name` is what errors call it. HTTP headers may stand in front; without
/// them it is taken for one with status 200.
pub(crate) fn decode(name: &str, api: &str, kind: Kind, answer: &[u8]) -> Result<Decoded, Error> {
    let unknown = || Error::Options(format!("api version {api:?} is none of {}", known()));
    let family = Version::named(api).ok_or_else(unknown)?.family;
    let (status, body) = split(answer)?;
    let asked = Asked::new(name, "unknown").answered(status, Duration::ZERO);
    if !(200..300).contains(&status) {
        asked.judge(body)?;
    }
    Ok(match kind {
        Kind::Nodes | Kind::Node => {
            let said = |node: Result<_, _>| {
                node.map_or_else(|unreadable| NodeSaid::Unreadable { unreadable }, NodeSaid::Read)
            };
            let nodes = shape::nodes(family, &asked, body)?;
            Decoded::Nodes(nodes.into_iter().map(|(name, node)| (name, said(node))).collect())
        }
        Kind::Jobs | Kind::Job => Decoded::Jobs(shape::jobs(family, &asked, body)?),
        Kind::JobStates => {
            let marks = shape::job_marks(&asked, body)?;
            Decoded::JobStates(marks.into_iter().map(|(id, mark)| (id, mark.words)).collect())
        }
        Kind::Reservations => Decoded::Reservations(shape::reservations(&asked, body)?),
        Kind::Partitions => Decoded::Partitions(shape::partitions(family, &asked, body)?),
        Kind::Ping => Decoded::Pings(shape::pings(&asked, body)?),
    })
}

/// Reads an answer as a look does, its nodes or jobs into facts, and tells how many there are: for measuring.
pub fn facts_in(api: &str, kind: Kind, answer: &[u8]) -> Result<usize, Error> {
    let unknown = || Error::Options(format!("api version {api:?} is none of {}", known()));
    let family = Version::named(api).ok_or_else(unknown)?.family;
    let asked = Asked::new("the answer", "unknown");
    match kind {
        Kind::Nodes | Kind::Node => {
            let nodes: BTreeMap<SlurmNodeName, Result<Node, String>> = shape::nodes(family, &asked, answer)?;
            Ok(nodes.values().filter(|node| node.is_ok()).count())
        }
        Kind::Jobs | Kind::Job => Ok(shape::jobs(family, &asked, answer)?.len()),
        Kind::JobStates => Ok(shape::job_marks(&asked, answer)?.len()),
        Kind::Reservations => Ok(shape::reservations(&asked, answer)?.len()),
        Kind::Partitions => Ok(shape::partitions(family, &asked, answer)?.len()),
        Kind::Ping => Ok(shape::pings(&asked, answer)?.len()),
    }
}

/// Status and body. A second answer behind the first one (25.11 and later send those after errors) is left out where the
/// headers tell how long the first is.
fn split(answer: &[u8]) -> Result<(u16, &[u8]), Error> {
    if !answer.starts_with(b"HTTP/") {
        return Ok((200, answer));
    }
    let bad = |why: &str| Error::Options(format!("the file begins with HTTP headers, but {why}"));
    let (head, body) = ["\r\n\r\n", "\n\n"]
        .iter()
        .filter_map(|blank| {
            let at = answer.windows(blank.len()).position(|window| window == blank.as_bytes())?;
            Some((&answer[..at], &answer[at + blank.len()..]))
        })
        .min_by_key(|(head, _)| head.len())
        .ok_or_else(|| bad("no blank line ends them"))?;
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| bad("their first line has no status"))?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") { value.trim().parse::<usize>().ok() } else { None }
    });
    Ok((status, &body[..length.unwrap_or(body.len()).min(body.len())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: &str = r#"{"pings":[{"hostname":"head","responding":true,"primary":true}],"errors":[]}"#;

    #[test]
    fn headers_may_stand_in_front() {
        let length = PING.len();
        for answer in [
            PING.to_owned(),
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{PING}\r\n"),
            format!("HTTP/1.1 200 OK\nContent-Type: application/json\n\n{PING}"),
            format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{PING}HTTP/1.1 404 NOT FOUND\r\n\r\nno"
            ),
        ] {
            let Ok(Decoded::Pings(pings)) = decode("x", "v0.0.45", Kind::Ping, answer.as_bytes()) else {
                panic!("{answer}")
            };
            assert_eq!(pings, [Ping { host: "head".into(), responding: true, primary: Some(true) }]);
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        type Check = fn(&Error) -> bool;
        let table: [(&str, &str, Check); 6] = [
            ("v0.0.36", PING, |e| matches!(e, Error::Options(_))),
            ("v0.0.45", "HTTP/1.1 200 OK\n", |e| matches!(e, Error::Options(_))),
            ("v0.0.45", "HTTP/1.1\n\n{}", |e| matches!(e, Error::Options(_))),
            ("v0.0.45", "HTTP/1.1 401 UNAUTHORIZED\n\nno", |e| matches!(e, Error::Credentials { .. })),
            ("v0.0.45", "<html>", |e| matches!(e, Error::NotJson { .. })),
            ("v0.0.45", r#"{"nodes":[]}"#, |e| matches!(e, Error::Unreadable { .. })),
        ];
        for (api, answer, check) in table {
            let error = decode("x", api, Kind::Ping, answer.as_bytes()).unwrap_err();
            assert!(check(&error), "{answer}: {error}");
        }
    }
}
