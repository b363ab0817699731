//! Header fields as a table of names and values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderName, HeaderValue, header};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Fields with one or more values each: `{ "Cache-Control" = "max-age=60", "Link" = ["a", "b"] }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(super) Vec<(HeaderName, HeaderValue)>);

/// The values of a field.
#[derive(Deserialize, Serialize)]
#[serde(untagged, expecting = "a header field's value is a string, or a list of strings")]
enum Values {
    One(String),
    Several(Vec<String>),
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = BTreeMap::<&str, Vec<Cow<'_, str>>>::new();
        for (name, value) in &self.0 {
            let value = String::from_utf8_lossy(value.as_bytes());
            map.entry(name.as_str()).or_default().push(value);
        }
        to.collect_map(map.into_iter().map(|(name, mut values)| match values.len() {
            1 => (name, Values::One(values.remove(0).into())),
            _ => (name, Values::Several(values.into_iter().map(Into::into).collect())),
        }))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("header fields, such as { \"Cache-Control\" = \"max-age=60\" }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, values)) = map.next_entry::<String, Values>()? {
            let field = HeaderName::try_from(&name)
                .map_err(|_| A::Error::custom(format!("{name:?} is not a header field name")))?;
            if CONTROLLED_FIELDS.contains(&field) {
                let reason = format!("{name} belongs to the connection; it cannot be set");
                return Err(A::Error::custom(reason));
            }
            let values = match values {
                Values::One(value) => vec![value],
                Values::Several(values) => values,
            };
            for value in values {
                let value = HeaderValue::from_str(&value).map_err(|_| {
                    A::Error::custom(format!("{value:?} is not a header field value"))
                })?;
                fields.push((field.clone(), value));
            }
        }
        // A TOML table is sorted by key, with capital letters first.
        fields.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
        Ok(Fields(fields))
    }
}

impl JsonSchema for Fields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Fields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            },
            "x-kind": "header fields",
        })
    }
}

/// Fields of responses that describe the connection or the framing, which only the server sets.
pub const CONTROLLED_FIELDS: [HeaderName; 8] = [
    header::ALT_SVC,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Fields that the server sets on requests to an upstream, or removes.
pub const UPSTREAM_FIELDS: [&str; 12] = [
    "connection",
    "content-length",
    "early-data",
    "forwarded",
    "host",
    "transfer-encoding",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    struct Section {
        headers: Fields,
    }

    fn read(text: &str) -> Result<Section, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn names_are_case_insensitive() {
        let section = read("headers = { \"B\" = \"1\", \"a\" = [\"2\", \"3\"] }").unwrap();
        let names: Vec<_> = section.headers.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a", "b"]);
        assert_eq!(read(&toml::to_string(&section).unwrap()), Ok(section));
    }

    #[test]
    fn framing_fields_cannot_be_set() {
        for (name, value) in [
            ("Content-Length", "1"),
            ("te", "x"),
            ("Alt-Svc", "clear"),
            ("a b", "1"),
            ("a", "1\\n"),
        ] {
            let error = read(&format!("headers = {{ \"{name}\" = \"{value}\" }}")).unwrap_err();
            assert!(error.contains(name) || error.contains("value"), "{error}");
        }
    }
}
