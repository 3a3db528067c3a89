//! Tells people: conditions of nodes, guards, policies, credentials and counters that they should know of, raised in the
//! ledger when they begin and cleared when they end. It decides nothing about nodes.

use std::collections::BTreeMap;

use gpu_bridge_core::event::Event;
use gpu_bridge_core::facts::slurm::Index;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::model::Domain;
use gpu_bridge_core::{leftover, safety};
use jiff::SignedDuration;

use super::engine::Engine;
use crate::ledger::Disk;

/// How long a scheduler may be away before people are told: longer than it takes to start again.
const SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// How far slurmctld's clock may be from ours before people are told.
const CLOCK_MARGIN: SignedDuration = SignedDuration::from_secs(30);

impl<D: Disk> Engine<D> {
    /// Raises the alarms that began and clears those that ended.
    pub(super) fn alarms(&mut self, index: &Index<'_>) {
        let mut on: BTreeMap<String, (Option<NodeName>, String)> = BTreeMap::new();
        let names: Vec<NodeName> = self.journal.book().nodes.keys().cloned().collect();
        for name in names {
            let alarms = self.with_view(&name, index, safety::alarms).unwrap_or_default();
            on.extend(alarms.into_iter().map(|(key, text)| (key, (Some(name.clone()), text))));
        }
        let strangers = safety::strangers(&self.parts.site, self.journal.book());
        on.extend(strangers.into_iter().map(|(key, node, text)| (key, (Some(node), text))));
        if let Some(slurm) = self.facts.slurm.value() {
            let left = leftover::leftovers(&self.parts.site, self.journal.book(), slurm);
            on.extend(left.into_iter().map(|(key, node, text)| (key, (node, text))));
        }
        if let Some(kubernetes) = self.facts.kubernetes.value()
            && self.journal.book().nodes.values().any(|record| record.owner().is_some())
        {
            for flaw in safety::guard_flaws(&kubernetes.guards) {
                let text = format!(
                    "{flaw}: no gate opens until it stands again. `gpu-bridge kubernetes manifests | kubectl apply -f -`"
                );
                on.insert(format!("guard/{flaw}"), (None, text));
            }
        }
        for seat in &self.parts.seats {
            if let Some(error) = &seat.error {
                let name = seat.decider.name();
                let text = format!("policy {name} fails, and what it wanted before goes on: {error}");
                on.insert(format!("policy/{name}"), (None, text));
            }
        }
        let now = self.parts.clock.now();
        let ends = self.facts.slurm.value().and_then(|slurm| slurm.token_ends);
        if let Some(ends) = ends.filter(|ends| now.duration_until(*ends) < self.parts.token_alarm_before) {
            let text = format!(
                "the token for slurmrestd ends at {ends}: write a new one to slurm.token_file before that \
                 (`scontrol token username=USER lifespan=SECONDS`), or nothing of Slurm is seen any more"
            );
            on.insert("token/slurm".to_owned(), (None, text));
        }
        for (domain, since) in &self.unseen {
            if since.duration_until(now) >= SILENCE {
                let text = format!(
                    "{domain} was not seen since {since}: its side is not watched, and nothing opens until it is; what only closes \
                     goes on (`gpu-bridge status` says why)"
                );
                on.insert(format!("unseen/{domain}"), (None, text));
            }
        }
        if let Some(hidden) = &self.hidden {
            on.insert("private/slurm".to_owned(), (None, hidden.clone()));
        }
        if let Some(rights) = self.facts.slurm.value().and_then(|slurm| slurm.rights.as_ref()) {
            on.insert("rights/slurm".to_owned(), (None, rights.clone()));
        }
        if let Some(ahead) = self.facts.slurm.value().map(|slurm| slurm.clock_ahead)
            && ahead.abs() >= CLOCK_MARGIN
        {
            // In steps: a clock that drifts is no new alarm each second.
            let steps = ahead.as_secs() / CLOCK_MARGIN.as_secs();
            let seconds = (steps * CLOCK_MARGIN.as_secs()).abs();
            let side = if ahead.is_negative() { "behind" } else { "ahead of" };
            let text = format!(
                "slurmctld's clock is {seconds} s or more {side} ours: its reservations are judged by its own clock, and what is \
                 planned for an instant begins there that much earlier or later. Set both by NTP"
            );
            on.insert("clock/slurm".to_owned(), (None, text));
        }
        // A counter that was read before and is not any more: nobody would notice a restored backup.
        if let Some(slurm) = self.facts.slurm.value()
            && slurm.next_job_id.is_none()
            && self.counters.slurm.is_some()
        {
            let text = "Slurm's next job id can't be read by `scontrol show config` (the log says why): a slurmctld that \
                        starts from an old backup would not be noticed";
            on.insert("counter/slurm".to_owned(), (None, text.to_owned()));
        }
        let backwards = self.journal.book().backwards;
        let ran =
            [Domain::Slurm, Domain::Kubernetes].into_iter().filter_map(|domain| backwards.alarm(domain, now));
        on.extend(ran.map(|(key, text)| (key, (None, text))));
        let book = self.journal.book();
        let cleared: Vec<String> = book.alarms.keys().filter(|key| !on.contains_key(*key)).cloned().collect();
        on.retain(|key, (_, text)| book.alarms.get(key).is_none_or(|alarm| alarm.text != *text));
        for (key, (node, text)) in on {
            tracing::warn!(alarm = %key, "{text}");
            self.record(&Event::AlarmRaised { key, node, text });
        }
        for key in cleared {
            self.record(&Event::AlarmCleared { key });
        }
    }
}
