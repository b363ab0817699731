//! The status' form as a JSON Schema, made from its types.

use schemars::generate::SchemaSettings;

use super::{SCHEMA, Status};

/// The JSON Schema (draft 2020-12) of `/status.json`, indented. `docs/status.schema.json` is this
/// text.
pub fn json_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Status>();
    schema.insert("title".to_owned(), format!("firstflight status, schema {SCHEMA}").into());
    // A schema is made of text, numbers and maps by text, which JSON always takes.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
