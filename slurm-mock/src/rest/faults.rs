//! What can go wrong between a client and slurmrestd: which requests are hit, how often, and with what.
//! The server carries it out; nothing here touches the model.

use std::time::Duration;

use http::Method;

/// What happens to a request that is hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It waits before slurmctld sees it.
    Delay(Duration),
    /// It is carried out at once; the answer comes late.
    LateAnswer(Duration),
    /// The connection is reset; nothing is carried out.
    Reset,
    /// It is carried out, then the connection is reset.
    LoseAnswer,
    /// It is carried out; so many bytes of the answer's body arrive, then the connection ends.
    CutBody(usize),
    /// It is carried out, and answered with 500.
    ApplyButFail,
    /// After the answer a second complete one follows on the same connection.
    SecondResponse,
    /// It is answered as the same path was answered last time; nothing is carried out.
    Stale,
    /// It is answered with this status and slurmrestd's words for it; nothing is carried out.
    Status(u16),
    /// It is answered with a proxy's HTML page and 200; nothing is carried out.
    Html,
    /// It is answered with an empty 304.
    NotModified,
    /// It is carried out; the answer is good JSON, padded with blanks to this many bytes.
    HugeBody(usize),
}

/// Which requests are hit, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Method; `None` hits all.
    pub method: Option<Method>,
    /// Beginning of the path after `/slurm/v0.0.4x`, such as `/nodes`, `/node/gpu1`; or `/mock/scontrol`.
    pub path_prefix: String,
    /// So many matching requests pass first.
    pub skip: u32,
    /// So many are hit then.
    pub count: u32,
    /// What happens to them.
    pub action: Action,
}

impl Fault {
    /// Hits the next request with this beginning of its path.
    pub fn once(path_prefix: &str, action: Action) -> Self {
        Self { method: None, path_prefix: path_prefix.to_owned(), skip: 0, count: 1, action }
    }

    /// The same for the next `count` requests.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }

    /// The same for one method only.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    /// The same after `skip` matching requests have passed.
    #[must_use]
    pub fn after(self, skip: u32) -> Self {
        Self { skip, ..self }
    }
}

/// The faults that are still to come.
#[derive(Clone, Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Adds one.
    pub fn inject(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What happens to a request: the first fault that is due. Counts down.
    pub fn take(&mut self, method: &Method, path: &str) -> Option<Action> {
        let path = below_version(path);
        let mut hit = None;
        for fault in &mut self.0 {
            let matches =
                fault.method.as_ref().is_none_or(|m| m == method) && path.starts_with(&fault.path_prefix);
            if !matches || hit.is_some() {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if fault.count > 0 {
                fault.count -= 1;
                hit = Some(fault.action.clone());
            }
        }
        self.0.retain(|f| f.count > 0);
        hit
    }
}

fn below_version(path: &str) -> &str {
    let Some(rest) = path.strip_prefix("/slurm/") else { return path };
    rest.find('/').map_or("", |at| &rest[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hit_what_they_name_as_often_as_they_say() {
        let mut faults = Faults::default();
        faults.inject(Fault::once("/nodes", Action::Reset).times(2).after(1).method(Method::GET));
        for (method, path, hit) in [
            (Method::GET, "/slurm/v0.0.42/nodes", false),
            (Method::POST, "/slurm/v0.0.42/nodes", false),
            (Method::GET, "/slurm/v0.0.42/jobs", false),
            (Method::GET, "/slurm/v0.0.42/nodes/", true),
            (Method::GET, "/slurm/v0.0.41/nodes", true),
            (Method::GET, "/slurm/v0.0.42/nodes", false),
        ] {
            assert_eq!(faults.take(&method, path).is_some(), hit, "{method} {path}");
        }
    }
}
