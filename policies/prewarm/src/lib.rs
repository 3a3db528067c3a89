//! Windows in, wanted ready nodes out: takes nodes early enough and gives them back after the cool-down.
//!
//! For each pool it says how many nodes should be ready and when: from a window's lead before its start until the
//! cool-down after its end. Windows so close to each other that the nodes would be given back and taken again within a
//! round trip are bridged, so a second spike finds them still there. Which nodes, whose, and whether at all is not known
//! here: the arbiter and the planner decide that.

use gpu_bridge_policy_sdk::{
    self as sdk, Decision, Description, Policy, Proposal, SettingsError, Snapshot, Span,
};

/// The policy.
pub struct Prewarm;

/// Its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Gaps shorter than this are bridged: about what giving a node back and taking it again costs, in seconds.
    pub merge_gap_seconds: u32,
    /// Priority of the proposals.
    pub priority: u32,
}

const SCHEMA: &str = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "merge_gap_seconds": {
      "type": "integer", "minimum": 0, "maximum": 86400, "default": 1800,
      "description": "Nodes stay between two windows when they would be away for less than this many seconds; 0 turns it off."
    },
    "priority": {
      "type": "integer", "minimum": 0, "maximum": 1000, "default": 100,
      "description": "Which proposal wins when two cannot both be had: the greater one."
    }
  }
}"#;

/// Of the ABI: a reason is at most 256 bytes.
const REASON_BYTES: usize = 256;

impl Policy for Prewarm {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "prewarm".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "Has nodes ready when calendar windows open, and gives them back after the cool-down"
                .to_owned(),
            kinds: vec![sdk::kind::WANT_READY],
            settings_schema: SCHEMA.to_owned(),
            attrs: vec![],
        }
    }

    fn validate_settings(settings: &str) -> Result<Settings, Vec<SettingsError>> {
        let mut fields = sdk::Fields::parse(settings)?;
        let merge_gap_seconds = fields.u32("merge_gap_seconds", 1800, 0..=86_400);
        let priority = fields.u32("priority", 100, 0..=1000);
        fields.finish(Settings { merge_gap_seconds, priority })
    }

    fn decide(settings: &Settings, snapshot: &Snapshot) -> Result<Decision, String> {
        let mut spans: Vec<(u32, Span)> = sdk::pools(snapshot)
            .flat_map(|(pool, _)| {
                let wanted = sdk::bridge_gaps(&sdk::wanted(snapshot, pool), settings.merge_gap_seconds);
                wanted.into_iter().map(move |span| (pool, span))
            })
            .filter(|(_, span)| span.until > snapshot.now)
            .collect();
        // A policy may make as many proposals as there are nodes; what comes soonest matters most, and the rest comes
        // up again at a later tick.
        spans.sort_by_key(|(pool, span)| (span.from, *pool));
        if let Some(later) = spans.len().checked_sub(snapshot.nodes.len()).filter(|later| *later > 0) {
            sdk::log::info(&format!("{later} proposals left for later: one per node is allowed"));
            spans.truncate(snapshot.nodes.len());
        }
        let proposals =
            spans.into_iter().map(|(pool, span)| proposal(snapshot, settings, pool, span)).collect();
        Ok(Decision { proposals, attrs: vec![] })
    }
}

fn proposal(snapshot: &Snapshot, settings: &Settings, pool: u32, span: Span) -> Proposal {
    let exist = u32::try_from(snapshot.nodes.len()).unwrap_or(u32::MAX);
    let reason = reason(snapshot, pool, span);
    if span.count > exist {
        sdk::log::warn(&format!("{reason}: {} nodes wanted, but only {exist} exist", span.count));
    }
    let mut proposal = sdk::want_ready(pool, span.count.min(exist), span.from..span.until, reason);
    proposal.priority = settings.priority;
    proposal
}

/// The windows of a span by name, as many as a reason has room for.
fn reason(snapshot: &Snapshot, pool: u32, span: Span) -> String {
    let mut line = String::new();
    let mut left = 0_usize;
    for (_, window) in sdk::windows_for(snapshot, pool, span) {
        let before = if line.is_empty() { "window " } else { ", " };
        // Room is kept for "and 18446744073709551615 more".
        if left > 0 || line.len() + before.len() + window.name.len() > REASON_BYTES - 32 {
            left += 1;
            continue;
        }
        line.push_str(before);
        line.push_str(&window.name);
    }
    // One line, whatever somebody called a window.
    let line = line.replace(char::is_control, " ");
    match (line.is_empty(), left) {
        (true, 0) => "between two windows".to_owned(),
        (true, left) => format!("{left} windows with long names"),
        (false, 0) => line,
        (false, left) => format!("{line} and {left} more"),
    }
}

sdk::export_policy!(Prewarm);

#[cfg(test)]
mod tests;
