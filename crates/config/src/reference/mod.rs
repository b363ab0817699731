//! What the file's keys mean, from the types' own descriptions: a page for people, and a JSON
//! schema for editors.

mod fields;
mod page;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::file::Document;

pub use self::page::reference;

/// The file's form as a JSON schema (draft 2020-12), indented. `docs/configuration.schema.json` is
/// this text.
pub fn json_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), "firstflight configuration".into());
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    // A schema is made of text, numbers and maps by text, which JSON always takes.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
