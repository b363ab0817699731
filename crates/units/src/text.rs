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

/// Serializes a value with `Display` and deserializes it with `FromStr`, whose error should state
/// what is allowed: `#[serde(with = "Text::<SocketAddr>")]`.
pub struct Text<T>(PhantomData<T>);

/// Like [`Text`], for an `Option`. TOML omits `None`, so the struct needs `#[serde(default)]`.
pub struct OptionalText<T>(PhantomData<T>);

/// Like [`Text`], for a list.
pub struct TextList<T>(PhantomData<T>);

impl<T: Display + FromStr<Err: Display>> Text<T> {
    /// Serializes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// The error of `FromStr`.
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
    /// Serializes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&value.to_string()),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// The error of `FromStr`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Text::deserialize(deserializer).map(Some)
    }
}

impl<T: Display + FromStr<Err: Display>> TextList<T> {
    /// Serializes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(values.len()))?;
        for value in values {
            list.serialize_element(&value.to_string())?;
        }
        list.end()
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// The first error of `FromStr`.
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

/// Serializes an `Option` of a table as that table, or as `false` for `None`:
/// `#[serde(with = "OrOff::<Rule>")]`.
pub struct OrOff<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Serialize> OrOff<T> {
    /// Serializes the value.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_bool(false),
        }
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// An error if the input is neither a valid table nor `false`.
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
        let table = generator.subschema_for::<T>();
        json_schema!({"anyOf": [table, {"const": false}]})
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
        single: SocketAddr,
        #[serde(with = "OptionalText::<SocketAddr>")]
        optional: Option<SocketAddr>,
        #[serde(with = "TextList::<SocketAddr>")]
        list: Vec<SocketAddr>,
    }

    impl Default for Addresses {
        fn default() -> Self {
            Self { single: SocketAddr::from(([127, 0, 0, 1], 1)), optional: None, list: Vec::new() }
        }
    }

    #[test]
    fn values_are_deserialized_as_serialized_and_have_a_schema() {
        let addresses = Addresses {
            optional: Some(SocketAddr::from(([127, 0, 0, 1], 2))),
            list: vec![SocketAddr::from(([127, 0, 0, 1], 3))],
            ..Addresses::default()
        };
        let text = serde_json::to_string(&addresses).unwrap();
        assert_eq!(serde_json::from_str::<Addresses>(&text).unwrap(), addresses);
        assert_eq!(serde_json::from_str::<Addresses>("{}").unwrap(), Addresses::default());
        assert!(serde_json::from_str::<Addresses>(r#"{"list":["x"]}"#).is_err());
        let schema = serde_json::to_value(schemars::schema_for!(Addresses)).unwrap();
        assert_eq!(schema["properties"]["single"]["default"], "127.0.0.1:1");
        assert_eq!(schema["properties"]["list"]["items"]["type"], "string");
    }
}
