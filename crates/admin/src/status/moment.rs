//! A point in time, in seconds, as text for JSON.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

/// A point in time, in seconds since 1970. In JSON a string by RFC 3339, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub i64);

impl Moment {
    /// Now, by the machine's clock.
    pub fn now() -> Self {
        jiff::Timestamp::now().into()
    }

    /// By RFC 3339, in UTC.
    pub fn text(self) -> String {
        let time = jiff::Timestamp::from_second(self.0);
        time.map_or_else(|_| self.0.to_string(), |time| time.to_string())
    }
}

impl From<jiff::Timestamp> for Moment {
    fn from(time: jiff::Timestamp) -> Self {
        Self(time.as_second())
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "A point in time by RFC 3339, in UTC.",
        })
    }
}
