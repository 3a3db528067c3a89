//! What the commands print for people. Data goes to standard output, plain and in columns; nothing here knows how it was
//! got.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::{Action, Event, Outcome, ReleaseMode};
use gpu_bridge_core::facts::{kubernetes, slurm};
use gpu_bridge_core::gate::kubernetes::pods_seen::{End, PodSeen};
use gpu_bridge_core::handover;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::planner::{Cancel, Move, Plan, Want};
use serde::Serialize;

use crate::daemon::command::Reply;
use crate::daemon::journal::Line;
use crate::daemon::published::{DemandStatus, NodeStatus, Published, UnderWay, WaitingStatus};

/// Rows under headings, each column as wide as it needs.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (i, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            if i > 0 {
                line.push_str("  ");
            }
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
        }
        line.trim_end().to_owned()
    };
    let mut text = line(headings.to_vec());
    for row in rows {
        text.push('\n');
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

/// `status`: domains, pools, handovers, alarms.
pub(super) fn status(p: &Published) -> String {
    let mut text = String::new();
    let _ =
        writeln!(text, "gpu-bridge {}  {}  epoch {}  ledger line {}", p.version, p.at, p.epoch, p.ledger_seq);
    for domain in &p.domains {
        let seen = match (&domain.seen_at, &domain.unknown) {
            (Some(at), _) => format!("seen {at}"),
            (None, Some(why)) => format!("UNKNOWN: {why}"),
            (None, None) => "UNKNOWN".to_owned(),
        };
        let _ = writeln!(text, "  {:<10}  {seen}", domain.domain);
        if let Some(reached) = &domain.reached {
            let _ = writeln!(text, "  {:<10}  {}", "", self::reached(reached));
        }
    }
    for policy in &p.policies {
        let says = policy.error.as_deref().map_or_else(
            || match &policy.wants {
                Some(wants) => format!("{} wants", wants.len()),
                None => "has not decided yet: nothing is given back".to_owned(),
            },
            |error| format!("FAILED, makes no new proposals: {error}"),
        );
        let _ = writeln!(text, "  policy {:<10}  {}  {says}", policy.policy, policy.mode);
    }
    let rows: Vec<Vec<String>> = p
        .pools
        .iter()
        .map(|pool| {
            vec![
                pool.pool.to_string(),
                pool.domain.to_string(),
                pool.present.to_string(),
                pool.arriving.to_string(),
                pool.leaving.to_string(),
                pool.floor.to_string(),
                pool.ceiling.map_or_else(|| "-".to_owned(), |c| c.to_string()),
            ]
        })
        .collect();
    let headings = ["POOL", "DOMAIN", "NODES", "ARRIVING", "LEAVING", "FLOOR", "CEILING"];
    let _ = writeln!(text, "\n{}", table(&headings, &rows));
    if let Some(demand) = &p.demand {
        let _ = writeln!(text, "\n{}", self::demand(demand, p.at));
    }
    let _ = writeln!(text, "\n{}", nodes(p));
    if p.alarms.is_empty() {
        let unknown = p.domains.iter().filter(|domain| domain.unknown.is_some());
        let unknown: Vec<String> = unknown.map(|domain| domain.domain.to_string()).collect();
        let _ = match unknown.as_slice() {
            [] => write!(text, "\nno alarms"),
            [..] => write!(text, "\nno alarms, but UNKNOWN: {}", unknown.join(", ")),
        };
    } else {
        for alarm in &p.alarms {
            let _ = write!(text, "\nALARM  {alarm}");
        }
    }
    text
}

/// What waits for GPUs in Slurm.
fn demand(demand: &DemandStatus, now: jiff::Timestamp) -> String {
    let rows: Vec<Vec<String>> = demand
        .waiting
        .iter()
        .map(|WaitingStatus { alike, waiting }| {
            let age = waiting.since.map(|since| now.duration_since(since).as_mins());
            vec![
                alike.partition.clone(),
                alike.gpu_type.clone().unwrap_or_else(|| "any".to_owned()),
                alike.nodes.to_string(),
                alike.gpus.to_string(),
                format!("{}{}", waiting.jobs, if waiting.and_more { "+" } else { "" }),
                age.map_or_else(|| "-".to_owned(), |minutes| format!("{minutes} min")),
            ]
        })
        .collect();
    let waiting = if rows.is_empty() {
        "no Slurm job waits for GPU nodes".to_owned()
    } else {
        table(&["PARTITION", "GPU TYPE", "NODES EACH", "GPUS EACH", "JOBS WAITING", "FOR"], &rows)
    };
    let others = [
        demand.aside.values().fold(0, |sum: u32, jobs| sum.saturating_add(*jobs)),
        demand.young,
        u32::try_from(demand.never.len()).unwrap_or(u32::MAX),
        demand.unread,
    ];
    let names = [
        "wait for something else",
        "are too young to count",
        "fit no nodes",
        "are beyond what is told apart",
    ];
    let others = others.iter().zip(names).filter(|(jobs, _)| **jobs > 0);
    let others: Vec<String> = others.map(|(jobs, what)| format!("{jobs} {what}")).collect();
    if others.is_empty() { waiting } else { format!("{waiting}\nOf others, {}", others.join(", ")) }
}

/// Release, REST version, and what goes through which mouth.
pub(super) fn reached(reached: &slurm::Reached) -> String {
    let release = reached.release.as_deref().unwrap_or("of unknown release");
    let api = reached.api_version.as_deref().map_or_else(String::new, |api| format!(", REST {api}"));
    let mut by_mouth: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (what, mouth) in &reached.through {
        by_mouth.entry(mouth).or_default().push(what);
    }
    let through = by_mouth.iter().map(|(mouth, what)| format!("; {mouth}: {}", what.join(", ")));
    format!("Slurm {release}{api}{}", through.collect::<String>())
}

/// `nodes`: a line each.
pub(super) fn nodes(p: &Published) -> String {
    let rows: Vec<Vec<String>> = p.nodes.iter().map(node_row).collect();
    table(
        &["NODE", "STATE", "OWNER", "POOL", "SLURM GATE", "KUBERNETES GATE", "HANDOVER", "NODE'S WORD"],
        &rows,
    )
}

fn node_row(node: &NodeStatus) -> Vec<String> {
    let word = |gate: &gpu_bridge_core::gate::Gate| {
        let text = gate.to_string();
        text.split(' ').next().unwrap_or_default().to_owned()
    };
    let dash = || "-".to_owned();
    vec![
        node.node.to_string(),
        node.management.clone(),
        node.owner.map_or_else(dash, |owner| owner.to_string()),
        node.pool.as_ref().map_or_else(dash, ToString::to_string),
        word(&node.slurm),
        word(&node.kubernetes),
        node.handover.as_ref().map_or_else(dash, |UnderWay { id, step }| format!("{id} {step}")),
        node.node_word.clone(),
    ]
}

/// `windows`: a line each.
pub(super) fn windows(p: &Published) -> String {
    let rows: Vec<Vec<String>> = p
        .windows
        .iter()
        .map(|window| {
            let time = |t: Option<jiff::Timestamp>| t.map_or_else(|| "-".to_owned(), |t| t.to_string());
            vec![
                window.window.clone(),
                window.pool.to_string(),
                window.nodes.to_string(),
                if window.on { "on" } else { "off" }.to_owned(),
                time(window.start),
                time(window.end),
                window.owner.clone(),
                window.ticket.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    table(&["WINDOW", "POOL", "NODES", "NOW", "START", "END", "OWNER", "TICKET"], &rows)
}

/// What `plan` shows to programs.
#[derive(Serialize)]
pub(super) struct Planned<'a> {
    handovers: &'a [handover::Handover],
    moves: &'a [Move],
    cancels: &'a [Cancel],
    denials: Vec<Denial<'a>>,
}

/// A want that was denied.
#[derive(Serialize)]
struct Denial<'a> {
    want: &'a Want,
    code: &'static str,
    message: String,
    rule: &'a Denied,
}

impl<'a> Planned<'a> {
    pub(super) fn of(p: &'a Published) -> Self {
        let Plan { moves, cancels, denials } = &p.plan;
        let denials = denials.iter().map(|denial| {
            let rule = &denial.reason;
            Denial { want: &denial.want, code: rule.code(), message: rule.to_string(), rule }
        });
        Self { handovers: &p.handovers, moves, cancels, denials: denials.collect() }
    }
}

/// `plan`: what the last tick planned, and what is under way or ahead.
pub(super) fn plan(p: &Published) -> String {
    let mut text = String::new();
    let rows: Vec<Vec<String>> = p
        .handovers
        .iter()
        .map(|h| {
            vec![
                h.id.to_string(),
                h.node.to_string(),
                h.to.to_string(),
                h.pool.to_string(),
                h.state.to_string(),
                h.reserve_at.to_string(),
                h.start_at.to_string(),
                h.deadline.to_string(),
                h.why.clone(),
            ]
        })
        .collect();
    let headings = ["HANDOVER", "NODE", "TO", "POOL", "STEP", "RESERVE", "START", "DEADLINE", "WHY"];
    if rows.is_empty() {
        let _ = writeln!(text, "no handover is planned or under way");
    } else {
        let _ = writeln!(text, "{}", table(&headings, &rows));
    }
    let Plan { denials, .. } = &p.plan;
    for denial in denials {
        let want = &denial.want;
        let _ = writeln!(
            text,
            "denied to {}: {} nodes of {} from {} until {}: {}  [{}]",
            want.policy,
            want.count,
            want.pool,
            want.from,
            want.until,
            denial.reason,
            denial.reason.code()
        );
    }
    text.trim_end().to_owned()
}

/// `explain node`: where it is, what happens next and what it waits for, and the story from the ledger.
pub(super) fn explain(p: &Published, name: &NodeName, lines: &[Line]) -> String {
    let mut text = String::new();
    let Some(node) = p.nodes.iter().find(|node| node.node == *name) else {
        return format!("node {name} is not in the inventory");
    };
    let owner = node.owner.map_or_else(|| "nobody".to_owned(), |owner| owner.to_string());
    let pool = node.pool.as_ref().map(|pool| format!(", pool {pool}")).unwrap_or_default();
    let _ = writeln!(text, "node {name}: {}, owner {owner}{pool}", node.management);
    let _ = writeln!(text, "  slurm gate       {}", node.slurm);
    let _ = writeln!(text, "  kubernetes gate  {}", node.kubernetes);
    let _ = writeln!(text, "  node's own word  {}", node.node_word);
    match &node.handover {
        None => {
            let _ = writeln!(text, "  no handover");
        }
        Some(UnderWay { id, step }) => {
            let why = p
                .handovers
                .iter()
                .find(|h| h.id == *id)
                .map(|h| format!(": {} (for {})", h.why, h.requester));
            let _ = writeln!(text, "  handover {id}, {step}{}", why.unwrap_or_default());
            for wait in &node.waits_for {
                let _ = writeln!(text, "    waits for {wait}");
            }
        }
    }
    let _ = writeln!(text, "ledger:");
    for line in lines {
        if let Some(says) = says(&line.event) {
            let _ = writeln!(text, "  {:>6}  {}  {says}", line.seq, line.at);
        }
    }
    text.trim_end().to_owned()
}

/// An event in one line; nothing for those that only repeat what others say.
pub(super) fn says(event: &Event) -> Option<String> {
    Some(match event {
        Event::Started { epoch, version } => format!("gpu-bridge {version} began, epoch {epoch}"),
        Event::Stopped => "gpu-bridge stopped".to_owned(),
        Event::IdsSeen { highest } => format!("marks up to {highest} were found"),
        Event::TimeRanBackwards { domain, was, is } => {
            format!("time ran backwards in {domain}: its counter was at {was}, now it is at {is}")
        }
        Event::Found { found, .. } => {
            let drain = found
                .slurm_drain
                .as_ref()
                .map(|reason| format!(", drained ({reason:?})"))
                .unwrap_or_default();
            format!(
                "found as it was: {} taints and {} labels that concern us{drain}",
                found.taints.len(),
                found.labels.len()
            )
        }
        Event::DrainLifted { .. } => "the drain found there was lifted by its people".to_owned(),
        Event::SeenInQuarantine { jobs, pods, .. } => {
            let jobs = jobs.keys().map(|id| format!("job {id}"));
            let pods = pods.values().map(|seen| format!("pod {}", seen.pod));
            format!("seen there in quarantine: {}", jobs.chain(pods).collect::<Vec<_>>().join(", "))
        }
        Event::Planned(h) => {
            format!("{} planned: to {} ({}), for {}: {}", h.id, h.to, h.pool, h.requester, h.why)
        }
        Event::Handover { id, event } => format!("{id} {}", handover_says(event)),
        Event::Intent { action, .. } => format!("will {}", action_says(action)),
        Event::Counted { .. } | Event::Outcome { outcome: Outcome::Done, .. } => return None,
        Event::Outcome { intent, outcome: Outcome::Budget { why } } => {
            format!("line {intent}: a budget does not allow it now: {why}")
        }
        Event::Outcome { intent, outcome: Outcome::Refused { why } } => {
            format!("line {intent}: refused: {why}")
        }
        Event::Outcome { intent, outcome: Outcome::Denied { denied } } => {
            format!("line {intent}: not done, by a look just before it: {denied}")
        }
        Event::Outcome { intent, outcome: Outcome::Unknown { why } } => {
            format!("line {intent}: may or may not have happened: {why}")
        }
        Event::Decision { policy, asked, decided } => format!("policy {policy} asked for {asked}: {decided}"),
        Event::Refused { user, node, asked, why } => {
            let node = node.as_ref().map(|node| format!("{node}: ")).unwrap_or_default();
            format!("{node}{user} asked to {asked}: refused, {why}")
        }
        Event::AlarmRaised { text, .. } => format!("ALARM {text}"),
        Event::AlarmCleared { key } => format!("alarm {key} ended"),
        Event::Quarantined { why, .. } => format!("QUARANTINED: {why}"),
        Event::QuarantineEnded { .. } => "quarantine ended by adoption".to_owned(),
        Event::Imported { owner, .. } => format!("marks found and imported: with {owner}"),
        Event::ReleaseStarted { mode, user, .. } => {
            let how = match mode {
                ReleaseMode::Plain => "plain",
                ReleaseMode::AsFound => "as found",
            };
            format!("release begins, for {user} ({how})")
        }
        Event::Released { .. } => "released: unmanaged from here on".to_owned(),
        Event::Note { text, .. } => text.clone(),
    })
}

fn handover_says(event: &handover::Event) -> String {
    match event {
        handover::Event::JobsSeen { jobs } => {
            let ids: Vec<String> = jobs.keys().map(ToString::to_string).collect();
            format!("saw jobs {}", ids.join(", "))
        }
        handover::Event::PodsSeen { pods } => {
            let pods: Vec<String> = pods.values().map(pod_says).collect();
            pods.join(", ")
        }
        handover::Event::Permitted(evidence) => {
            format!("may open: {} is {} and {}", evidence.domain, evidence.gate, evidence.emptiness)
        }
        handover::Event::RollBack { why } => format!("rolls back: {why}"),
        handover::Event::Extended { deadline } => format!("waits on, until {deadline}"),
        handover::Event::Reserved
        | handover::Event::DrainStarted
        | handover::Event::EmptyLook { .. }
        | handover::Event::BusyLook { .. }
        | handover::Event::Sealed
        | handover::Event::Opened
        | handover::Event::ClosingStarted
        | handover::Event::Closed { .. }
        | handover::Event::HoldersGone { .. }
        | handover::Event::NodeReplaced { .. } => event.name().to_owned(),
    }
}

fn pod_says(seen: &PodSeen) -> String {
    let pod = &seen.pod;
    match seen.end {
        End::Runs => format!("saw pod {pod}"),
        End::Told { .. } => format!("pod {pod} was told to end or is gone, and may take {} s", seen.grace_s),
        End::Known { .. } => format!("the kubelet knows of the end of pod {pod}"),
        End::Seen => format!("saw pod {pod} end"),
    }
}

fn action_says(action: &Action) -> String {
    match action {
        Action::Slurm(slurm::Action::Drain { node, reason, .. }) => format!("drain {node} ({reason})"),
        Action::Slurm(slurm::Action::Undrain { node, .. }) => format!("undrain {node}"),
        Action::Slurm(slurm::Action::Reserve(spec)) => {
            format!("reserve {} as {} from {} until {}", spec.node, spec.name, spec.start, spec.end)
        }
        Action::Slurm(slurm::Action::Unreserve { name }) => format!("delete reservation {name}"),
        Action::Kubernetes(kubernetes::Action::CreateGate { closed }) => {
            format!("create the Gate with {} nodes on its list", closed.len())
        }
        Action::Kubernetes(kubernetes::Action::CloseGate { node }) => {
            format!("put {node} on the Gate's list")
        }
        Action::Kubernetes(kubernetes::Action::OpenGate { node }) => {
            format!("take {node} off the Gate's list")
        }
        Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
            let taints: Vec<&str> = marks.taints.iter().map(|taint| taint.key.as_str()).collect();
            format!(
                "mark {} (taints: {})",
                marks.node,
                if taints.is_empty() { "none of ours".to_owned() } else { taints.join(", ") }
            )
        }
        Action::Kubernetes(kubernetes::Action::Evict { pod }) => {
            format!("evict pod {}/{}", pod.namespace, pod.name)
        }
    }
}

/// The answer to a request.
pub(super) fn reply(reply: &Reply) -> String {
    let mut text = String::new();
    match reply {
        Reply::Planned { handover } => {
            let _ = write!(text, "handover {handover} planned");
        }
        Reply::Cancelling { handover } => {
            let _ = write!(text, "handover {handover} rolls back");
        }
        Reply::Adopting { nodes } => {
            for one in nodes {
                let says = match (&one.adoption, one.handover) {
                    (Ok(adoption), Some(id)) => {
                        format!("{id}: {} is to own it; {}", adoption.owner, adoption.closes)
                    }
                    (Ok(adoption), None) => {
                        let work: Vec<&str> = adoption
                            .slurm_work
                            .iter()
                            .chain(&adoption.kubernetes_work)
                            .map(String::as_str)
                            .collect();
                        let work = if work.is_empty() { "no work on it".to_owned() } else { work.join("; ") };
                        format!("would be {}'s ({work}); {}", adoption.owner, adoption.closes)
                    }
                    (Err(denied), _) => format!("REFUSED: {denied}  [{}]", denied.code()),
                };
                let _ = writeln!(text, "{}  {says}", one.node);
            }
        }
        Reply::Releasing { nodes } if nodes.is_empty() => {
            text.push_str("no node is managed: there is nothing to release");
        }
        Reply::Releasing { nodes } => {
            for one in nodes {
                let says = match &one.leaves {
                    Ok(leaves) if one.open_on_both => format!("{leaves}: then OPEN ON BOTH SIDES"),
                    Ok(leaves) => leaves.clone(),
                    Err(why) => format!("REFUSED: {why}  [{}]", why.code()),
                };
                let _ = writeln!(text, "{}  {says}", one.node);
            }
        }
        Reply::Explained { lines } => {
            for line in lines {
                if let Some(says) = says(&line.event) {
                    let _ = writeln!(text, "{:>6}  {}  {says}", line.seq, line.at);
                }
            }
        }
    }
    text.trim_end().to_owned()
}
