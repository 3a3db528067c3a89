//! The parts of slurmrestd's JSON that all answers share: its forms of texts, words and numbers, and a walk over an
//! answer's list in one pass, element by element, straight into what the caller makes of each. It knows no field of any
//! resource, and takes nothing that is missing or odd for a value.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::answer::{Asked, Head};
use super::error::Error;

/// A text, borrowed from the answer where it needs no unescaping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    pub(super) fn into_owned(self) -> String {
        self.0.into_owned()
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Visit)
    }
}

/// One word or a list of words: which of them it is tells the families apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Words<'a> {
    /// One.
    One(Text<'a>),
    /// A list.
    Many(Vec<Text<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Words<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Words<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word or a list of words")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Words<'de>, E> {
                Ok(Words::One(Text(Cow::Borrowed(text))))
            }
            fn visit_str<E>(self, text: &str) -> Result<Words<'de>, E> {
                Ok(Words::One(Text(Cow::Owned(text.to_owned()))))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words<'de>, A::Error> {
                let mut words = Vec::with_capacity(2);
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Words::Many(words))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// A number that slurmrestd may leave out or call infinite: plain with `NO_VAL` and `INFINITE` up to v0.0.39, then
/// `{"set","infinite","number"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sin {
    /// Not set, null or absent.
    #[default]
    Unset,
    /// Infinite.
    Infinite,
    /// Set.
    Number(i64),
}

impl<'de> Deserialize<'de> for Sin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VisitSin)
    }
}

struct VisitSin;

impl<'de> Visitor<'de> for VisitSin {
    type Value = Sin;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or an object with set, infinite and number")
    }

    fn visit_unit<E>(self) -> Result<Sin, E> {
        Ok(Sin::Unset)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Sin, E> {
        Ok(Sin::Number(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Sin, E> {
        match number {
            0xffff_fffe | 0xffff_ffff_ffff_fffe => Ok(Sin::Unset),
            0xffff_ffff | 0xffff_ffff_ffff_ffff => Ok(Sin::Infinite),
            number => i64::try_from(number).map(Sin::Number).map_err(E::custom),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Sin, E> {
        // Beyond these a fraction no longer stands for one whole number.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if !(-EXACT..=EXACT).contains(&number) {
            return Err(E::custom(format!("the number {number:e}")));
        }
        #[allow(clippy::cast_possible_truncation)] // just checked
        Ok(Sin::Number(number as i64))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sin, A::Error> {
        let (mut set, mut infinite, mut number) = (false, false, Sin::Unset);
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match &*key {
                "set" => set = map.next_value()?,
                "infinite" => infinite = map.next_value()?,
                "number" => number = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (infinite, set, number) {
            (true, _, _) => Ok(Sin::Infinite),
            (false, false, _) => Ok(Sin::Unset),
            (false, true, Sin::Unset) => Err(A::Error::custom("a number that is set, but not there")),
            (false, true, number) => Ok(number),
        }
    }
}

impl Sin {
    /// An instant; 0 means none.
    pub(super) fn instant(self) -> Option<Timestamp> {
        match self {
            Self::Number(seconds) if seconds > 0 => Timestamp::from_second(seconds).ok(),
            Self::Number(_) | Self::Unset | Self::Infinite => None,
        }
    }

    /// A duration in minutes; `None` is unlimited (-1 up to v0.0.38) or not told.
    pub(super) fn minutes(self) -> Option<SignedDuration> {
        match self {
            Self::Number(minutes) if minutes >= 0 => minutes.checked_mul(60).map(SignedDuration::from_secs),
            Self::Number(_) | Self::Unset | Self::Infinite => None,
        }
    }

    pub(super) fn count(self) -> Option<u32> {
        match self {
            Self::Number(number) => u32::try_from(number).ok(),
            Self::Unset | Self::Infinite => None,
        }
    }
}

/// A number as JSON has it, or a text that begins with one: `17`, `"17"`, `"17_0"` (task 0 of an array) and `"12+1"`
/// (part of a heterogeneous job) are all job 17 or 12.
pub(super) fn leading_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Visit;
    impl Visitor<'_> for Visit {
        type Value = u32;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a job id")
        }
        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u32, E> {
            u32::try_from(number).map_err(E::custom)
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u32, E> {
            let digits = text.split(['_', '+']).next().unwrap_or_default();
            digits.parse().map_err(|_| E::custom(format!("job id {text:?}")))
        }
    }
    deserializer.deserialize_any(Visit)
}

/// An element that does not have the expected shape.
pub(super) struct Odd<'a> {
    raw: &'a str,
    why: String,
}

impl<'a> Odd<'a> {
    /// What of it can be read all the same.
    pub(super) fn read<T: Deserialize<'a>>(&self) -> Option<T> {
        serde_json::from_str(self.raw).ok()
    }

    /// What is wrong with it.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// The error for a reader that cannot do without it.
    pub(super) fn error(&self, asked: &Asked<'_>, expected: &str) -> Error {
        let start: String = self.raw.chars().take(160).collect();
        asked.unreadable(format!("{} in {start}", self.why), expected)
    }
}

/// Walks over the elements of an answer's list, giving each one to `sink` as it is read. Elements that do not have the
/// shape `T` come as [`Odd`]. Once it returns `Ok`, the answer was whole, had no errors, and the list was there: a missing
/// or null list is never an empty one.
pub(super) fn each<'a, T: Deserialize<'a>>(
    asked: &Asked<'_>,
    body: &'a [u8],
    list: &'static str,
    mut sink: impl FnMut(Result<T, Odd<'a>>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut given = 0_usize;
    let quick = walk(body, list, |element: T| {
        given += 1;
        sink(Ok(element))
    });
    let head = match quick {
        Ok(head) => head,
        Err(Stop::Sink(error)) => return Err(error),
        // Some element is odd, or it is no JSON at all: once more, each element for itself.
        Err(Stop::Json(_)) => {
            let mut skip = given;
            let careful = walk(body, list, |raw: &'a RawValue| {
                if skip > 0 {
                    skip -= 1;
                    return Ok(());
                }
                sink(
                    serde_json::from_str(raw.get())
                        .map_err(|why| Odd { raw: raw.get(), why: why.to_string() }),
                )
            });
            match careful {
                Ok(head) => head,
                Err(Stop::Sink(error)) => return Err(error),
                Err(Stop::Json(error)) if error.is_syntax() || error.is_eof() => {
                    return Err(asked.not_json(body, &error));
                }
                Err(Stop::Json(error)) => {
                    return Err(
                        asked.unreadable(error.to_string(), format!("an object with a list {list:?}"))
                    );
                }
            }
        }
    };
    asked.clean(&head)?;
    if !head.listed {
        return Err(asked.unreadable("no such list", format!("a list {list:?}")));
    }
    if head.unchanged() {
        return Err(asked.unreadable("no more than that nothing changed", format!("a list {list:?}")));
    }
    Ok(())
}

/// Why a walk ended early.
enum Stop {
    Json(serde_json::Error),
    Sink(Error),
}

fn walk<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    list: &'static str,
    sink: impl FnMut(T) -> Result<(), Error>,
) -> Result<Head, Stop> {
    let mut stopped = None;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let top = Top { list, sink, stopped: &mut stopped, element: PhantomData };
    let walked = deserializer.deserialize_map(top).and_then(|head| deserializer.end().map(|()| head));
    match (stopped, walked) {
        (Some(error), _) => Err(Stop::Sink(error)),
        (None, walked) => walked.map_err(Stop::Json),
    }
}

/// An answer's outermost object.
struct Top<'s, T, F> {
    list: &'static str,
    sink: F,
    /// What the sink ended the walk with.
    stopped: &'s mut Option<Error>,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), Error>> Visitor<'de> for Top<'_, T, F> {
    type Value = Head;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of slurmrestd")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Head, A::Error> {
        let mut head = Head::default();
        while let Some(key) = map.next_key::<Text<'de>>()? {
            if &*key == self.list {
                if head.listed {
                    return Err(A::Error::custom(format!("the list {:?} twice", self.list)));
                }
                head.listed = map.next_value_seed(List(&mut self))?;
            } else {
                head.read(&key, &mut map)?;
            }
        }
        Ok(head)
    }
}

/// The list; `false` where it is null.
struct List<'t, 's, T, F>(&'t mut Top<'s, T, F>);

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), Error>> DeserializeSeed<'de> for List<'_, '_, T, F> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), Error>> Visitor<'de> for List<'_, '_, T, F> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list in {:?}", self.0.list)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        while let Some(element) = list.next_element()? {
            if let Err(error) = (self.0.sink)(element) {
                *self.0.stopped = Some(error);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_missing_or_infinite() {
        for (text, expected) in [
            ("null", Sin::Unset),
            ("5", Sin::Number(5)),
            ("2.0", Sin::Number(2)),
            ("-1", Sin::Number(-1)),
            ("4294967294", Sin::Unset),
            ("4294967295", Sin::Infinite),
            ("18446744073709551615", Sin::Infinite),
            (r#"{"set":true,"infinite":false,"number":30}"#, Sin::Number(30)),
            (r#"{"set":false,"infinite":true,"number":0}"#, Sin::Infinite),
            (r#"{"set":false,"infinite":false,"number":0}"#, Sin::Unset),
            ("{}", Sin::Unset),
        ] {
            assert_eq!(serde_json::from_str::<Sin>(text).unwrap(), expected, "{text}");
        }
        for odd in
            [r#"{"set":true}"#, r#""soon""#, "1e300", "9223372036854775808", "true", "[]", r#"{"set":1}"#]
        {
            assert!(serde_json::from_str::<Sin>(odd).is_err(), "{odd}");
        }
        assert_eq!(Sin::Number(-1).minutes(), None);
        assert_eq!(Sin::Number(i64::MAX).minutes(), None);
        assert_eq!((Sin::Number(0).instant(), Sin::Number(i64::MAX).instant()), (None, None));
    }

    #[test]
    fn an_odd_element_does_not_hide_the_others_and_none_is_given_twice() {
        let asked = Asked::new("GET x", "me");
        let read = |body: &str| {
            let mut seen = Vec::new();
            let done = each(&asked, body.as_bytes(), "list", |element: Result<u8, Odd<'_>>| {
                seen.push(
                    element.map_err(|odd| odd.raw.to_owned()).map_or_else(|raw| raw, |n| n.to_string()),
                );
                Ok(())
            });
            (seen.join(" "), done.is_ok())
        };
        for (body, seen, whole) in [
            (r#"{"list":[1,2,3],"errors":[]}"#, "1 2 3", true),
            (r#"{"list":[1,"x",{"a":[300]},4]}"#, r#"1 "x" {"a":[300]} 4"#, true),
            (r#"{"list":[1,300,1e999]}"#, "1 300 1e999", true),
            (r#"{"errors":null,"list":[]}"#, "", true),
            (r#"{"list":[1,2]"#, "1 2", false),
            (r#"{"list":[1,2]} x"#, "1 2", false),
            (r#"{"list":[1,"x""#, "1 \"x\"", false),
            (r#"{"list":[1],"list":[2]}"#, "1", false),
            (r#"{"list":[1],"errors":[{"error":"no"}]}"#, "1", false),
            (r#"{"list":[1],"errors":5}"#, "1", false),
            (r#"{"list":null}"#, "", false),
            (r#"{"list":{}}"#, "", false),
            ("{}", "", false),
            ("[]", "", false),
            ("", "", false),
        ] {
            assert_eq!(read(body), (seen.to_owned(), whole), "{body}");
        }
    }

    #[test]
    fn the_sinks_error_ends_the_walk() {
        let asked = Asked::new("GET x", "me");
        for body in [r#"{"list":[1,2]}"#, r#"{"list":["x",2]}"#] {
            let mut calls = 0;
            let done = each(&asked, body.as_bytes(), "list", |_: Result<u8, Odd<'_>>| {
                calls += 1;
                Err(Error::UnknownNode { node: "n".into() })
            });
            assert!(matches!(done, Err(Error::UnknownNode { .. })), "{body}");
            assert_eq!(calls, 1, "{body}");
        }
    }
}
