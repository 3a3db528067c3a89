//! The one admission policy whose effect is modelled: bindings to a node in the Gate's closed list.
//!
//! Decides as `gpu-bridge-bindings` does on a real API server, from the stored policy, its binding and the Gate; of the
//! policy's conditions it reads the name lists only. Without policy or binding nothing is refused. The other policies
//! are stored and have no effect here.

use serde_json::Value;

use super::{Cluster, Id, Resource, list, text};
use crate::api::Failure;

impl Cluster {
    /// Refuses a binding as the policy would.
    pub(super) fn admit_binding(&self, namespace: &str, node: &str) -> Result<(), Failure> {
        for (id, binding) in self.all(Resource::ValidatingAdmissionPolicyBindings) {
            let policy_name = text(binding, "/spec/policyName");
            let Some(policy) = self.get(&Id::cluster(Resource::ValidatingAdmissionPolicies, policy_name))
            else {
                continue;
            };
            let denies = list(binding, "/spec/validationActions").iter().any(|action| action == "Deny");
            if !denies || policy["spec"]["paramKind"]["kind"] != "Gate" || !is_on_bindings(policy) {
                continue;
            }
            if names(policy, "managed").is_some_and(|managed| !managed.contains(&node))
                || names(policy, "untrusted").is_some_and(|trusted| trusted.contains(&namespace))
            {
                continue;
            }
            let gate = Id::cluster(Resource::Gates, text(binding, "/spec/paramRef/name"));
            let why = match self.get(&gate) {
                Some(gate) if list(gate, "/spec/closed").iter().any(|closed| closed == node) => {
                    format!("gpu-bridge: node {node} is closed to Kubernetes")
                }
                None if binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Deny" => {
                    "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
                        .to_owned()
                }
                Some(_) | None => continue,
            };
            let message = format!(
                "ValidatingAdmissionPolicy '{policy_name}' with binding '{}' denied request: {why}",
                id.name
            );
            return Err(Failure::new(422, "Invalid", message));
        }
        Ok(())
    }
}

fn is_on_bindings(policy: &Value) -> bool {
    list(policy, "/spec/matchConstraints/resourceRules")
        .iter()
        .any(|rule| list(rule, "/resources").iter().any(|resource| resource == "pods/binding"))
}

/// The quoted names in one of the policy's match conditions; `None` if it has no such condition.
fn names<'a>(policy: &'a Value, condition: &str) -> Option<Vec<&'a str>> {
    let condition = list(policy, "/spec/matchConditions").iter().find(|c| c["name"] == condition)?;
    Some(text(condition, "/expression").split('\'').skip(1).step_by(2).collect())
}
