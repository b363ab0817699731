//! Durations: `10s`, `500ms`, `1m 30s`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// Writes a [`Duration`] as `10s`, `500ms` or `1m 30s`: `#[serde(with = "DurationText")]`.
pub struct DurationText;

/// Like [`DurationText`], for an `Option<Duration>`. TOML omits `None`, so the struct needs
/// `#[serde(default)]`.
pub struct OptionalDurationText;

/// Writes an `Option<Duration>` as a duration, or `false` for `None`.
pub struct DurationOrOff;

/// Reads a duration such as `10s`, `500ms` or `1m 30s`.
///
/// # Errors
/// A sentence that states the allowed format.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{text:?} is not a duration; write it as 10s, 500ms or 1m 30s"))
}

/// The shortest text that [`parse_duration`] reads as this duration: `10s`, `1m 30s`, `24h`.
pub fn print_duration(duration: Duration) -> String {
    match jiff::SignedDuration::try_from(duration) {
        Ok(duration) => format!("{duration:#}"),
        // More than 292 billion years.
        Err(_) => format!("{:#}", jiff::SignedDuration::MAX),
    }
}

impl DurationText {
    /// Serializes the duration.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&print_duration(*duration))
    }

    /// Deserializes the duration.
    ///
    /// # Errors
    /// A sentence that states the allowed format.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_str(Self)
    }
}

impl Visitor<'_> for DurationText {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration, a string such as \"10s\" or \"500ms\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(E::custom)
    }
}

impl OptionalDurationText {
    /// Serializes the duration.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => serializer.serialize_some(&print_duration(*duration)),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes the duration.
    ///
    /// # Errors
    /// A sentence that states the allowed format.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        DurationText::deserialize(deserializer).map(Some)
    }
}

impl DurationOrOff {
    /// Serializes the duration.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => DurationText::serialize(duration, serializer),
            None => serializer.serialize_bool(false),
        }
    }

    /// Deserializes the duration.
    ///
    /// # Errors
    /// A sentence that states the allowed format.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl Visitor<'_> for DurationOrOff {
    type Value = Option<Duration>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"10s\", or false")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<Duration>, E> {
        parse_duration(text).map(Some).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<Duration>, E> {
        match value {
            false => Ok(None),
            true => Err(E::invalid_value(serde::de::Unexpected::Bool(true), &self)),
        }
    }
}

impl JsonSchema for DurationOrOff {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DurationOrOff".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "string"}, {"const": false}],
            "x-kind": "a duration, or `false` for none",
            "examples": ["10s", "500ms"],
        })
    }
}

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DurationText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "x-kind": "a duration", "examples": ["10s", "500ms"]})
    }
}

impl JsonSchema for OptionalDurationText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OptionalDurationText".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        DurationText::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_printed_in_the_format_that_is_parsed() {
        for text in ["10s", "500ms", "1m 30s", "24h", "3ms", "1h 5m"] {
            assert_eq!(print_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["", "10", "-1s", "soon", "1 month"] {
            assert!(parse_duration(text).unwrap_err().contains("write it as 10s"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_durations_parse_exactly(seconds in 0..1u64 << 40, nanos in 0..1_000_000_000u32) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&print_duration(duration)), Ok(duration));
        }
    }
}
