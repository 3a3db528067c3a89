//! Reservations, partitions and pings.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::facts::slurm::{Partition, Reservation};
use serde::{Deserialize, Serialize};

use super::super::answer::Asked;
use super::super::error::Error;
use super::super::json::{Odd, Sin, Text, each};
use super::super::version::Family;
use super::hosts;

#[derive(Deserialize)]
pub(super) struct Reserved<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    #[serde(borrow)]
    pub(super) node_list: Text<'a>,
    pub(super) flags: BTreeSet<String>,
    pub(super) start_time: Sin,
    pub(super) end_time: Sin,
    #[serde(borrow)]
    pub(super) users: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) accounts: Option<Text<'a>>,
}

impl Reserved<'_> {
    pub(super) fn read(self, asked: &Asked<'_>) -> Result<Reservation, Error> {
        let words = |text: Option<Text<'_>>| -> BTreeSet<String> {
            text.iter()
                .flat_map(|text| text.split(','))
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let name = self.name.into_owned();
        let (Some(start), Some(end)) = (self.start_time.instant(), self.end_time.instant()) else {
            let found = format!("{:?} to {:?}", self.start_time, self.end_time);
            return Err(asked.unreadable(found, format!("the times of reservation {name}")));
        };
        let nodes = hosts(asked, &self.node_list, &format!("reservation {name}"))?;
        let (users, accounts) = (words(self.users), words(self.accounts));
        Ok(Reservation { name, nodes, users, accounts, flags: self.flags, start, end })
    }
}

/// The answer of GET reservations; the same in every family.
pub(in crate::slurm) fn reservations(
    asked: &Asked<'_>,
    body: &[u8],
) -> Result<BTreeMap<String, Reservation>, Error> {
    let mut reservations = BTreeMap::new();
    each(asked, body, "reservations", |element: Result<Reserved<'_>, Odd<'_>>| {
        let expected = "a reservation with name, node_list, flags, start_time and end_time";
        let reservation = element.map_err(|odd| odd.error(asked, expected))?.read(asked)?;
        reservations.insert(reservation.name.clone(), reservation);
        Ok(())
    })?;
    Ok(reservations)
}

/// A partition up to v0.0.38.
#[derive(Deserialize)]
struct Flat<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    nodes: Text<'a>,
    #[serde(borrow)]
    state: Text<'a>,
    max_time_limit: Sin,
}

/// A partition from v0.0.39 on.
#[derive(Deserialize)]
struct Nested<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    nodes: Nodes<'a>,
    /// Not told by v0.0.39.
    #[serde(borrow)]
    partition: Option<State<'a>>,
    maximums: Maximums,
}

#[derive(Deserialize)]
struct Nodes<'a> {
    #[serde(borrow)]
    configured: Text<'a>,
}

#[derive(Deserialize)]
struct State<'a> {
    #[serde(borrow)]
    state: Vec<Text<'a>>,
}

#[derive(Deserialize)]
struct Maximums {
    time: Sin,
}

/// A partition, with its longest time limit in minutes.
pub(super) fn partition(
    asked: &Asked<'_>,
    name: &str,
    nodes: &str,
    max_time: Sin,
    up: bool,
) -> Result<Partition, Error> {
    let nodes = hosts(asked, nodes, &format!("partition {name}"))?;
    Ok(Partition { nodes, max_time: max_time.minutes(), up })
}

/// The answer of GET partitions. A partition whose state is not told counts as not up.
pub(in crate::slurm) fn partitions(
    family: Family,
    asked: &Asked<'_>,
    body: &[u8],
) -> Result<BTreeMap<String, Partition>, Error> {
    let mut partitions = BTreeMap::new();
    let mut put = |name: Text<'_>, nodes: &str, max_time: Sin, up: bool| {
        let partition = partition(asked, &name, nodes, max_time, up)?;
        partitions.insert(name.into_owned(), partition);
        Ok(())
    };
    match family {
        Family::Words => each(asked, body, "partitions", |element: Result<Flat<'_>, Odd<'_>>| {
            let expected = "a partition with name, nodes, state and max_time_limit";
            let flat = element.map_err(|odd| odd.error(asked, expected))?;
            put(flat.name, &flat.nodes, flat.max_time_limit, &*flat.state == "UP")
        }),
        Family::Mixed | Family::Lists => {
            each(asked, body, "partitions", |element: Result<Nested<'_>, Odd<'_>>| {
                let expected = "a partition with name, nodes.configured, partition.state and maximums.time";
                let nested = element.map_err(|odd| odd.error(asked, expected))?;
                let up = match (family, &nested.partition) {
                    (_, Some(State { state })) => matches!(state.as_slice(), [word] if &**word == "UP"),
                    (Family::Mixed, None) => false,
                    (Family::Words | Family::Lists, None) => {
                        return Err(asked.unreadable("a partition without its state", expected));
                    }
                };
                put(nested.name, &nested.nodes.configured, nested.maximums.time, up)
            })
        }
    }?;
    Ok(partitions)
}

/// One slurmctld, as slurmrestd reaches it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ping {
    /// Its host.
    pub(crate) host: String,
    /// Does it answer?
    pub(crate) responding: bool,
    /// Is it the primary one? `None` where that is not told.
    pub(crate) primary: Option<bool>,
}

/// The answer of GET ping. It says nothing of the token: from 24.05 on a bad one gets a good answer.
pub(in crate::slurm) fn pings(asked: &Asked<'_>, body: &[u8]) -> Result<Vec<Ping>, Error> {
    #[derive(Deserialize)]
    struct Shape<'a> {
        #[serde(borrow)]
        hostname: Option<Text<'a>>,
        /// Up to v0.0.38.
        #[serde(borrow)]
        ping: Option<Text<'a>>,
        /// v0.0.39 to v0.0.44.
        #[serde(borrow)]
        pinged: Option<Text<'a>>,
        /// From v0.0.42 on.
        responding: Option<bool>,
        #[serde(borrow)]
        mode: Option<Text<'a>>,
        primary: Option<bool>,
    }
    let mut pings = Vec::new();
    each(asked, body, "pings", |element: Result<Shape<'_>, Odd<'_>>| {
        let expected = "a ping with responding, pinged or ping";
        let shape = element.map_err(|odd| odd.error(asked, expected))?;
        let said = shape.responding.or_else(|| shape.pinged.or(shape.ping).map(|word| &*word == "UP"));
        pings.push(Ping {
            host: shape.hostname.map(Text::into_owned).unwrap_or_default(),
            responding: said.ok_or_else(|| asked.unreadable("none of these", expected))?,
            primary: shape.primary.or_else(|| shape.mode.map(|mode| &*mode == "primary")),
        });
        Ok(())
    })?;
    Ok(pings)
}
