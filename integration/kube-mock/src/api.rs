//! The HTTP API as a pure function: a request goes in, an answer comes out, the cluster changes.
//!
//! Decides what each path means and which answer a real API server would give. What is not modelled is refused with a
//! word about it, never answered with a guess. Knows no sockets; a watch is answered with what to watch.

use serde_json::{Value, json};

use crate::cluster::{Cluster, Id, Resource, list, text};
use crate::selector::Selector;

/// One request.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Query parameters, decoded.
    pub query: Vec<(String, String)>,
    /// `Content-Type`.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

/// What comes back.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A JSON document.
    Json {
        /// HTTP status.
        code: u16,
        /// The document.
        body: Value,
    },
    /// Plain text, with status 200.
    Text(&'static str),
    /// A stream of changes.
    Watch(WatchQuery),
}

/// What a watch is about.
#[derive(Debug, Clone)]
pub struct WatchQuery {
    pub(crate) resource: Resource,
    pub(crate) namespace: Option<String>,
    pub(crate) selector: Selector,
    /// Changes after this version.
    pub(crate) after: u64,
    /// Whether everything that is there comes first.
    pub(crate) initial: bool,
    pub(crate) bookmarks: bool,
    /// How long it lasts at most, in seconds.
    pub(crate) timeout_s: Option<u64>,
}

/// A refusal, as a `metav1.Status` says it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct Failure {
    /// HTTP status.
    pub code: u16,
    /// Machine-readable reason.
    pub reason: &'static str,
    /// What a person reads.
    pub message: String,
    /// Name of a budget that forbids an eviction.
    budget: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: String) -> Self {
        Failure { code, reason, message, budget: None }
    }

    pub(crate) fn not_found(id: &Id) -> Self {
        let info = id.resource.info();
        let group = if info.group.is_empty() { String::new() } else { format!(".{}", info.group) };
        Self::new(404, "NotFound", format!("{}{group} {:?} not found", info.plural, id.name))
    }

    pub(crate) fn conflict(id: &Id, why: &str) -> Self {
        let plural = id.resource.info().plural;
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {plural} {:?}: {why}", id.name))
    }

    pub(crate) fn budget(name: &str) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.".to_owned();
        Failure { budget: Some(name.to_owned()), ..Self::new(429, "TooManyRequests", message) }
    }

    /// The answer that says so.
    pub fn answer(&self) -> Answer {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(budget) = &self.budget {
            let message = format!("The disruption budget {budget} does not allow evicting the pod now");
            body["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": message}]});
        }
        Answer::Json { code: self.code, body }
    }
}

fn bad_request(message: impl Into<String>) -> Failure {
    Failure::new(400, "BadRequest", message.into())
}

/// What a path names.
enum Target<'a> {
    Collection { resource: Resource, namespace: Option<&'a str> },
    Object { id: Id, subresource: &'a str },
}

impl Request {
    fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn is(&self, name: &str) -> bool {
        matches!(self.query(name), Some("1" | "true"))
    }

    fn json(&self) -> Result<Value, Failure> {
        if self.body.is_empty() {
            return Ok(json!({}));
        }
        serde_json::from_slice(&self.body).map_err(|e| bad_request(format!("body is no JSON: {e}")))
    }
}

impl Cluster {
    /// Answers a request.
    pub fn request(&mut self, request: &Request) -> Answer {
        if request.query("dryRun") == Some("All") {
            // Whatever it does, it does to a copy, which needs no memory of past changes.
            let log = std::mem::take(&mut self.log);
            let answer = self.clone().answer(request);
            self.log = log;
            return answer;
        }
        self.answer(request)
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let answer = self.route(request).unwrap_or_else(|failure| failure.answer());
        if request.method != "GET" {
            self.settle();
        }
        answer
    }

    fn route(&mut self, request: &Request) -> Result<Answer, Failure> {
        let segments: Vec<&str> = request.path.split('/').filter(|s| !s.is_empty()).collect();
        let (group, version, rest) = match segments[..] {
            ["readyz" | "livez" | "healthz", ..] => return Ok(Answer::Text("ok")),
            ["version"] => return Ok(ok(version_info())),
            ["api"] => return Ok(ok(json!({"kind": "APIVersions", "versions": ["v1"]}))),
            ["apis"] => return Ok(ok(groups())),
            ["api", "v1"] => return Ok(ok(resources("", "v1"))),
            ["apis", group, version] => return Ok(ok(resources(group, version))),
            ["api", version, ref rest @ ..] => ("", version, rest),
            ["apis", group, version, ref rest @ ..] => (group, version, rest),
            _ => return Err(no_such_path(request)),
        };
        match (request.method.as_str(), group, rest) {
            ("POST", "authorization.k8s.io", ["selfsubjectaccessreviews"]) => {
                return self.review_access(request);
            }
            ("POST", "authentication.k8s.io", ["selfsubjectreviews"]) => return who_am_i(request),
            _ => {}
        }
        match target(group, version, rest).ok_or_else(|| no_such_path(request))? {
            Target::Collection { resource, namespace } => match request.method.as_str() {
                "GET" if request.is("watch") => self.watch(request, resource, namespace),
                "GET" => self.list(request, resource, namespace),
                "POST" if resource == Resource::Pods && namespace.is_none() => Err(no_such_path(request)),
                "POST" => self.post(request, resource, namespace.unwrap_or_default()),
                _ => Err(not_allowed(request)),
            },
            Target::Object { id, subresource } => self.on_object(request, &id, subresource),
        }
    }

    fn on_object(&mut self, request: &Request, id: &Id, subresource: &str) -> Result<Answer, Failure> {
        match (request.method.as_str(), subresource) {
            ("GET", "" | "status") => self.found(id, 200),
            ("PUT" | "PATCH", "") => self.update(request, id, Part::Main),
            ("PUT" | "PATCH", "status") if id.resource.has_status() => self.update(request, id, Part::Status),
            ("DELETE", "") => self.delete(request, id),
            ("POST", "binding") if id.resource == Resource::Pods => {
                let body = request.json()?;
                self.bind(id, text(&body, "/target/name"))?;
                Ok(created())
            }
            ("POST", "eviction") if id.resource == Resource::Pods => {
                let body = request.json()?;
                self.evict(id, &body["deleteOptions"])?;
                Ok(created())
            }
            (_, "" | "status" | "binding" | "eviction") => Err(not_allowed(request)),
            _ => Err(no_such_path(request)),
        }
    }

    fn found(&self, id: &Id, code: u16) -> Result<Answer, Failure> {
        let object = self.get(id).ok_or_else(|| Failure::not_found(id))?;
        Ok(Answer::Json { code, body: object.clone() })
    }

    fn list(
        &self,
        request: &Request,
        resource: Resource,
        namespace: Option<&str>,
    ) -> Result<Answer, Failure> {
        let selector = Selector::parse(request.query("fieldSelector"), request.query("labelSelector"))?;
        let limit = match request.query("limit") {
            None | Some("0") => usize::MAX,
            Some(limit) => limit.parse().map_err(|_| bad_request("limit is no number"))?,
        };
        let after = request.query("continue").map(|token| token.split_once('/').unwrap_or(("", token)));
        let mut matching = self
            .all(resource)
            .filter(|(id, _)| namespace.is_none_or(|namespace| id.namespace == namespace))
            .filter(|(id, _)| after.is_none_or(|after| (id.namespace.as_str(), id.name.as_str()) > after))
            .filter(|(_, object)| selector.matches(object));
        let mut items = Vec::new();
        let mut last = String::new();
        for (id, object) in matching.by_ref().take(limit) {
            items.push(object.clone());
            last = format!("{}/{}", id.namespace, id.name);
        }
        let info = resource.info();
        let mut metadata = json!({"resourceVersion": self.version().to_string()});
        if matching.next().is_some() {
            metadata["continue"] = json!(last);
        }
        Ok(ok(json!({
            "kind": format!("{}List", info.kind), "apiVersion": info.api_version(), "metadata": metadata, "items": items,
        })))
    }

    fn watch(
        &self,
        request: &Request,
        resource: Resource,
        namespace: Option<&str>,
    ) -> Result<Answer, Failure> {
        let version = request.query("resourceVersion").unwrap_or_default();
        let after = match version {
            "" | "0" => self.version(),
            version => version.parse().map_err(|_| bad_request("resourceVersion is no number"))?,
        };
        // Without a version a watch begins with what is there.
        let initial = request.is("sendInitialEvents") || matches!(version, "" | "0");
        let after = if initial { self.version() } else { after };
        let timeout_s = request.query("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
        let selector = Selector::parse(request.query("fieldSelector"), request.query("labelSelector"))?;
        let bookmarks = request.is("allowWatchBookmarks");
        let namespace = namespace.map(str::to_owned);
        drop(self.changes_after(after)?);
        Ok(Answer::Watch(WatchQuery { resource, namespace, selector, after, initial, bookmarks, timeout_s }))
    }

    fn post(&mut self, request: &Request, resource: Resource, namespace: &str) -> Result<Answer, Failure> {
        let mut object = request.json()?;
        if object["metadata"]["name"].is_null() && object["metadata"]["generateName"].is_string() {
            let name = format!("{}{:05}", text(&object, "/metadata/generateName"), self.version());
            object["metadata"]["name"] = json!(name);
        }
        let name = text(&object, "/metadata/name").to_owned();
        if name.is_empty() {
            return Err(Failure::new(422, "Invalid", "metadata.name: Required value".to_owned()));
        }
        let named = text(&object, "/metadata/namespace");
        if !named.is_empty() && named != namespace {
            return Err(bad_request(
                "the namespace of the object does not match the namespace of the request",
            ));
        }
        if resource.info().namespaced && self.get(&Id::cluster(Resource::Namespaces, namespace)).is_none() {
            return Err(Failure::not_found(&Id::cluster(Resource::Namespaces, namespace)));
        }
        let id = Id { resource, namespace: namespace.to_owned(), name };
        if self.get(&id).is_some() {
            let message = format!("{} {:?} already exists", resource.info().plural, id.name);
            return Err(Failure::new(409, "AlreadyExists", message));
        }
        if resource == Resource::Pods {
            self.insert_pod(&id, object);
        } else {
            self.insert(&id, object);
        }
        self.found(&id, 201)
    }

    fn update(&mut self, request: &Request, id: &Id, part: Part) -> Result<Answer, Failure> {
        let Some(current) = self.get(id).cloned() else {
            if request.method == "PATCH" && request.content_type.starts_with("application/apply-patch") {
                return self.post(
                    &Request { method: "POST".into(), ..request.clone() },
                    id.resource,
                    &id.namespace,
                );
            }
            return Err(Failure::not_found(id));
        };
        let body = request.json()?;
        let wanted =
            match (request.method.as_str(), request.content_type.split(';').next().unwrap_or_default()) {
                ("PUT", _) => body.clone(),
                // Applying is not modelled beyond setting what it names: no field owners, lists replaced whole.
                (_, "application/merge-patch+json" | "application/apply-patch+yaml") => {
                    merged(&current, &body)
                }
                (_, other) => {
                    let message = format!("patches of type {other:?} are not modelled");
                    return Err(Failure::new(415, "UnsupportedMediaType", message));
                }
            };
        let asked = text(&body, "/metadata/resourceVersion");
        let asked_uid = text(&body, "/metadata/uid");
        let version = text(&current, "/metadata/resourceVersion");
        if !asked.is_empty() && asked != version {
            let why =
                "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Failure::conflict(id, why));
        }
        if request.method == "PUT" && asked.is_empty() && id.resource == Resource::Gates {
            let message =
                "metadata.resourceVersion: Invalid value: 0: must be specified for an update".to_owned();
            return Err(Failure::new(422, "Invalid", message));
        }
        if !asked_uid.is_empty() && asked_uid != text(&current, "/metadata/uid") {
            return Err(Failure::conflict(id, "Precondition failed: UID in precondition differs"));
        }
        let new = admitted(id.resource, part, &current, wanted);
        self.change(id, |object| *object = new);
        let freed = self.get(id).is_some_and(|object| {
            !text(object, "/metadata/deletionTimestamp").is_empty()
                && list(object, "/metadata/finalizers").is_empty()
                && !list(&current, "/metadata/finalizers").is_empty()
                && object["metadata"]["deletionGracePeriodSeconds"] == 0
        });
        let answer = self.found(id, 200);
        if freed {
            self.remove(id);
        }
        answer
    }

    fn delete(&mut self, request: &Request, id: &Id) -> Result<Answer, Failure> {
        let options = request.json()?;
        self.check_preconditions(id, &options)?;
        if id.resource == Resource::Pods {
            let grace = request.query("gracePeriodSeconds").and_then(|s| s.parse().ok());
            self.delete_pod(id, grace.or_else(|| options["gracePeriodSeconds"].as_i64()));
        } else {
            self.let_go(id);
        }
        match self.get(id) {
            Some(_) => self.found(id, 200),
            None => {
                Ok(ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})))
            }
        }
    }

    fn review_access(&self, request: &Request) -> Result<Answer, Failure> {
        let mut review = request.json()?;
        let asked = |field: &str| text(&review, &format!("/spec/resourceAttributes/{field}")).to_owned();
        let (verb, resource, subresource) = (asked("verb"), asked("resource"), asked("subresource"));
        let hit = |rule: &str, asked: &str| rule.is_empty() || rule == asked;
        let denied = self
            .denied
            .iter()
            .any(|d| hit(&d.verb, &verb) && hit(&d.resource, &resource) && hit(&d.subresource, &subresource));
        review["status"] = json!({"allowed": !denied});
        Ok(Answer::Json { code: 201, body: review })
    }

    /// What a watch says after `query.after`, and the version up to which that is everything. Moves nothing.
    pub(crate) fn watch_events(&self, query: &WatchQuery) -> Result<(Vec<Value>, u64), Failure> {
        let event = |kind: &str, object: &Value| json!({"type": kind, "object": object});
        let ours = |id: &Id| {
            id.resource == query.resource
                && query.namespace.as_ref().is_none_or(|namespace| id.namespace == *namespace)
        };
        let mut events = Vec::new();
        if query.initial {
            let there =
                self.all(query.resource).filter(|(id, object)| ours(id) && query.selector.matches(object));
            events.extend(there.map(|(_, object)| event("ADDED", object)));
            if query.bookmarks {
                let mut bookmark = self.bookmark(query.resource);
                bookmark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                events.push(bookmark);
            }
            return Ok((events, self.version()));
        }
        for change in self.changes_after(query.after)?.filter(|change| ours(&change.id)) {
            let before = change.before.as_ref().filter(|object| query.selector.matches(object));
            let after = change.after.as_ref().filter(|object| query.selector.matches(object));
            match (before, after) {
                (None, Some(object)) => events.push(event("ADDED", object)),
                (Some(_), Some(object)) => events.push(event("MODIFIED", object)),
                (Some(object), None) => {
                    let mut object = change.after.clone().unwrap_or_else(|| object.clone());
                    object["metadata"]["resourceVersion"] = json!(change.version.to_string());
                    events.push(event("DELETED", &object));
                }
                (None, None) => {}
            }
        }
        Ok((events, self.version()))
    }

    pub(crate) fn bookmark(&self, resource: Resource) -> Value {
        let info = resource.info();
        let metadata = json!({"resourceVersion": self.version().to_string(), "creationTimestamp": null});
        json!({"type": "BOOKMARK", "object": {
            "kind": info.kind, "apiVersion": info.api_version(), "metadata": metadata,
        }})
    }
}

#[derive(Clone, Copy)]
enum Part {
    Main,
    Status,
}

/// What of a wanted object is taken: never its identity, and of spec and status only the part that was asked for.
fn admitted(resource: Resource, part: Part, current: &Value, wanted: Value) -> Value {
    let mut new = wanted;
    let keep = |new: &mut Value, field: &str| match current.get(field) {
        Some(old) => new[field] = old.clone(),
        None => {
            if let Some(fields) = new.as_object_mut() {
                fields.remove(field);
            }
        }
    };
    match part {
        Part::Main if resource.has_status() => keep(&mut new, "status"),
        Part::Main => {}
        Part::Status => keep(&mut new, "spec"),
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        match current["metadata"].get(field) {
            Some(old) => new["metadata"][field] = old.clone(),
            None => {
                if let Some(metadata) = new["metadata"].as_object_mut() {
                    metadata.remove(field);
                }
            }
        }
    }
    for field in ["apiVersion", "kind"] {
        new[field] = current[field].clone();
    }
    // So that a write that changes nothing changes nothing.
    new["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    new
}

/// RFC 7396.
fn merged(target: &Value, patch: &Value) -> Value {
    let Some(fields) = patch.as_object() else { return patch.clone() };
    let mut result = target.as_object().cloned().unwrap_or_default();
    for (key, value) in fields {
        if value.is_null() {
            result.remove(key);
        } else {
            let old = result.get(key).cloned().unwrap_or(Value::Null);
            result.insert(key.clone(), merged(&old, value));
        }
    }
    Value::Object(result)
}

fn target<'a>(group: &str, version: &str, rest: &[&'a str]) -> Option<Target<'a>> {
    let collection = |plural: &str, namespace: Option<&'a str>| {
        let resource = Resource::find(group, version, plural)?;
        (resource.info().namespaced || namespace.is_none())
            .then_some(Target::Collection { resource, namespace })
    };
    let object = |plural: &str, namespace: &str, name: &str, subresource| {
        let resource = Resource::find(group, version, plural)?;
        let fits = resource.info().namespaced != namespace.is_empty();
        let id = Id { resource, namespace: namespace.to_owned(), name: name.to_owned() };
        fits.then_some(Target::Object { id, subresource })
    };
    match *rest {
        ["namespaces", namespace, plural] if plural != "status" => collection(plural, Some(namespace)),
        ["namespaces", namespace, plural, name] => object(plural, namespace, name, ""),
        ["namespaces", namespace, plural, name, subresource] => object(plural, namespace, name, subresource),
        [plural] => collection(plural, None),
        [plural, name] => object(plural, "", name, ""),
        [plural, name, subresource] => object(plural, "", name, subresource),
        _ => None,
    }
}

fn ok(body: Value) -> Answer {
    Answer::Json { code: 200, body }
}

fn created() -> Answer {
    let body =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Answer::Json { code: 201, body }
}

fn who_am_i(request: &Request) -> Result<Answer, Failure> {
    let mut review = request.json()?;
    review["status"] = json!({"userInfo": {"username": "gpu-bridge", "groups": ["system:authenticated"]}});
    Ok(Answer::Json { code: 201, body: review })
}

fn version_info() -> Value {
    json!({
        "major": "1", "minor": "33", "gitVersion": "v1.33.0-mock", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
    })
}

fn groups() -> Value {
    let mut groups: Vec<Value> = Vec::new();
    for info in Resource::ALL.map(Resource::info) {
        if !info.group.is_empty() && !groups.iter().any(|group| group["name"] == info.group) {
            let version = json!({"groupVersion": info.api_version(), "version": info.version});
            groups.push(json!({"name": info.group, "versions": [version], "preferredVersion": version}));
        }
    }
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resources(group: &str, version: &str) -> Value {
    let verbs = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let resources: Vec<Value> = Resource::ALL
        .map(Resource::info)
        .iter()
        .filter(|info| (info.group, info.version) == (group, version))
        .map(|info| {
            json!({
                "name": info.plural, "singularName": info.kind.to_lowercase(), "namespaced": info.namespaced,
                "kind": info.kind, "verbs": verbs,
            })
        })
        .collect();
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

fn no_such_path(request: &Request) -> Failure {
    Failure::new(
        404,
        "NotFound",
        format!("the server could not find the requested resource ({})", request.path),
    )
}

fn not_allowed(request: &Request) -> Failure {
    let message = format!("{} is not allowed on {}", request.method, request.path);
    Failure::new(405, "MethodNotAllowed", message)
}
