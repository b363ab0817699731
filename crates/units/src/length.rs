//! Lengths of time: `10s`, `500ms`, `1m 30s`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// Writes a [`Duration`] as `10s`, `500ms` or `1m 30s`: `#[serde(with = "Length")]`.
pub struct Length;

/// Writes an `Option<Duration>` likewise; `None` is left out. The struct has to have
/// `#[serde(default)]`.
pub struct OptionalLength;

/// Writes an `Option<Duration>` as a length of time, or `false` for `None`.
pub struct LengthOrOff;

/// Reads a length of time such as `10s`, `500ms` or `1m 30s`.
///
/// # Errors
/// A sentence with what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{text:?} is no length of time; allowed are such as 10s or 500ms"))
}

/// The shortest text that [`parse_duration`] reads as this: `10s`, `1m 30s`, `24h`.
pub fn print_duration(length: Duration) -> String {
    match jiff::SignedDuration::try_from(length) {
        Ok(length) => format!("{length:#}"),
        // More than 292 billion years.
        Err(_) => format!("{:#}", jiff::SignedDuration::MAX),
    }
}

impl Length {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(length: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&print_duration(*length))
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is allowed.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        from.deserialize_str(Self)
    }
}

impl Visitor<'_> for Length {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a length of time, a string such as \"10s\" or \"500ms\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(E::custom)
    }
}

impl OptionalLength {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(length: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match length {
            Some(length) => to.serialize_some(&print_duration(*length)),
            None => to.serialize_none(),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is allowed.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Length::deserialize(from).map(Some)
    }
}

impl LengthOrOff {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(length: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match length {
            Some(length) => Length::serialize(length, to),
            None => to.serialize_bool(false),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is allowed.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        from.deserialize_any(Self)
    }
}

impl Visitor<'_> for LengthOrOff {
    type Value = Option<Duration>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a length of time such as \"10s\", or false")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<Duration>, E> {
        parse_duration(text).map(Some).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<Option<Duration>, E> {
        match given {
            false => Ok(None),
            true => Err(E::invalid_value(serde::de::Unexpected::Bool(true), &self)),
        }
    }
}

impl JsonSchema for LengthOrOff {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LengthOrOff".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "string"}, {"const": false}],
            "x-kind": "a length of time, or `false` for none",
            "examples": ["10s", "500ms"],
        })
    }
}

impl JsonSchema for Length {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "x-kind": "a length of time", "examples": ["10s", "500ms"]})
    }
}

impl JsonSchema for OptionalLength {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OptionalLength".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Length::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_are_written_as_they_are_said() {
        for text in ["10s", "500ms", "1m 30s", "24h", "3ms", "1h 5m"] {
            assert_eq!(print_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["", "10", "-1s", "soon", "1 month"] {
            assert!(
                parse_duration(text).unwrap_err().contains("allowed are such as 10s"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in 0..1u64 << 40, nanos in 0..1_000_000_000u32) {
            let length = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&print_duration(length)), Ok(length));
        }
    }
}
