//! Serde adapters for values with `Display` and `FromStr`, and for tables that can be switched off.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a value by its `Display`, and reads it by its `FromStr`, whose error is to be a sentence
/// with what is allowed: `#[serde(with = "Text::<SocketAddr>")]`.
pub struct Text<T>(PhantomData<T>);

/// Writes an `Option` likewise; `None` is left out. The struct has to have `#[serde(default)]`.
pub struct OptionalText<T>(PhantomData<T>);

/// Writes a list of such values.
pub struct TextList<T>(PhantomData<T>);

impl<T: Display + FromStr<Err: Display>> Text<T> {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Reads it.
    ///
    /// # Errors
    /// The value's own.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(Self(PhantomData))
    }
}

impl<T: FromStr<Err: Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl<T: Display + FromStr<Err: Display>> OptionalText<T> {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&value.to_string()),
            None => serializer.serialize_none(),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// The value's own.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Text::deserialize(deserializer).map(Some)
    }
}

impl<T: Display + FromStr<Err: Display>> TextList<T> {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(values.len()))?;
        for value in values {
            list.serialize_element(&value.to_string())?;
        }
        list.end()
    }

    /// Reads it.
    ///
    /// # Errors
    /// The first value's that has one.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<Cow<'_, str>>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

impl<T> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

impl<T> JsonSchema for OptionalText<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OptionalText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

impl<T> JsonSchema for TextList<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TextList".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "array", "items": {"type": "string"}})
    }
}

/// Writes an `Option` of a table as that table, or `false` for `None`:
/// `#[serde(with = "OrOff::<Rule>")]`.
pub struct OrOff<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Serialize> OrOff<T> {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_bool(false),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is allowed.
    pub fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_any(Self(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for OrOff<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, or false")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<T>, E> {
        match value {
            false => Ok(None),
            true => Err(E::invalid_value(Unexpected::Bool(true), &self)),
        }
    }
}

impl<T: JsonSchema> JsonSchema for OrOff<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OrOff{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let on = generator.subschema_for::<T>();
        json_schema!({"anyOf": [on, {"const": false}]})
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize, serde::Serialize, JsonSchema)]
    #[serde(default)]
    struct Addresses {
        #[serde(with = "Text::<SocketAddr>")]
        one: SocketAddr,
        #[serde(with = "OptionalText::<SocketAddr>")]
        perhaps: Option<SocketAddr>,
        #[serde(with = "TextList::<SocketAddr>")]
        many: Vec<SocketAddr>,
    }

    impl Default for Addresses {
        fn default() -> Self {
            Self { one: SocketAddr::from(([127, 0, 0, 1], 1)), perhaps: None, many: Vec::new() }
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_described() {
        let some = Addresses {
            perhaps: Some(SocketAddr::from(([127, 0, 0, 1], 2))),
            many: vec![SocketAddr::from(([127, 0, 0, 1], 3))],
            ..Addresses::default()
        };
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(serde_json::from_str::<Addresses>(&text).unwrap(), some);
        assert_eq!(serde_json::from_str::<Addresses>("{}").unwrap(), Addresses::default());
        assert!(serde_json::from_str::<Addresses>(r#"{"many":["x"]}"#).is_err());
        let schema = serde_json::to_value(schemars::schema_for!(Addresses)).unwrap();
        assert_eq!(schema["properties"]["one"]["default"], "127.0.0.1:1");
        assert_eq!(schema["properties"]["many"]["items"]["type"], "string");
    }
}
