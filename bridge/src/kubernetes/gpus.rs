//! Which extended resources are GPUs, and how many of them a pod asks for. Decides from names and amounts alone; knows
//! nothing of nodes or claims.

use std::collections::{BTreeMap, BTreeSet};

use super::Error;
use super::wire::{Container, Pod, Resources};

/// The resource names that stand for GPUs: exact ones, and prefixes written with a `*` at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuResources(BTreeSet<String>);

impl Default for GpuResources {
    /// NVIDIA's and AMD's plugins, and device classes asked for by resource name.
    fn default() -> Self {
        Self(
            ["nvidia.com/gpu*", "nvidia.com/mig-*", "amd.com/gpu", "deviceclass.resource.kubernetes.io/*"]
                .map(str::to_owned)
                .into(),
        )
    }
}

impl GpuResources {
    /// Takes names and prefixes (`nvidia.com/gpu*`).
    ///
    /// # Errors
    /// [`Error::Config`] where one is not a resource name, or there is none at all.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let patterns: BTreeSet<String> = patterns.into_iter().map(Into::into).collect();
        let config = |why: String| Error::Config { what: "GPU resource names".to_owned(), why };
        if patterns.is_empty() {
            return Err(config("none given: then no pod would ever count as holding a GPU".to_owned()));
        }
        for pattern in &patterns {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_');
            if !name.contains('/') || !name.chars().all(good) {
                return Err(config(format!("found {pattern:?}, expected something like nvidia.com/gpu*")));
            }
        }
        Ok(Self(patterns))
    }

    /// Whether this resource is a GPU.
    pub fn contains(&self, resource: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => resource.starts_with(prefix),
            None => resource == pattern,
        })
    }

    /// The same as a regular expression (RE2) that matches whole names.
    pub fn regex(&self) -> String {
        let parts: Vec<String> = self
            .0
            .iter()
            .map(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => format!("{}.*", prefix.replace('.', "[.]")),
                None => pattern.replace('.', "[.]"),
            })
            .collect();
        format!("^({})$", parts.join("|"))
    }

    /// What a pod asks for, claims aside; `None` where it asks for no GPU.
    pub(super) fn asked(&self, pod: &Pod) -> Option<Asked> {
        let mut whys = Vec::new();
        let mut running = Amounts::default();
        let mut peak = Amounts::default();
        // In order: a restartable init container (a sidecar) stays beside all that comes after it.
        for container in &pod.spec.init_containers {
            let amounts = self.amounts(&container.resources, &named("init container", container), &mut whys);
            if container.restart_policy.as_deref() == Some("Always") {
                running.add(&amounts);
                peak.raise(&running);
            } else {
                let mut beside = running.clone();
                beside.add(&amounts);
                peak.raise(&beside);
            }
        }
        for (kind, containers) in
            [("container", &pod.spec.containers), ("ephemeral container", &pod.spec.ephemeral_containers)]
        {
            for container in containers {
                running.add(&self.amounts(&container.resources, &named(kind, container), &mut whys));
            }
        }
        peak.raise(&running);
        if let Some(resources) = &pod.spec.resources {
            peak.raise(&self.amounts(resources, "the pod", &mut whys));
        }
        (!whys.is_empty()).then(|| Asked { gpus: peak.total(), why: whys.join(", ") })
    }

    /// GPUs among a Node's allocatable resources. An amount that can't be read adds nothing, and is logged: such a node
    /// has fewer GPUs than its inventory says, and is no capacity.
    pub(super) fn allocatable(&self, node: &str, allocatable: &BTreeMap<String, String>) -> u32 {
        let gpus = allocatable.iter().filter(|(name, _)| self.contains(name));
        gpus.fold(0, |sum, (name, text)| match count(text) {
            Ok(gpus) => sum.saturating_add(gpus),
            Err(error) => {
                tracing::warn!(node, resource = name, %error, "allocatable amount not readable");
                sum
            }
        })
    }

    fn amounts(&self, resources: &Resources, who: &str, whys: &mut Vec<String>) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, text) in resources.requests.iter().chain(&resources.limits) {
            if !self.contains(name) {
                continue;
            }
            let why = match count(text) {
                Ok(0) => continue,
                Ok(gpus) => {
                    let amount = amounts.0.entry(name.clone()).or_default();
                    *amount = gpus.max(*amount);
                    format!("{who} asks for {name}: {gpus}")
                }
                // It asks for something: that makes it a holder, of how many nobody can say.
                Err(error) => format!("{who} asks for {name}: {error}"),
            };
            if !whys.contains(&why) {
                whys.push(why);
            }
        }
        amounts
    }
}

fn named(kind: &str, container: &Container) -> String {
    format!("{kind} {:?}", container.name)
}

/// GPUs that a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) gpus: u32,
    pub(super) why: String,
}

/// Amounts by resource name.
#[derive(Debug, Clone, Default)]
struct Amounts(BTreeMap<String, u32>);

impl Amounts {
    fn add(&mut self, other: &Self) {
        for (name, gpus) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*gpus);
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, gpus) in &other.0 {
            let most = self.0.entry(name.clone()).or_default();
            *most = gpus.max(most).to_owned();
        }
    }

    fn total(&self) -> u32 {
        self.0.values().fold(0, |sum, gpus| sum.saturating_add(*gpus))
    }
}

/// An amount that is no number of whole GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a number of whole GPUs")]
pub struct BadQuantity {
    /// What was read.
    pub found: String,
}

/// Reads a Kubernetes quantity (`2`, `4k`, `1e3`, `1Ki`) as a number of whole things.
///
/// # Errors
/// [`BadQuantity`] where it is empty, negative, not whole, more than a `u32` holds or no quantity at all.
pub fn count(text: &str) -> Result<u32, BadQuantity> {
    whole(text).ok_or_else(|| BadQuantity { found: text.to_owned() })
}

fn whole(text: &str) -> Option<u32> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (int, fraction) = number.split_once('.').unwrap_or((number, ""));
    if int.len() + fraction.len() == 0 || int.len() + fraction.len() > 25 || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{int}{fraction}").parse().ok()?;
    let (ten, two) = match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        exponent => (exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?, 0_u32),
    };
    let ten = ten.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(1_u128.checked_shl(two)?)?;
    let power = 10_u128.checked_pow(ten.unsigned_abs());
    let value = match power {
        _ if scaled == 0 => 0,
        Some(power) if ten >= 0 => scaled.checked_mul(power)?,
        Some(power) if scaled.is_multiple_of(power) => scaled / power,
        Some(_) | None => return None,
    };
    u32::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("0", 0),
            ("4", 4),
            ("+4", 4),
            ("4k", 4000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1e0", 1),
            ("20e-1", 2),
            ("1Ki", 1024),
            ("2000m", 2),
            ("1.5k", 1500),
            ("2.", 2),
            ("2.0", 2),
            ("0m", 0),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(count(text), Ok(expected), "{text:?}");
        }
        for text in [
            "",
            " ",
            "-1",
            "-0",
            "+",
            ".",
            "k",
            "e3",
            "1e",
            "1ee3",
            "1e+",
            "1.5",
            "500m",
            "1 ",
            "1x",
            "1KI",
            "0x1",
            "1.2.3",
            "é",
            "1é",
            "4294967296",
            "1E",
            "9Ei",
            "1e99",
            "1e-99",
            "1e99999999999",
            "1e-2147483648",
            "99999999999999999999999999",
            "NaN",
            "Infinity",
        ] {
            assert_eq!(count(text), Err(BadQuantity { found: text.to_owned() }), "{text:?}");
        }
    }

    #[test]
    fn names_and_prefixes_match_alike_here_and_in_the_policy() {
        let gpus = GpuResources::default();
        for yes in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.10gb",
            "amd.com/gpu",
            "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        ] {
            assert!(gpus.contains(yes), "{yes}");
        }
        for no in ["cpu", "nvidia.com/nic", "amd.com/gpus", "xnvidia.com/gpu", "nvidiaxcom/gpu", ""] {
            assert!(!gpus.contains(no), "{no}");
        }
        assert_eq!(
            gpus.regex(),
            "^(amd[.]com/gpu|deviceclass[.]resource[.]kubernetes[.]io/.*|nvidia[.]com/gpu.*|nvidia[.]com/mig-.*)$"
        );
        for bad in [vec![], vec!["gpu"], vec!["nvidia.com/g'"], vec!["nvidia.com/*gpu"], vec!["a/b", ""]] {
            assert!(matches!(GpuResources::new(bad.clone()), Err(Error::Config { .. })), "{bad:?}");
        }
    }

    #[test]
    fn an_amount_that_cannot_be_read_is_no_capacity() {
        let amounts = [("nvidia.com/gpu", "4"), ("amd.com/gpu", "-1"), ("cpu", "64")];
        let amounts = amounts.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        assert_eq!(GpuResources::default().allocatable("gpu1", &amounts), 4);
    }
}
