//! What every answer of slurmrestd has around its list, and what its errors mean: the same trouble has another status,
//! number and wording in each release. Decides which of our errors it is; knows no request.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess};

use super::error::Error;

/// An answer within less time than this did not wait for a slurmctld that is away (that takes 19 s).
const PROMPT: Duration = Duration::from_secs(10);

/// The request that an answer belongs to, for errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    what: &'a str,
    user: &'a str,
    /// HTTP status.
    status: u16,
    /// How long the answer took.
    took: Duration,
}

impl<'a> Asked<'a> {
    /// Answered with 200, at once.
    pub(super) const fn new(what: &'a str, user: &'a str) -> Self {
        Self { what, user, status: 200, took: Duration::ZERO }
    }

    pub(super) fn answered(self, status: u16, took: Duration) -> Self {
        Self { status, took, ..self }
    }

    pub(super) fn unreadable(&self, found: impl Into<String>, expected: impl Into<String>) -> Error {
        Error::Unreadable { asked: self.what.to_owned(), found: found.into(), expected: expected.into() }
    }

    /// Judges a whole answer by status and errors, without looking at its list.
    pub(super) fn judge(&self, body: &[u8]) -> Result<(), Error> {
        let (asked, status) = (self.what.to_owned(), self.status);
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        match Head::deserialize(&mut deserializer).and_then(|head| deserializer.end().map(|()| head)) {
            Ok(head) => self.clean(&head),
            // These come without JSON.
            Err(_) if status == 401 => Err(Error::Credentials { asked, status, said: excerpt(body) }),
            Err(_) if matches!(status, 404 | 405) && names_no_url(body) => Err(Error::NoSuchUrl { asked }),
            Err(_) if status == 304 => {
                Err(self.unreadable("HTTP 304, nothing changed since the time asked about", "an answer"))
            }
            Err(_) if matches!(status, 400 | 406 | 411 | 415) && !body.starts_with(b"<") => {
                Err(Error::Invalid { asked, status, number: 0, said: excerpt(body) })
            }
            Err(why) => Err(self.not_json(body, &why)),
        }
    }

    /// The error for a body that is no answer of slurmrestd.
    pub(super) fn not_json(&self, body: &[u8], why: &serde_json::Error) -> Error {
        let found = format!("{:?} ({why})", excerpt(body));
        Error::NotJson { asked: self.what.to_owned(), status: self.status, found }
    }

    /// Whether status and errors of an answer are clean.
    pub(super) fn clean(&self, head: &Head) -> Result<(), Error> {
        let refused = head.status.iter().flatten().filter_map(Entry::refusal);
        let errors: Vec<&ApiError> = head.errors.iter().chain(refused).collect();
        if errors.is_empty() && (200..300).contains(&self.status) {
            return Ok(());
        }
        Err(self.error(&errors, head.release.as_deref().unwrap_or_default()))
    }

    fn error(&self, errors: &[&ApiError], release: &str) -> Error {
        let (asked, status) = (self.what.to_owned(), self.status);
        // The last one is the outermost; the others say which part of the request was at fault.
        let number =
            errors.iter().filter_map(|error| error.error_number).rfind(|number| *number != 0).unwrap_or(0);
        let said = errors.iter().map(|error| error.words()).collect::<Vec<_>>().join("; ");
        let says = |start: &str| {
            errors
                .iter()
                .any(|error| error.description.as_deref().is_some_and(|text| text.starts_with(start)))
        };
        match (status, number) {
            // 1007 (protocol authentication) and 5005 (invalid credential) are what a bad token gives.
            (401 | 511, _) | (_, 1007 | 5005) => Error::Credentials { asked, status, said },
            // Up to 22.05 slurmrestd has no better word for either; only the one that waited is certain.
            (500, -1) if release.starts_with("22.") && self.took >= PROMPT => {
                Error::ControllerAway { asked, status, said }
            }
            (500, -1) if release.starts_with("22.") => Error::TokenOrController { asked, status, said },
            // 23.02 and 23.11 ask slurmdbd with the user's token before anything else.
            (_, 7000) if release.starts_with("23.") => Error::TokenOrDatabase { asked, status, said },
            (_, 7000) => Error::DatabaseAway { asked, status, said },
            // 1800 to 1803: slurmctld could not be connected to, or the connection broke.
            (502, _) | (_, 1800..=1803) => Error::ControllerAway { asked, status, said },
            // Access denied, invalid user id; 26.05 has a status for it.
            (403, _) | (_, 2002 | 2010) => Error::Forbidden { asked, user: self.user.to_owned(), said },
            // Invalid partition, job id, node name, reservation.
            (_, 2000 | 2017 | 2018 | 2053) => Error::NotFound { asked, status, number, said },
            // From 23.02 an unknown node is 200 without a number, an unknown reservation "empty query", or 200 too while
            // there are none at all.
            (200, 0) if says("Failure to query node ") || says("Unable to query reservations") => {
                Error::NotFound { asked, status, number, said }
            }
            (422, 9000) if says("Unable to find ") => Error::NotFound { asked, status, number, said },
            // Nodes busy, job "try again later", reservation in use, reservations overlap.
            (_, 2016 | 2020 | 2055 | 2058) => Error::Busy { asked, status, number, said },
            // Node state (and its transition), time, JSON that cannot be parsed as what it should be.
            (_, 2028 | 2180 | 2054 | 9000..=9299) | (400 | 422, _) => {
                Error::Invalid { asked, status, number, said }
            }
            _ => Error::Refused { asked, status, number, said },
        }
    }
}

/// [`Asked::judge`] as a reader of answers: of one with any lifetime, which the method's path is not.
pub(super) fn judge(asked: &Asked<'_>, body: &[u8]) -> Result<(), Error> {
    asked.judge(body)
}

/// slurmrestd's own words for a URL or a method that it does not serve; 26.05 says them in another way.
fn names_no_url(body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(&body[..body.len().min(400)]);
    ["find requested URL", "not defined at URL", "Invalid or unknown URL path"]
        .iter()
        .any(|words| body.contains(words))
}

fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(160)]).into_owned()
}

/// What an answer has beside its list.
#[derive(Debug, Default)]
pub(super) struct Head {
    errors: Vec<ApiError>,
    /// What became of each part of a DELETE.
    status: Option<Vec<Entry>>,
    warnings: Vec<ApiError>,
    release: Option<String>,
    /// Was the list there?
    pub(super) listed: bool,
}

impl Head {
    /// Reads one field that is not the list.
    pub(super) fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "errors" => self.errors = map.next_value::<Option<_>>()?.unwrap_or_default(),
            "warnings" => self.warnings = map.next_value::<Option<_>>()?.unwrap_or_default(),
            "status" => self.status = map.next_value()?,
            "meta" => self.release = map.next_value::<Option<Meta>>()?.unwrap_or_default().release(),
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }

    /// Is its empty list the answer to an `update_time` since which nothing changed? That is not "no jobs".
    pub(super) fn unchanged(&self) -> bool {
        self.warnings.iter().any(|warning| warning.words().starts_with("No job changes"))
    }
}

impl<'de> Deserialize<'de> for Head {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> serde::de::Visitor<'de> for Visit {
            type Value = Head;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an answer of slurmrestd")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Head, A::Error> {
                let mut head = Head::default();
                while let Some(key) = map.next_key::<super::json::Text<'de>>()? {
                    head.read(&key, &mut map)?;
                }
                Ok(head)
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct Meta {
    #[serde(alias = "Slurm")]
    slurm: Option<Release>,
}

#[derive(Debug, Deserialize)]
struct Release {
    release: Option<String>,
}

impl Meta {
    fn release(self) -> Option<String> {
        self.slurm?.release
    }
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct ApiError {
    description: Option<String>,
    #[serde(alias = "string")]
    error: Option<String>,
    #[serde(alias = "errno", alias = "error_code", alias = "code")]
    error_number: Option<i64>,
}

impl ApiError {
    fn words(&self) -> String {
        match (self.description.as_deref(), self.error.as_deref()) {
            (Some(description), Some(text)) => format!("{description}: {text}"),
            (Some(text), None) | (None, Some(text)) => text.to_owned(),
            (None, None) => "an error without words".to_owned(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Entry {
    error: Option<ApiError>,
}

impl Entry {
    fn refusal(&self) -> Option<&ApiError> {
        self.error.as_ref().filter(|error| error.error_number.is_some_and(|number| number != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&Result<(), Error>) -> bool;

    fn errors(number: i64, description: &str) -> String {
        format!(r#"{{"errors":[{{"description":"{description}","error_number":{number},"error":"x"}}]}}"#)
    }

    fn of_release(release: &str, number: i64) -> String {
        format!(r#"{{"meta":{{"Slurm":{{"release":"{release}"}}}},"errors":[{{"error_number":{number}}}]}}"#)
    }

    #[test]
    fn answers_are_judged_by_what_they_are() {
        let table: [(u16, String, Check); 31] = [
            (200, r#"{"nodes":[],"errors":[],"warnings":[]}"#.into(), |r| r.is_ok()),
            (200, r#"{"nodes":[]}"#.into(), |r| r.is_ok()),
            (200, r#"{"nodes":[],"errors":null}"#.into(), |r| r.is_ok()),
            (200, errors(0, "No error"), |r| matches!(r, Err(Error::Refused { number: 0, .. }))),
            (200, r#"{"errors":{}}"#.into(), |r| matches!(r, Err(Error::NotJson { .. }))),
            (200, r#"{"nodes":[{"name":"gp"#.into(), |r| matches!(r, Err(Error::NotJson { .. }))),
            (200, r#"{"errors":[]}{"errors":[]}"#.into(), |r| matches!(r, Err(Error::NotJson { .. }))),
            (200, "<html>login</html>".into(), |r| matches!(r, Err(Error::NotJson { .. }))),
            (200, String::new(), |r| matches!(r, Err(Error::NotJson { .. }))),
            (401, "Authentication failure".into(), |r| matches!(r, Err(Error::Credentials { .. }))),
            (511, errors(1007, "d"), |r| matches!(r, Err(Error::Credentials { .. }))),
            (500, errors(5005, "d"), |r| matches!(r, Err(Error::Credentials { .. }))),
            (500, of_release("22.05.8", -1), |r| matches!(r, Err(Error::TokenOrController { .. }))),
            (500, of_release("24.11.5", -1), |r| matches!(r, Err(Error::Refused { number: -1, .. }))),
            (500, of_release("23.11.4", 7000), |r| matches!(r, Err(Error::TokenOrDatabase { .. }))),
            (500, of_release("24.11.5", 7000), |r| matches!(r, Err(Error::DatabaseAway { .. }))),
            (500, errors(2010, "d"), |r| matches!(r, Err(Error::Forbidden { .. }))),
            (502, errors(1800, "d"), |r| matches!(r, Err(Error::ControllerAway { .. }))),
            (502, "<html>Bad gateway</html>".into(), |r| matches!(r, Err(Error::NotJson { .. }))),
            (500, r#"{"errors":[]}"#.into(), |r| matches!(r, Err(Error::Refused { number: 0, .. }))),
            (404, "Unable find requested URL. Please view /openapi/v3".into(), |r| {
                matches!(r, Err(Error::NoSuchUrl { .. }))
            }),
            (404, "Unable to find requested URL endpoint.".into(), |r| {
                matches!(r, Err(Error::NoSuchUrl { .. }))
            }),
            (405, "Requested REST method is not defined at URL.".into(), |r| {
                matches!(r, Err(Error::NoSuchUrl { .. }))
            }),
            (404, errors(2017, "d"), |r| matches!(r, Err(Error::NotFound { number: 2017, .. }))),
            (200, errors(0, "Failure to query node gpu9"), |r| matches!(r, Err(Error::NotFound { .. }))),
            (200, errors(0, "Failure to query nodes"), |r| matches!(r, Err(Error::Refused { .. }))),
            (422, errors(9000, "Unable to find reservation x"), |r| matches!(r, Err(Error::NotFound { .. }))),
            (422, errors(9000, "Rejecting request"), |r| matches!(r, Err(Error::Invalid { .. }))),
            (422, errors(2058, "Error creating"), |r| matches!(r, Err(Error::Busy { .. }))),
            (400, "Unable to parse query.".into(), |r| matches!(r, Err(Error::Invalid { .. }))),
            (200, r#"{"status":[{"error":{"code":2017}}],"errors":[]}"#.into(), |r| {
                matches!(r, Err(Error::NotFound { .. }))
            }),
        ];
        for (status, body, check) in table {
            let judged =
                Asked::new("GET /x", "slurm").answered(status, Duration::ZERO).judge(body.as_bytes());
            assert!(check(&judged), "{status} {body}: {judged:?}");
        }
    }

    #[test]
    fn an_answer_without_a_number_that_waited_is_a_controller_that_is_away() {
        let judge = |took| {
            let asked = Asked::new("GET /x", "slurm").answered(500, Duration::from_secs(took));
            asked.judge(of_release("22.05.8", -1).as_bytes())
        };
        assert!(matches!(judge(1), Err(Error::TokenOrController { .. })));
        assert!(matches!(judge(19), Err(Error::ControllerAway { .. })));
    }
}
