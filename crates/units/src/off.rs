//! Settings that can be switched off.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes an `Option` of a table as that table, or `false` for `None`:
/// `#[serde(with = "OrOff::<Rule>")]`.
pub struct OrOff<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Serialize> OrOff<T> {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.serialize(to),
            None => to.serialize_bool(false),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is allowed.
    pub fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        from.deserialize_any(Self(PhantomData))
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

    fn visit_bool<E: Error>(self, given: bool) -> Result<Option<T>, E> {
        match given {
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
