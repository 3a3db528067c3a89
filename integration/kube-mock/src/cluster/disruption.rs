//! Deleting pods: the eviction subresource with its budgets, DELETE with its grace, and eviction by taint.
//!
//! Decides as the API server does: under a budget 429 comes before the look at the UID; pods that are pending, done or
//! going bypass budgets; two budgets on one pod are an error 500. A NoExecute taint asks no budget.

use serde_json::{Value, json};

use super::scheduler::tolerates;
use super::{Cluster, Id, Resource, list, seconds, text};
use crate::api::Failure;
use crate::selector::label_selector_matches;

impl Cluster {
    /// The eviction subresource.
    pub(crate) fn evict(&mut self, id: &Id, options: &Value) -> Result<(), Failure> {
        let pod = self.objects.get(id).ok_or_else(|| Failure::not_found(id))?;
        let bypasses = matches!(text(pod, "/status/phase"), "Pending" | "Succeeded" | "Failed")
            || !text(pod, "/metadata/deletionTimestamp").is_empty();
        let mut asked = None;
        if !bypasses {
            let budgets: Vec<&Id> = self.budgets_of(pod, id).collect();
            match budgets[..] {
                [] => {}
                [budget] => {
                    if self.objects[budget]["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) <= 0 {
                        return Err(Failure::budget(&budget.name));
                    }
                    asked = Some(budget.clone());
                }
                _ => {
                    let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                    return Err(Failure::new(500, "InternalError", message.to_owned()));
                }
            }
        }
        self.check_preconditions(id, options)?;
        if let Some(budget) = asked {
            self.change(&budget, |b| {
                let left = b["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) - 1;
                b["status"]["disruptionsAllowed"] = json!(left);
            });
        }
        self.delete_pod(id, options["gracePeriodSeconds"].as_i64());
        Ok(())
    }

    /// Refuses a deletion whose preconditions do not hold.
    pub(crate) fn check_preconditions(&self, id: &Id, options: &Value) -> Result<(), Failure> {
        let object = self.objects.get(id).ok_or_else(|| Failure::not_found(id))?;
        for field in ["uid", "resourceVersion"] {
            let wanted = text(options, &format!("/preconditions/{field}"));
            let found = text(object, &format!("/metadata/{field}"));
            if !wanted.is_empty() && wanted != found {
                let message = format!(
                    "Precondition failed: {field} in precondition: {wanted}, in object meta: {found}"
                );
                return Err(Failure::conflict(id, &message));
            }
        }
        Ok(())
    }

    /// Lets a pod go, with its own grace unless told another. Once going, the grace can only get shorter.
    pub(crate) fn delete_pod(&mut self, id: &Id, grace: Option<i64>) {
        let Some(pod) = self.objects.get(id) else { return };
        let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        let grace = grace.unwrap_or(own).max(0);
        let on_a_node = !text(pod, "/spec/nodeName").is_empty();
        let done = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        if !on_a_node || grace == 0 || done {
            // What runs goes on until its kubelet sees that the object is gone, and then for the grace of its own.
            let going = pod["metadata"]["deletionGracePeriodSeconds"].as_i64();
            let grace = if on_a_node { going.unwrap_or(own) } else { 0 };
            self.plan_stop(id, grace);
            self.let_go(id);
            return;
        }
        let shorter = pod["metadata"]["deletionGracePeriodSeconds"].as_i64().is_none_or(|old| grace < old);
        if shorter {
            let until = self.now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(self.now);
            self.change(id, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!(seconds(until));
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            });
            self.plan_stop(id, grace);
        }
    }

    /// Removes an object, or marks it as going while finalizers hold it.
    pub(crate) fn let_go(&mut self, id: &Id) {
        let Some(object) = self.objects.get(id) else { return };
        if list(object, "/metadata/finalizers").is_empty() {
            self.remove(id);
            return;
        }
        let now = seconds(self.now);
        self.change(id, |object| {
            let metadata = &mut object["metadata"];
            if metadata.get("deletionTimestamp").is_none() {
                metadata["deletionTimestamp"] = json!(now);
            }
            metadata["deletionGracePeriodSeconds"] = json!(0);
        });
    }

    pub(super) fn evict_by_taint(&mut self) {
        let going: Vec<Id> = self
            .all(Resource::Pods)
            .filter(|(_, pod)| {
                text(pod, "/metadata/deletionTimestamp").is_empty()
                    && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
            })
            .filter(|(_, pod)| {
                let node = self.get(&Id::node(text(pod, "/spec/nodeName")));
                let taints = node.map_or(&[][..], |node| list(node, "/spec/taints"));
                taints.iter().any(|taint| taint["effect"] == "NoExecute" && !tolerates(pod, taint))
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in going {
            self.delete_pod(&id, None);
        }
    }

    fn budgets_of<'a>(&'a self, pod: &'a Value, id: &'a Id) -> impl Iterator<Item = &'a Id> {
        self.all(Resource::PodDisruptionBudgets)
            .filter(|(budget_id, budget)| {
                budget_id.namespace == id.namespace
                    && label_selector_matches(budget.pointer("/spec/selector"), pod)
            })
            .map(|(budget_id, _)| budget_id)
    }

    /// The disruption controller: how many pods each budget allows to go.
    pub(super) fn update_budgets(&mut self) {
        let ids: Vec<Id> = self.all(Resource::PodDisruptionBudgets).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let budget = &self.objects[&id];
            let mut expected = 0;
            let mut healthy = 0;
            for (pod_id, pod) in self.all(Resource::Pods) {
                let done = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
                let selected = label_selector_matches(budget.pointer("/spec/selector"), pod);
                if pod_id.namespace == id.namespace && selected && !done {
                    expected += 1;
                    let ready = list(pod, "/status/conditions")
                        .iter()
                        .any(|c| c["type"] == "Ready" && c["status"] == "True");
                    healthy += i64::from(ready && text(pod, "/metadata/deletionTimestamp").is_empty());
                }
            }
            let desired = match (budget["spec"].get("minAvailable"), budget["spec"].get("maxUnavailable")) {
                (Some(min), _) => share(min, expected),
                (None, Some(max)) => expected - share(max, expected),
                (None, None) => expected,
            };
            let generation = budget["metadata"]["generation"].clone();
            self.change(&id, |budget| {
                budget["status"] = json!({
                    "currentHealthy": healthy,
                    "desiredHealthy": desired.max(0),
                    "expectedPods": expected,
                    "disruptionsAllowed": (healthy - desired).max(0),
                    "observedGeneration": generation,
                });
            });
        }
    }
}

/// A count, or a percentage of `all`, rounded up.
fn share(value: &Value, all: i64) -> i64 {
    let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
    percent.map_or(value.as_i64().unwrap_or(0), |percent| (all * percent + 99) / 100)
}
