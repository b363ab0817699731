//! The reference of the configuration file, generated from the doc comments of its types: a page
//! for people, and a JSON schema for editors.

use std::fmt::Write;

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

/// The reference of the configuration file in Markdown. It is stored as
/// `docs/reference/configuration.md`.
pub fn reference() -> String {
    let sections = [
        section::<Listener>("[[listener]]"),
        section::<TlsSection>("[tls]"),
        section::<AcmeConfig>("[acme]"),
        section::<ExternalAccount>("[acme.external_account]"),
        section::<SiteSection>("[[site]]"),
        section::<RouteSection>("[[site.route]]"),
        section::<Timestamp>("[site.route.timestamp]"),
        section::<Nonce>("[site.route.nonce]"),
        section::<RateLimit>("[site.route.rate_limit]"),
        section::<PoolConfig>("[upstream.NAME]"),
        section::<HealthCheck>("[upstream.NAME.health_check]"),
        section::<EjectionRule>("[upstream.NAME.ejection]"),
        section::<RetryRule>("[upstream.NAME.retry]"),
        section::<EarlyDataSection>("[early_data]"),
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
    ];
    format!("{PREFACE}{}", sections.concat())
}

/// The handwritten introduction: how file, flags and environment are combined.
const PREFACE: &str = include_str!("reference/preface.md");

/// A section and its keys, in their order of declaration.
fn section<T: JsonSchema + DeserializeOwned>(heading: &str) -> String {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let mut text = format!("\n## {heading}\n\n{}", wrapped(&description(&schema), ""));
    for key in keys_of::<T>() {
        let needed =
            schema["required"].as_array().is_some_and(|keys| keys.contains(&(*key).into()));
        text += &entry(key, &schema["properties"][*key], needed);
    }
    text
}

fn entry(key: &str, schema: &Value, needed: bool) -> String {
    let form = form(schema);
    let mut line = kind(key, form);
    match schema.get("default").and_then(literal) {
        Some(default) => line += &format!("; default {default}"),
        None if needed => line += "; required",
        None => {}
    }
    let line = wrapped(&format!("{}.", capital(&line)), "");
    let mut text = format!("\n### {key}\n\n{line}\n{}", wrapped(&description(schema), ""));
    if !choices(form).is_empty() {
        text.push('\n');
    }
    for choice in choices(form) {
        let value = literal(&choice["const"]).unwrap_or_default();
        let item = format!("{value}: {}", description(choice));
        let _ = write!(text, "{}", wrapped(&item, "- "));
    }
    text
}

/// The schema of a value, without the alternative for a missing key.
fn form(schema: &Value) -> &Value {
    let forms = schema.get("anyOf").and_then(Value::as_array);
    let some = |form: &&Value| form["type"] != "null" && form["const"] != false;
    match forms {
        Some(forms) if schema.get("x-kind").is_none() => {
            let mut some = forms.iter().filter(some);
            match (some.next(), some.next()) {
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

/// What kind of value a key takes.
fn kind(key: &str, form: &Value) -> String {
    if let Some(kind) = form.get("x-kind").and_then(Value::as_str) {
        return kind.to_owned();
    }
    if !choices(form).is_empty() {
        return "one of the values below".to_owned();
    }
    let of = |form: &Value| {
        let kinds = form["type"].as_array().cloned().unwrap_or_else(|| vec![form["type"].clone()]);
        kinds
            .iter()
            .find_map(|kind| kind.as_str().filter(|kind| *kind != "null").map(str::to_owned))
    };
    match of(form).as_deref() {
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("integer" | "number") => "a number".to_owned(),
        Some("array") if of(&form["items"]).as_deref() == Some("object") => {
            format!("sections of their own, `[[site.{key}]]`")
        }
        Some("array") => "a list of strings".to_owned(),
        Some("object") if form.get("properties").is_some() => {
            "a table, described in a section below".to_owned()
        }
        Some("object") => "a table by path".to_owned(),
        None if form.get("anyOf").is_some() => "a string, or a list of strings".to_owned(),
        _ => "a string".to_owned(),
    }
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

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

/// Wraps paragraphs at 100 columns. The first line starts with `bullet`, the others are indented.
fn wrapped(text: &str, bullet: &str) -> String {
    let mut out = String::new();
    for (at, paragraph) in text.split("\n\n").filter(|part| !part.is_empty()).enumerate() {
        let indent = " ".repeat(bullet.len());
        if at > 0 {
            out.push('\n');
        }
        let mut line = if at == 0 { bullet.to_owned() } else { indent.clone() };
        let start = line.len();
        for word in paragraph.split_whitespace() {
            if line.len() > start && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                out.push_str(&line);
                out.push('\n');
                line = indent.clone();
            }
            if line.len() > start {
                line.push(' ');
            }
            line.push_str(word);
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// The width of the project's other pages.
const COLUMNS: usize = 100;

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
