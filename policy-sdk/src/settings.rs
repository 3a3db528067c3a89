//! Reads a policy's settings, a flat JSON object, field by field, and reports everything that is wrong at once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::SettingsError;

/// The fields of a settings object. Each is taken by name; [`Fields::finish`] reports what was wrong and what nobody
/// took.
///
/// ```
/// use gpu_bridge_policy_sdk::Fields;
///
/// let mut fields = Fields::parse(r#"{"merge_gap_seconds": 900, "merge": 1}"#).unwrap();
/// let gap = fields.u32("merge_gap_seconds", 1800, 0..=86_400);
/// let errors = fields.finish(gap).unwrap_err();
/// assert_eq!(errors[0].field, "merge");
/// ```
#[derive(Debug)]
pub struct Fields {
    values: BTreeMap<String, Value>,
    known: Vec<&'static str>,
    errors: Vec<SettingsError>,
}

impl Fields {
    /// Parses the object. What is not a JSON object is an error of the whole (an empty field name).
    pub fn parse(settings: &str) -> Result<Self, Vec<SettingsError>> {
        let whole = |message: String| vec![SettingsError { field: String::new(), message }];
        match serde_json::from_str(settings) {
            Ok(Value::Object(map)) => {
                Ok(Self { values: map.into_iter().collect(), known: vec![], errors: vec![] })
            }
            Ok(other) => Err(whole(format!("must be a JSON object, not {other}"))),
            Err(error) => Err(whole(format!("must be a JSON object: {error}"))),
        }
    }

    /// Takes a whole number within a range; `default` when the field is absent.
    pub fn u32(&mut self, name: &'static str, default: u32, range: RangeInclusive<u32>) -> u32 {
        self.known.push(name);
        let Some(value) = self.values.remove(name) else { return default };
        match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(number) if range.contains(&number) => number,
            Some(_) | None => {
                let (low, high) = (range.start(), range.end());
                self.wrong(name, format!("must be a whole number from {low} to {high}, not {value}"));
                default
            }
        }
    }

    /// Takes a list of strings; empty when the field is absent.
    pub fn strings(&mut self, name: &'static str) -> Vec<String> {
        self.known.push(name);
        let Some(value) = self.values.remove(name) else { return vec![] };
        let strings: Option<Vec<String>> = value
            .as_array()
            .and_then(|list| list.iter().map(|item| item.as_str().map(str::to_owned)).collect());
        strings.unwrap_or_else(|| {
            self.wrong(name, format!("must be a list of strings, not {value}"));
            vec![]
        })
    }

    /// Records something that is wrong with a field, beyond its type and range.
    pub fn wrong(&mut self, name: &str, message: String) {
        self.errors.push(SettingsError { field: name.to_owned(), message });
    }

    /// Gives `settings` when nothing was wrong and no field is left over.
    pub fn finish<T>(mut self, settings: T) -> Result<T, Vec<SettingsError>> {
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        for name in std::mem::take(&mut self.values).into_keys() {
            self.wrong(&name, format!("is not a field; known: {known}"));
        }
        if self.errors.is_empty() { Ok(settings) } else { Err(self.errors) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_field_is_named() {
        let cases: &[(&str, &[&str])] = &[
            ("{}", &[]),
            (r#"{"gap": 5, "names": ["a"]}"#, &[]),
            (r#"{"gap": 11}"#, &["gap"]),
            (r#"{"gap": -1}"#, &["gap"]),
            (r#"{"gap": 1.5}"#, &["gap"]),
            (r#"{"gap": "5", "names": [1]}"#, &["gap", "names"]),
            (r#"{"gap": 99999999999, "gpa": 1}"#, &["gap", "gpa"]),
            ("[]", &[""]),
            ("", &[""]),
            ("{", &[""]),
        ];
        for (json, wrong) in cases {
            let outcome = Fields::parse(json).and_then(|mut fields| {
                let values = (fields.u32("gap", 1, 0..=10), fields.strings("names"));
                fields.finish(values)
            });
            let named: Vec<String> = outcome.err().unwrap_or_default().into_iter().map(|e| e.field).collect();
            assert_eq!(&named, wrong, "{json}");
        }
    }
}
