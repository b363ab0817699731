//! The reference of the configuration file, generated from the doc comments of its types: tables for
//! the documentation, text for the manual page, and a JSON schema for editors.

mod tables;
mod text;

use firstflight_certificates::acme::{AcmeConfig, ExternalAccount};
use firstflight_telemetry::otlp::TelemetrySettings;
use firstflight_upstream::{EjectionRule, HealthCheck, PoolConfig, RetryRule};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::value::Error;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

use crate::file::{
    Document, EarlyDataSection, ProxySection, RouteSection, SiteSection, StoreSection,
    TicketSection, TlsSection,
};
use crate::{
    AccessLogSettings, AdminSettings, Http3Settings, Limits, Listener, LogSettings, Nonce,
    ProcessSettings, RateLimit, Timestamp,
};

/// The JSON schema (draft 2020-12) of the configuration file, indented. It is stored as
/// `docs/reference/configuration.schema.json`.
pub fn json_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), "firstflight configuration".into());
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    // A schema contains only text, numbers and string-keyed maps, which JSON can represent.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

/// The reference of the configuration file in Markdown, with a table for each section. It is stored
/// as `docs/reference/configuration.md`.
pub fn reference_tables() -> String {
    format!("{PREFACE}{}", tables::write(&sections()))
}

/// The same reference with a heading for each key, for the manual page, which has no tables.
pub fn reference() -> String {
    format!("{PREFACE}{}", text::write(&sections()))
}

/// The handwritten introduction: how file, flags and environment are combined.
const PREFACE: &str = include_str!("reference/preface.md");

fn sections() -> Vec<Section> {
    vec![
        section::<Listener>("[[listener]]"),
        section::<TlsSection>("[tls]"),
        section::<AcmeConfig>("[acme]"),
        section::<ExternalAccount>("[acme.external_account]"),
        section::<EarlyDataSection>("[early_data]"),
        section::<SiteSection>("[[site]]"),
        section::<RouteSection>("[[site.route]]"),
        section::<Timestamp>("[site.route.timestamp]"),
        section::<Nonce>("[site.route.nonce]"),
        section::<RateLimit>("[site.route.rate_limit]"),
        section::<PoolConfig>("[upstream.NAME]"),
        section::<HealthCheck>("[upstream.NAME.health_check]"),
        section::<EjectionRule>("[upstream.NAME.ejection]"),
        section::<RetryRule>("[upstream.NAME.retry]"),
        section::<Http3Settings>("[http3]"),
        section::<Limits>("[limits]"),
        section::<ProxySection>("[proxies]"),
        section::<StoreSection>("[store]"),
        section::<TicketSection>("[tickets]"),
        section::<AdminSettings>("[admin]"),
        section::<AccessLogSettings>("[access_log]"),
        section::<LogSettings>("[log]"),
        section::<TelemetrySettings>("[telemetry]"),
        section::<ProcessSettings>("[process]"),
    ]
}

/// A section of the file.
struct Section {
    heading: &'static str,
    about: String,
    /// The keys in their order of declaration.
    keys: Vec<Key>,
}

struct Key {
    name: &'static str,
    kind: Kind,
    /// The default in TOML, if there is a useful literal.
    default: Option<String>,
    required: bool,
    about: String,
}

/// What kind of value a key takes.
enum Kind {
    /// A description in words.
    Plain(String),
    /// One of these values, each with its meaning.
    Choice(Vec<(String, String)>),
    /// A table, or a list of tables, with a section of this heading.
    Section(String),
}

fn section<T: JsonSchema + DeserializeOwned>(heading: &'static str) -> Section {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let required =
        |key: &str| schema["required"].as_array().is_some_and(|keys| keys.contains(&key.into()));
    let keys = keys_of::<T>().iter().map(|name| {
        let schema = &schema["properties"][*name];
        Key {
            name,
            kind: kind(heading, name, form(schema)),
            default: schema.get("default").and_then(literal),
            required: required(name),
            about: description(schema),
        }
    });
    Section { heading, about: description(&schema), keys: keys.collect() }
}

/// The schema of a value, without the alternative for a missing key.
fn form(schema: &Value) -> &Value {
    let forms = schema.get("anyOf").and_then(Value::as_array);
    let is_value = |form: &&Value| form["type"] != "null" && form["const"] != false;
    match forms {
        Some(forms) if schema.get("x-kind").is_none() => {
            let mut values = forms.iter().filter(is_value);
            match (values.next(), values.next()) {
                (Some(only), None) => only,
                _ => schema,
            }
        }
        _ => schema,
    }
}

/// The allowed values, if they are enumerated with descriptions.
fn choices(form: &Value) -> &[Value] {
    form.get("oneOf").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the kind of a key. `section` is the heading of its section.
fn kind(section: &str, key: &str, form: &Value) -> Kind {
    if let Some(kind) = form.get("x-kind").and_then(Value::as_str) {
        return Kind::Plain(kind.to_owned());
    }
    let choices = choices(form)
        .iter()
        .map(|choice| (literal(&choice["const"]).unwrap_or_default(), description(choice)));
    let choices = choices.collect::<Vec<_>>();
    if !choices.is_empty() {
        return Kind::Choice(choices);
    }
    let type_of = |form: &Value| {
        let kinds = form["type"].as_array().cloned().unwrap_or_else(|| vec![form["type"].clone()]);
        kinds
            .iter()
            .find_map(|kind| kind.as_str().filter(|kind| *kind != "null").map(str::to_owned))
    };
    let path = format!("{}.{key}", section.trim_matches(['[', ']']));
    let words = match type_of(form).as_deref() {
        Some("boolean") => "`true` or `false`",
        Some("integer" | "number") => "a number",
        Some("array") if type_of(&form["items"]).as_deref() == Some("object") => {
            return Kind::Section(format!("[[{path}]]"));
        }
        Some("array") => "a list of strings",
        Some("object") if form.get("properties").is_some() => {
            return Kind::Section(format!("[{path}]"));
        }
        Some("object") => "a table by path",
        None if form.get("anyOf").is_some() => "a string, or a list of strings",
        _ => "a string",
    };
    Kind::Plain(words.to_owned())
}

/// A value in TOML. Returns `None` if there is no useful literal.
fn literal(value: &Value) -> Option<String> {
    match value {
        Value::Bool(_) | Value::Number(_) => Some(format!("`{value}`")),
        Value::String(text) if !text.is_empty() => Some(format!("`{text:?}`")),
        _ => None,
    }
}

/// The description of a schema.
fn description(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The keys of a struct in their order of declaration, which JSON schemas do not keep.
fn keys_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &[&str] = &[];
    let _ = T::deserialize(KeyRecorder(&mut found));
    found
}

/// A deserializer that reads nothing and records the requested keys.
struct KeyRecorder<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for KeyRecorder<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("nothing is read"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("this is no section"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_come_in_the_order_of_their_type() {
        let keys = super::keys_of::<crate::Limits>();
        assert_eq!(keys[..2], ["header_timeout", "header_size"]);
        assert!(super::keys_of::<String>().is_empty());
    }
}
