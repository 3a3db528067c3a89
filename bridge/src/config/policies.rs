//! `[[policy]]`: which policies run, and for what they may speak. Decides nothing about what is in a policy file: the
//! host verifies the bytes that it loads.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gpu_bridge_core::ids::{PolicyName, PoolName};
use gpu_bridge_core::model::{Domain, Site};
use toml::Spanned;
use toml::de::DeValue;

use super::daemon::{or, owned};
use super::problem::{Code, Place};
use super::reader::{Table, Value, closest};

/// Whether a policy's proposals count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyMode {
    /// They do.
    Active,
    /// They are shown, and nothing follows from them.
    Shadow,
    /// It is not called.
    Off,
}

/// A kind of proposal that can be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProposalKind {
    /// `want-ready`: a pool should have a number of ready nodes during an interval.
    WantReady,
}

/// `[[policy]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `name`, unique.
    pub name: PolicyName,
    /// `path` of the WebAssembly file.
    pub path: PathBuf,
    /// `sha256` of the file; `None`: not pinned.
    pub sha256: Option<[u8; 32]>,
    /// `mode`: `active` (default), `shadow` or `off`.
    pub mode: PolicyMode,
    /// `[policy.settings]` as a JSON object, for the policy's own validation.
    pub settings: serde_json::Value,
    /// `grants.kinds`; `None`: all.
    pub kinds: Option<BTreeSet<ProposalKind>>,
    /// `grants.pools`; `None`: all.
    pub pools: Option<BTreeSet<PoolName>>,
    /// `priority` among policies, 0 to 1,000, higher wins. Default 100.
    pub priority: u32,
    /// Where it is configured.
    pub place: Place,
}

/// What grants may name.
struct Known<'a> {
    pool_names: &'a BTreeSet<PoolName>,
    site: &'a Site,
}

pub(super) fn policies(root: &Table<'_>, pool_names: &BTreeSet<PoolName>, site: &Site) -> Vec<Policy> {
    let known = Known { pool_names, site };
    let mut names = BTreeSet::new();
    root.tables("policy").into_iter().filter_map(|table| policy(table, &known, &mut names)).collect()
}

fn policy(table: Table<'_>, known: &Known<'_>, names: &mut BTreeSet<String>) -> Option<Policy> {
    let name = table.need("name", "the policy's name").and_then(|value| owned(&value));
    if let Some(name) = &name
        && !names.insert(name.clone())
    {
        table.problem(Code::Duplicate, "name", "a second policy of this name", "unique names", "rename it");
    }
    let modes = [("active", PolicyMode::Active), ("shadow", PolicyMode::Shadow), ("off", PolicyMode::Off)];
    let mode = or(table.get("mode"), |value| value.choice(&modes), || PolicyMode::Active);
    let path = table.need("path", "the path of a .wasm file").and_then(|value| value.readable());
    let sha256 = or(table.get("sha256"), |value| digest(value).map(Some), || None);
    let settings = or(table.get("settings"), settings, || serde_json::Value::Object(serde_json::Map::new()));
    let priority = or(table.get("priority"), |value| value.count(0..=1_000), || 100);
    let grants = or(table.get("grants"), |value| grants(value, known), || (None, None));
    let place = table.place();
    table.finish();
    let (kinds, pools) = grants?;
    Some(Policy {
        name: PolicyName::new(name?),
        path: path?,
        sha256: sha256?,
        mode: mode?,
        settings: settings?,
        kinds,
        pools,
        priority: priority?,
        place,
    })
}

fn digest(value: &Value<'_>) -> Option<[u8; 32]> {
    let text = value.text()?;
    let mut digest = [0; 32];
    let hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !hex {
        return value.wrong("64 hexadecimal digits", "paste what sha256sum prints for the file");
    }
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok())?;
    }
    Some(digest)
}

type Grants = (Option<BTreeSet<ProposalKind>>, Option<BTreeSet<PoolName>>);

fn grants(value: &Value<'_>, known: &Known<'_>) -> Option<Grants> {
    let table = value.table()?;
    let all_kinds = [("want-ready", ProposalKind::WantReady)];
    let kinds = or(
        table.get("kinds"),
        |value| {
            let kinds = value.list()?.into_iter().map(|item| item.choice(&all_kinds));
            kinds.collect::<Option<BTreeSet<_>>>().map(Some)
        },
        || None,
    );
    let pools = or(
        table.get("pools"),
        |value| {
            let names = value.list()?.into_iter().map(|item| granted_pool(&item, known));
            names.collect::<Option<BTreeSet<_>>>().map(Some)
        },
        || None,
    );
    table.finish();
    Some((kinds?, pools?))
}

/// A pool that nodes can be wanted for.
fn granted_pool(value: &Value<'_>, known: &Known<'_>) -> Option<PoolName> {
    let name = pool_name(value, known.pool_names)?;
    if known.site.pools.get(&name).is_some_and(|pool| pool.domain() == Domain::Slurm) {
        let found = format!("{name}, a pool of Slurm's");
        let advice = "remove it: policies want nodes from Slurm, and Slurm gets them back by itself";
        value.problem(Code::Contradiction, &found, "a pool of Kubernetes'", advice);
        return None;
    }
    Some(name)
}

/// The name of a pool that is in the configuration.
pub(super) fn pool_name(value: &Value<'_>, known: &BTreeSet<PoolName>) -> Option<PoolName> {
    let name = PoolName::from(value.text()?);
    if known.contains(&name) {
        return Some(name);
    }
    let advice = closest(name.as_str(), known.iter().map(PoolName::as_str))
        .map_or_else(|| "add a [[pool]] for it".to_owned(), |close| format!("did you mean {close:?}?"));
    value.problem(
        Code::UnknownName,
        &format!("unknown pool {}", value.shown()),
        "the name of a [[pool]]",
        &advice,
    );
    None
}

fn settings(value: &Value<'_>) -> Option<serde_json::Value> {
    match value.toml {
        DeValue::Table(_) => json(value, value.toml),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_) => value.wrong("a table of settings", "write [policy.settings]"),
    }
}

/// The parser bounds the depth of nesting.
fn json(place: &Value<'_>, value: &DeValue<'_>) -> Option<serde_json::Value> {
    Some(match value {
        DeValue::String(text) => serde_json::Value::String(text.as_ref().to_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            Err(_) => return place.wrong("numbers of 64 bits", "use a smaller number"),
        },
        DeValue::Float(number) => match number.as_str().parse().ok().and_then(serde_json::Number::from_f64) {
            Some(number) => number.into(),
            None => return place.wrong("finite numbers", "remove inf and nan"),
        },
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(datetime) => datetime.to_string().into(),
        DeValue::Array(array) => {
            array.iter().map(|item| json(place, item.get_ref())).collect::<Option<Vec<_>>>()?.into()
        }
        DeValue::Table(table) => table
            .iter()
            .map(|(key, item): (_, &Spanned<DeValue<'_>>)| {
                Some((key.get_ref().as_ref().to_owned(), json(place, item.get_ref())?))
            })
            .collect::<Option<serde_json::Map<_, _>>>()?
            .into(),
    })
}
