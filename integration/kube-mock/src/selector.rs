//! Label and field selectors: which objects a LIST or WATCH names.

use serde_json::Value;

use crate::api::Failure;

/// What must hold of an object; everything must.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone)]
struct Term {
    /// JSON pointer, and for labels the key below it.
    place: Place,
    test: Test,
}

#[derive(Debug, Clone)]
enum Place {
    Field(String),
    Label(String),
}

#[derive(Debug, Clone)]
enum Test {
    Is(String),
    IsNot(String),
    Exists,
    Absent,
}

impl Selector {
    /// Reads `fieldSelector` and `labelSelector`.
    pub(crate) fn parse(fields: Option<&str>, labels: Option<&str>) -> Result<Self, Failure> {
        let mut terms = Vec::new();
        for text in terms_of(fields) {
            let (path, test) = comparison(text).ok_or_else(|| unknown(text))?;
            terms.push(Term { place: Place::Field(format!("/{}", path.replace('.', "/"))), test });
        }
        for text in terms_of(labels) {
            if text.contains('(') || text.contains(' ') {
                return Err(unknown(text));
            }
            let (key, test) = comparison(text).unwrap_or_else(|| match text.strip_prefix('!') {
                Some(key) => (key, Test::Absent),
                None => (text, Test::Exists),
            });
            terms.push(Term { place: Place::Label(key.to_owned()), test });
        }
        Ok(Selector { terms })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let found = match &term.place {
                Place::Field(pointer) => object.pointer(pointer),
                Place::Label(key) => object.pointer("/metadata/labels").and_then(|labels| labels.get(key)),
            };
            let text = found.and_then(Value::as_str);
            match (&term.place, &term.test) {
                (Place::Field(_), Test::Is(want)) => text.unwrap_or_default() == want,
                (Place::Label(_), Test::Is(want)) => text == Some(want),
                (_, Test::IsNot(want)) => text != Some(want),
                (_, Test::Exists) => text.is_some(),
                (_, Test::Absent) => text.is_none(),
            }
        })
    }
}

fn terms_of(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(',').filter(|term| !term.is_empty())
}

fn comparison(term: &str) -> Option<(&str, Test)> {
    if let Some((path, value)) = term.split_once("!=") {
        return Some((path, Test::IsNot(value.to_owned())));
    }
    let (path, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((path, Test::Is(value.to_owned())))
}

fn unknown(term: &str) -> Failure {
    Failure::new(400, "BadRequest", format!("selector term {term:?} is not modelled"))
}

/// Whether a `metav1.LabelSelector` matches an object's labels. An empty one matches everything, a missing one nothing.
pub(crate) fn label_selector_matches(selector: Option<&Value>, object: &Value) -> bool {
    let Some(selector) = selector else { return false };
    let label =
        |key: &str| object.pointer("/metadata/labels").and_then(|l| l.get(key)).and_then(Value::as_str);
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let by_labels = labels.is_none_or(|all| all.iter().all(|(key, value)| label(key) == value.as_str()));
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    by_labels
        && expressions.is_none_or(|all| {
            all.iter().all(|e| {
                let found = e["key"].as_str().and_then(label);
                let listed =
                    e["values"].as_array().is_some_and(|values| values.iter().any(|v| v.as_str() == found));
                match e["operator"].as_str() {
                    Some("In") => found.is_some() && listed,
                    Some("NotIn") => found.is_none() || !listed,
                    Some("Exists") => found.is_some(),
                    Some("DoesNotExist") => found.is_none(),
                    _ => false,
                }
            })
        })
}
