//! `[[node]]` and `[[pool]]`: the inventory and what it is divided into. Decides that names are unique, that every node
//! has one home, and that pools make sense; asks neither scheduler whether any of it exists.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::facts::kubernetes::{Effect, Taint};
use gpu_bridge_core::hostlist;
use gpu_bridge_core::ids::{KubeNodeName, NodeName, PoolName, SlurmNodeName};
use gpu_bridge_core::model::{Domain, Escalation, Node, NodeWordRule, Pool, PoolKind, Site};
use jiff::SignedDuration;
use toml::Spanned;
use toml::de::DeValue;

use super::daemon::{or, owned};
use super::problem::Code;
use super::reader::{Table, Value, closest};
use crate::kubernetes;

/// Most GPUs of a node.
const GPUS_MAX: u32 = 64;
/// Most nodes of a site.
const NODES_MAX: u32 = 65_536;

/// The inventory and the pools, and all pool names that were written, also those of pools with problems (so that one
/// mistake is not reported again wherever the pool is named).
pub(super) struct Read {
    pub(super) site: Site,
    pub(super) pool_names: BTreeSet<PoolName>,
}

/// A node before its home is known.
struct Host {
    slurm: SlurmNodeName,
    kubernetes: KubeNodeName,
    gpu_model: String,
    gpus: u32,
    topology_block: Option<String>,
}

pub(super) fn site(root: &Table<'_>) -> Read {
    let mut hosts = BTreeMap::new();
    let tables = root.tables("node");
    if tables.is_empty() {
        root.problem(Code::MissingKey, "node", "nothing", "at least one [[node]]", "list the GPU nodes");
    }
    // Nodes with problems are still known by name.
    let mut names = Names::default();
    for table in tables {
        nodes(table, &mut names, &mut hosts);
    }

    let tables = root.tables("pool");
    if tables.is_empty() {
        root.problem(Code::MissingKey, "pool", "nothing", "at least one [[pool]]", "list the pools");
    }
    let mut site = Site::default();
    let mut homes: BTreeMap<NodeName, PoolName> = BTreeMap::new();
    let mut all_homes_known = true;
    let mut pool_names = BTreeSet::new();
    for table in tables {
        let name = table.need("name", "the pool's name").and_then(|value| name(&value));
        if let Some(name) = &name
            && !pool_names.insert(PoolName::from(name.as_str()))
        {
            table.problem(Code::Duplicate, "name", "a second pool of this name", "unique names", "rename it");
        }
        let home = home_nodes(&table, &names);
        all_homes_known &= home.is_some();
        let mut elsewhere: BTreeMap<PoolName, Vec<NodeName>> = BTreeMap::new();
        for node in home.iter().flat_map(|home| &home.nodes) {
            let pool = PoolName::from(name.as_deref().unwrap_or("?"));
            if let Some(other) = homes.insert(node.clone(), pool) {
                elsewhere.entry(other).or_default().push(node.clone());
            }
        }
        for (other, nodes) in elsewhere {
            let found = format!("{}, at home in {other} already", collapse(&nodes));
            let expected = "one home for each node";
            table.problem(Code::Duplicate, "nodes", &found, expected, "remove them from one of the two");
        }
        if let Some(pool) = pool(table, name, home.and_then(|home| home.count)) {
            site.pools.insert(pool.name.clone(), pool);
        }
    }
    let mut homeless = Vec::new();
    for (name, host) in hosts {
        let Some(home) = homes.get(&name) else {
            homeless.push(name);
            continue;
        };
        let Host { slurm, kubernetes, gpu_model, gpus, topology_block } = host;
        let home = home.clone();
        let node = Node { name: name.clone(), slurm, kubernetes, gpu_model, gpus, topology_block, home };
        site.nodes.insert(name, node);
    }
    // A list of a pool's that can't be read was complained of already; who is in it nobody knows.
    if all_homes_known && !homeless.is_empty() {
        let found = format!("{} {} in no pool", plural("node", homeless.len()), collapse(&homeless));
        let advice = "add to the nodes of a pool what belongs to it when nobody borrows it";
        root.problem(Code::Contradiction, "node", &found, "a home pool for each node", advice);
    }
    Read { site, pool_names }
}

/// All names of nodes so far.
#[derive(Default)]
struct Names {
    nodes: BTreeSet<NodeName>,
    /// A list of names could not be read, so there are more.
    incomplete: bool,
    /// By name in Slurm.
    slurm: BTreeMap<String, NodeName>,
    /// By name in Kubernetes.
    kubernetes: BTreeMap<String, NodeName>,
}

fn collapse(nodes: &[NodeName]) -> String {
    hostlist::collapse(nodes.iter().map(NodeName::as_str))
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// One `[[node]]`: a name, or a host list with equal properties. What is wrong with several of its names is one problem.
fn nodes(table: Table<'_>, known: &mut Names, hosts: &mut BTreeMap<NodeName, Host>) {
    let expected = "a name or a host list such as \"gpu[1-4]\"";
    let names = table.need("name", expected).and_then(|value| host_list(&value));
    known.incomplete |= names.is_none();
    let count = names.as_ref().map(Vec::len);
    let slurm = same_count(table.get("slurm"), count, names.as_ref());
    let kubernetes = same_count(table.get("kubernetes"), count, names.as_ref());
    let gpu_model =
        table.need("gpu_model", "the GPU model, such as \"h100\"").and_then(|value| owned(&value));
    let gpus = table.need("gpus", "the number of GPUs").and_then(|value| value.count(1..=GPUS_MAX));
    let topology_block = or(table.get("topology_block"), |value| owned(value).map(Some), || None);
    let names: Option<Vec<NodeName>> = names.map(|names| names.into_iter().map(NodeName::new).collect());
    let repeated: BTreeSet<NodeName> =
        names.iter().flatten().filter(|name| !known.nodes.insert((*name).clone())).cloned().collect();
    if !repeated.is_empty() {
        let list = collapse(&repeated.iter().cloned().collect::<Vec<_>>());
        let found = format!("{} {list} a second time", plural("node", repeated.len()));
        table.problem(Code::Duplicate, "name", &found, "each node once", "remove one of the two");
    }
    kubernetes_names(&table, kubernetes.as_deref().unwrap_or_default());
    // Two nodes here must never be one host there.
    for (domain, there, taken) in
        [("slurm", &slurm, &mut known.slurm), ("kubernetes", &kubernetes, &mut known.kubernetes)]
    {
        let key = if table.get(domain).is_some() { domain } else { "name" };
        let (Some(names), Some(there)) = (&names, there) else { continue };
        let mut twice = Vec::new();
        for (node, name) in names.iter().zip(there) {
            match taken.get(name) {
                None => drop(taken.insert(name.clone(), node.clone())),
                // A node that is there twice was complained of already.
                Some(first) if key != "name" || !repeated.contains(node) => {
                    twice.push((name.as_str(), first.clone(), node.clone()));
                }
                Some(_) => {}
            }
        }
        let Some((name, first, second)) = twice.first() else { continue };
        let found = if twice.len() == 1 {
            format!("{name} for two nodes in {domain}, {first} and {second}")
        } else {
            let all = hostlist::collapse(twice.iter().map(|(name, _, _)| name));
            format!("{all} for two nodes each in {domain}, {name} for {first} and {second}")
        };
        table.problem(Code::Duplicate, key, &found, "another name for each node", "correct the names");
    }
    table.finish();
    let (Some(names), Some(slurm), Some(kubernetes)) = (names, slurm, kubernetes) else { return };
    let (Some(gpu_model), Some(gpus), Some(topology_block)) = (gpu_model, gpus, topology_block) else {
        return;
    };
    for ((name, slurm), kubernetes) in names.into_iter().zip(slurm).zip(kubernetes) {
        let host = Host {
            slurm: SlurmNodeName::new(slurm),
            kubernetes: KubeNodeName::new(kubernetes),
            gpu_model: gpu_model.clone(),
            gpus,
            topology_block: topology_block.clone(),
        };
        hosts.entry(name).or_insert(host);
    }
}

/// Refuses names that no Node can have.
fn kubernetes_names(table: &Table<'_>, names: &[String]) {
    let bad: Vec<&String> = names.iter().filter(|name| !kubernetes::is_name(name)).collect();
    if bad.is_empty() {
        return;
    }
    let found =
        format!("{}, which can be no {} in Kubernetes", hostlist::collapse(&bad), plural("name", bad.len()));
    let expected = "lower-case letters, digits, - and . (at most 253)";
    let (key, advice) = match table.get("kubernetes") {
        Some(_) => ("kubernetes", "write it as `kubectl get nodes` does"),
        None => ("name", "set kubernetes to what `kubectl get nodes` shows"),
    };
    table.problem(Code::Value, key, &found, expected, advice);
}

/// Names in a domain, as many as the nodes have; the nodes' own by default.
fn same_count(
    value: Option<Value<'_>>,
    count: Option<usize>,
    names: Option<&Vec<String>>,
) -> Option<Vec<String>> {
    let Some(value) = value else { return names.cloned() };
    let found = host_list(&value)?;
    if let Some(count) = count.filter(|count| *count != found.len()) {
        let expected = format!("{count} names, as many as in name");
        return value.wrong(&expected, "give both lists the same length and order");
    }
    Some(found)
}

fn host_list(value: &Value<'_>) -> Option<Vec<String>> {
    match hostlist::expand(value.text()?) {
        Ok(names) => Some(names),
        Err(error) => value.wrong("a host list such as \"gpu[1-3,07-10]-ib0\"", &format!("it {error}")),
    }
}

/// A pool's name becomes a label value and part of URLs.
fn name(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let fits = text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    if fits {
        return Some(text.to_owned());
    }
    value.wrong("letters, digits, - _ and . (at most 63)", "rename it")
}

/// The pool's own nodes.
struct Home {
    nodes: Vec<NodeName>,
    /// How many; unknown where some of them are.
    count: Option<usize>,
}

/// The pool's own nodes. `None` where they can't be read, which is a problem already.
fn home_nodes(table: &Table<'_>, known: &Names) -> Option<Home> {
    let on_loan = or(table.get("on_loan_only"), Value::flag, || false)?;
    let Some(value) = table.get("nodes") else {
        if !on_loan {
            let advice = "list its nodes, or set on_loan_only = true if it lives on loans from other pools";
            table.problem(Code::MissingKey, "nodes", "a pool without nodes", "a host list", advice);
            return None;
        }
        return Some(Home { nodes: Vec::new(), count: Some(0) });
    };
    if on_loan {
        value.problem(
            Code::Contradiction,
            "nodes of a pool with on_loan_only",
            "one of the two",
            "remove one",
        );
    }
    let names = host_list(&value)?.into_iter().map(NodeName::new);
    let (mut nodes, unknown): (Vec<NodeName>, Vec<NodeName>) =
        names.partition(|node| known.nodes.contains(node));
    // Where a [[node]] can't be read, these may be its nodes.
    if let Some(first) = unknown.first()
        && !known.incomplete
    {
        let close = closest(first.as_str(), known.nodes.iter().map(NodeName::as_str));
        let advice = match (close, unknown.len()) {
            (Some(close), 1) => format!("did you mean {close}?"),
            (Some(_) | None, _) => "add a [[node]] for what is missing, or correct the list".to_owned(),
        };
        let found = format!("unknown {} {}", plural("node", unknown.len()), collapse(&unknown));
        value.problem(Code::UnknownName, &found, "names of [[node]] tables", &advice);
    }
    nodes.sort();
    let before = nodes.len();
    nodes.dedup();
    if nodes.len() < before {
        value.problem(Code::Duplicate, "a node twice", "each node once", "remove one of the two");
    }
    let count = unknown.is_empty().then_some(nodes.len());
    Some(Home { nodes, count })
}

fn pool(table: Table<'_>, name: Option<String>, home_count: Option<usize>) -> Option<Pool> {
    let domains = [("slurm", Domain::Slurm), ("kubernetes", Domain::Kubernetes)];
    let domain = table.need("domain", "\"slurm\" or \"kubernetes\"").and_then(|value| value.choice(&domains));
    let kind = kind(&table, domain);
    let limits = limits(&table, home_count);
    let max_handovers = or(table.get("max_handovers"), |value| value.count(1..=1_024), || 2);
    let escalation = or(table.get("escalation"), escalation, || Escalation::Wait);
    let deadline = deadline(&table, domain);
    let protected_priority = or(
        table.get("protected_priority"),
        |value| {
            let priority = value.integer(i64::from(i32::MIN)..=i64::from(i32::MAX))?;
            i32::try_from(priority).ok().map(Some)
        },
        || None,
    );
    only_in(&table, "protected_priority", domain, Domain::Kubernetes);
    let node_word = node_word(&table);
    table.finish();
    let (floor, ceiling) = limits?;
    Some(Pool {
        name: PoolName::new(name?),
        kind: kind?,
        floor,
        ceiling,
        max_handovers: max_handovers?,
        deadline: deadline?,
        escalation: escalation?,
        protected_priority: protected_priority?,
        node_word: node_word?,
    })
}

/// `partition`, or `labels` and `taints`.
fn kind(table: &Table<'_>, domain: Option<Domain>) -> Option<PoolKind> {
    only_in(table, "partition", domain, Domain::Slurm);
    only_in(table, "labels", domain, Domain::Kubernetes);
    only_in(table, "taints", domain, Domain::Kubernetes);
    match domain? {
        Domain::Slurm => {
            let partition = table.need("partition", "the name of a Slurm partition")?;
            Some(PoolKind::Partition { partition: owned(&partition)? })
        }
        Domain::Kubernetes => {
            let labels = or(table.get("labels"), labels, BTreeMap::new);
            let taints = or(table.get("taints"), taints, Vec::new);
            Some(PoolKind::NodePool { labels: labels?, taints: taints? })
        }
    }
}

/// Refuses a key that means nothing in the pool's domain.
fn only_in(table: &Table<'_>, key: &'static str, domain: Option<Domain>, meant: Domain) {
    if let (Some(value), Some(domain)) = (table.get(key), domain)
        && domain != meant
    {
        let found = format!("{key} in a pool of domain {domain}");
        value.problem(
            Code::Contradiction,
            &found,
            &format!("{key} only where domain is {meant}"),
            "remove it",
        );
    }
}

fn labels(value: &Value<'_>) -> Option<BTreeMap<String, String>> {
    let DeValue::Table(table) = value.toml else {
        return value.wrong("a table of label = \"value\"", "write { nodepool = \"gpu-burst\" }");
    };
    let mut labels = BTreeMap::new();
    for (key, text) in table {
        match text.get_ref() {
            DeValue::String(text) => {
                let key = key.get_ref().as_ref();
                if key.starts_with("gpu-bridge.io/") {
                    return value
                        .wrong("labels of your own", "remove gpu-bridge.io/ labels: the daemon sets them");
                }
                labels.insert(key.to_owned(), text.as_ref().to_owned());
            }
            DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => return wrong_label(value, key),
        }
    }
    Some(labels)
}

fn wrong_label<T>(value: &Value<'_>, key: &Spanned<std::borrow::Cow<'_, str>>) -> Option<T> {
    let advice = format!("put the value of {:?} in quotes; quote keys with dots too", key.get_ref());
    value.wrong("a table of label = \"value\"", &advice)
}

fn taints(value: &Value<'_>) -> Option<Vec<Taint>> {
    let items = value.list()?;
    let count = items.len();
    let taints: Vec<Taint> = items.iter().filter_map(taint).collect();
    (taints.len() == count).then_some(taints)
}

/// `key=value:Effect` or `key:Effect`.
fn taint(value: &Value<'_>) -> Option<Taint> {
    const EXPECTED: &str = "\"key=value:NoSchedule\"";
    let text = value.text()?;
    let Some((left, effect)) = text.rsplit_once(':') else {
        return value.wrong(EXPECTED, "add :NoSchedule, :PreferNoSchedule or :NoExecute");
    };
    let effect = match effect {
        "NoSchedule" => Effect::NoSchedule,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => return value.wrong(EXPECTED, "use the effect NoSchedule, PreferNoSchedule or NoExecute"),
    };
    let (key, taint_value) = left.split_once('=').unwrap_or((left, ""));
    if key.is_empty() || key.starts_with("gpu-bridge.io/") {
        return value.wrong(EXPECTED, "use a key of your own; the daemon sets gpu-bridge.io/ taints itself");
    }
    Some(Taint { key: key.to_owned(), value: taint_value.to_owned(), effect })
}

/// `floor` and `ceiling`, in nodes.
fn limits(table: &Table<'_>, home_count: Option<usize>) -> Option<(u32, Option<u32>)> {
    let floor = or(table.get("floor"), |value| value.count(0..=NODES_MAX), || 0)?;
    let ceiling = or(table.get("ceiling"), |value| value.count(1..=NODES_MAX).map(Some), || None)?;
    if ceiling.is_some_and(|ceiling| ceiling < floor) {
        table.problem(
            Code::Contradiction,
            "ceiling",
            "a ceiling below the floor",
            "floor ≤ ceiling",
            "correct one of the two",
        );
    }
    if home_count.is_some_and(|count| u32::try_from(count).is_ok_and(|count| count < floor)) {
        table.problem(
            Code::Contradiction,
            "floor",
            &format!("a floor of {floor} in a pool with fewer nodes of its own"),
            "a floor that its own nodes can keep",
            "lower it",
        );
    }
    Some((floor, ceiling))
}

fn escalation(value: &Value<'_>) -> Option<Escalation> {
    let choices =
        [("wait", Some(Escalation::Wait)), ("roll-back", Some(Escalation::RollBack)), ("requeue", None)];
    let choice = value.choice(&choices)?;
    if choice.is_none() {
        let advice = "use \"wait\" or \"roll-back\"";
        value.problem(Code::NotYet, "\"requeue\"", "an escalation of this release", advice);
    }
    choice
}

/// `drain_deadline` of a Slurm pool (1 min to 90 d, default 24 h), `evict_deadline` of a Kubernetes pool (10 s to
/// 7 d, default 30 min).
fn deadline(table: &Table<'_>, domain: Option<Domain>) -> Option<SignedDuration> {
    only_in(table, "drain_deadline", domain, Domain::Slurm);
    only_in(table, "evict_deadline", domain, Domain::Kubernetes);
    let (key, bounds, default) = match domain? {
        Domain::Slurm => (
            "drain_deadline",
            (SignedDuration::from_mins(1), SignedDuration::from_hours(90 * 24)),
            SignedDuration::from_hours(24),
        ),
        Domain::Kubernetes => (
            "evict_deadline",
            (SignedDuration::from_secs(10), SignedDuration::from_hours(7 * 24)),
            SignedDuration::from_mins(30),
        ),
    };
    let in_bounds = |value: &Value<'_>| {
        let found = value.duration()?;
        if (bounds.0..=bounds.1).contains(&found) {
            return Some(found);
        }
        value.wrong(&format!("{:#} to {:#}", bounds.0, bounds.1), "use a duration in this range")
    };
    or(table.get(key), in_bounds, || default)
}

fn node_word(table: &Table<'_>) -> Option<NodeWordRule> {
    const ADVICE: &str =
        "set node_word = \"absent-allowed\" and say in node_word_reason why that is acceptable here";
    #[derive(Clone, Copy)]
    enum Word {
        Required,
        AbsentAllowed,
    }
    let words = [("required", Word::Required), ("absent-allowed", Word::AbsentAllowed)];
    let reason = or(table.get("node_word_reason"), |value| owned(value).map(Some), || None);
    match or(table.get("node_word"), |value| value.choice(&words), || Word::Required)? {
        Word::Required => {
            let expected = "a release with the node check (this one has none yet)";
            table.problem(Code::NotYet, "node_word", "\"required\" (the default)", expected, ADVICE);
            None
        }
        Word::AbsentAllowed => {
            let reason = reason?;
            if reason.is_none() {
                let expected = "a sentence that status shows beside each node";
                table.problem(Code::MissingKey, "node_word_reason", "nothing", expected, ADVICE);
            }
            Some(NodeWordRule::AbsentAllowed { reason: reason? })
        }
    }
}
