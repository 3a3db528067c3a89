//! Do our admission policies stand as we print them? We print every field that the server would fill in, so a plain
//! comparison of `spec` tells; whatever else is there was changed by someone.

use gpu_bridge_core::facts::kubernetes::{GuardState, Guards};
use serde_json::Value;

use super::Error;
use super::http::{Http, With};
use super::manifests::{self, BINDINGS_PATH, ManifestOptions, POLICIES_PATH};

/// The four guards as they must stand.
#[derive(Debug)]
pub(super) struct Expected {
    bindings: manifests::Guard,
    pods: manifests::Guard,
    marks: manifests::Guard,
    gate: manifests::Guard,
}

impl Expected {
    pub(super) fn new(options: &ManifestOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self {
            bindings: manifests::bindings(options)?,
            pods: manifests::pods(options)?,
            marks: manifests::marks(options)?,
            gate: manifests::gate(options),
        })
    }
}

/// Reads the four policies with their bindings and compares.
pub(super) async fn look(http: &Http, expected: &Expected) -> Result<Guards, Error> {
    let (bindings, pods, marks, gate) = tokio::try_join!(
        one(http, &expected.bindings),
        one(http, &expected.pods),
        one(http, &expected.marks),
        one(http, &expected.gate),
    )?;
    Ok(Guards { bindings, pods, marks, gate })
}

async fn one(http: &Http, guard: &manifests::Guard) -> Result<GuardState, Error> {
    let policy = http.get(With::Retries, "validatingadmissionpolicies", POLICIES_PATH, guard.name).await?;
    let binding =
        http.get(With::Retries, "validatingadmissionpolicybindings", BINDINGS_PATH, guard.name).await?;
    let policy: Option<Value> = policy.json_if_there()?;
    let binding: Option<Value> = binding.json_if_there()?;
    Ok(state(guard, policy.as_ref(), binding.as_ref()))
}

fn state(guard: &manifests::Guard, policy: Option<&Value>, binding: Option<&Value>) -> GuardState {
    let (Some(policy), Some(binding)) = (policy, binding) else { return GuardState::Missing };
    for (what, found, printed) in [("policy", policy, &guard.policy), ("binding", binding, &guard.binding)] {
        if found.pointer("/metadata/deletionTimestamp").is_some() {
            return GuardState::Altered { what: format!("{what} {} is being deleted", guard.name) };
        }
        if let Some(path) = difference(&found["spec"], &printed["spec"]) {
            return GuardState::Altered {
                what: format!("{what} {}: spec{path} is not as printed", guard.name),
            };
        }
    }
    GuardState::Standing
}

/// Where two values differ first, as a path; `None` where they are alike.
fn difference(found: &Value, printed: &Value) -> Option<String> {
    match (found, printed) {
        (Value::Object(found), Value::Object(printed)) => {
            let keys: std::collections::BTreeSet<&String> = found.keys().chain(printed.keys()).collect();
            keys.into_iter().find_map(|key| {
                let (found, printed) = (found.get(key), printed.get(key));
                difference(found.unwrap_or(&Value::Null), printed.unwrap_or(&Value::Null))
                    .map(|path| format!(".{key}{path}"))
            })
        }
        (Value::Array(found), Value::Array(printed)) if found.len() == printed.len() => {
            let pairs = found.iter().zip(printed).enumerate();
            pairs.into_iter().find_map(|(index, (found, printed))| {
                difference(found, printed).map(|path| format!("[{index}]{path}"))
            })
        }
        (found, printed) => (found != printed).then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_bridge_core::ids::KubeNodeName;
    use serde_json::json;

    fn guard() -> manifests::Guard {
        manifests::bindings(&ManifestOptions::new([KubeNodeName::new("gpu1")], "gpu-bridge")).unwrap()
    }

    #[test]
    fn every_change_of_a_guard_is_seen() {
        let guard = guard();
        assert_eq!(state(&guard, Some(&guard.policy), Some(&guard.binding)), GuardState::Standing);
        assert_eq!(state(&guard, None, Some(&guard.binding)), GuardState::Missing);
        assert_eq!(state(&guard, Some(&guard.policy), None), GuardState::Missing);
        for (pointer, value, expected) in [
            ("/spec/failurePolicy", json!("Ignore"), "spec.failurePolicy"),
            ("/spec/validations", json!([]), "spec.validations"),
            ("/spec/validations/0/expression", json!("true"), "spec.validations[0].expression"),
            ("/spec/matchConditions/0/expression", json!("false"), "spec.matchConditions[0].expression"),
            (
                "/spec/matchConstraints/namespaceSelector",
                json!({ "matchLabels": {} }),
                "namespaceSelector.matchLabels",
            ),
            ("/spec", json!(null), "spec is not"),
        ] {
            let mut policy = guard.policy.clone();
            *policy.pointer_mut(pointer).unwrap() = value;
            let found = state(&guard, Some(&policy), Some(&guard.binding));
            assert!(
                matches!(&found, GuardState::Altered { what } if what.contains(expected)),
                "{pointer}: {found:?}"
            );
        }
        for (key, value) in
            [("validationActions", json!(["Audit"])), ("matchResources", json!({ "resourceRules": [] }))]
        {
            let mut binding = guard.binding.clone();
            binding["spec"][key] = value;
            let found = state(&guard, Some(&guard.policy), Some(&binding));
            assert!(matches!(&found, GuardState::Altered { what } if what.contains(key)), "{key}: {found:?}");
        }
        let mut policy = guard.policy.clone();
        policy["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(matches!(state(&guard, Some(&policy), Some(&guard.binding)), GuardState::Altered { .. }));
        // What the server adds beside `spec` is none of our business.
        policy = guard.policy.clone();
        policy["metadata"]["resourceVersion"] = json!("7");
        policy["status"] = json!({ "observedGeneration": 1 });
        assert_eq!(state(&guard, Some(&policy), Some(&guard.binding)), GuardState::Standing);
    }
}
