//! Which resources the server knows, and how objects are named.

/// A resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "they are named as in Kubernetes")]
pub enum Resource {
    Namespaces,
    Nodes,
    Pods,
    Events,
    Leases,
    PodDisruptionBudgets,
    Gates,
    ValidatingAdmissionPolicies,
    ValidatingAdmissionPolicyBindings,
    CustomResourceDefinitions,
    ResourceClaims,
    ResourceSlices,
    DaemonSets,
}

pub(crate) struct Info {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
}

impl Info {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

impl Resource {
    pub(crate) const ALL: [Resource; 13] = [
        Resource::Namespaces,
        Resource::Nodes,
        Resource::Pods,
        Resource::Events,
        Resource::Leases,
        Resource::PodDisruptionBudgets,
        Resource::Gates,
        Resource::ValidatingAdmissionPolicies,
        Resource::ValidatingAdmissionPolicyBindings,
        Resource::CustomResourceDefinitions,
        Resource::ResourceClaims,
        Resource::ResourceSlices,
        Resource::DaemonSets,
    ];

    pub(crate) fn info(self) -> Info {
        let (group, version, plural, kind, namespaced) = match self {
            Resource::Namespaces => ("", "v1", "namespaces", "Namespace", false),
            Resource::Nodes => ("", "v1", "nodes", "Node", false),
            Resource::Pods => ("", "v1", "pods", "Pod", true),
            Resource::Events => ("", "v1", "events", "Event", true),
            Resource::Leases => ("coordination.k8s.io", "v1", "leases", "Lease", true),
            Resource::PodDisruptionBudgets => {
                ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true)
            }
            Resource::Gates => ("gpu-bridge.io", "v1", "gates", "Gate", false),
            Resource::ValidatingAdmissionPolicies => (
                "admissionregistration.k8s.io",
                "v1",
                "validatingadmissionpolicies",
                "ValidatingAdmissionPolicy",
                false,
            ),
            Resource::ValidatingAdmissionPolicyBindings => (
                "admissionregistration.k8s.io",
                "v1",
                "validatingadmissionpolicybindings",
                "ValidatingAdmissionPolicyBinding",
                false,
            ),
            Resource::CustomResourceDefinitions => {
                ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false)
            }
            Resource::ResourceClaims => ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", true),
            Resource::ResourceSlices => ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", false),
            Resource::DaemonSets => ("apps", "v1", "daemonsets", "DaemonSet", true),
        };
        Info { group, version, plural, kind, namespaced }
    }

    pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| {
            let info = resource.info();
            (info.group, info.version, info.plural) == (group, version, plural)
        })
    }

    /// Whether status is changed through its own subresource only.
    pub(crate) fn has_status(self) -> bool {
        matches!(
            self,
            Resource::Nodes | Resource::Pods | Resource::PodDisruptionBudgets | Resource::Namespaces
        )
    }
}

/// What names an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Its resource.
    pub resource: Resource,
    /// Its namespace; empty where it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Id {
    /// Names an object without a namespace.
    pub fn cluster(resource: Resource, name: &str) -> Self {
        Id { resource, namespace: String::new(), name: name.to_owned() }
    }

    /// Names an object in a namespace.
    pub fn namespaced(resource: Resource, namespace: &str, name: &str) -> Self {
        Id { resource, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Names a node.
    pub fn node(name: &str) -> Self {
        Self::cluster(Resource::Nodes, name)
    }

    /// Names a pod.
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self::namespaced(Resource::Pods, namespace, name)
    }
}
