//! A report as JSON, and its JSON Schema.

use schemars::generate::SchemaSettings;

use crate::Report;

/// Renders a report as JSON.
pub fn render(report: &Report) -> String {
    // Strings, numbers and lists: serializing cannot fail.
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

/// Reads a report.
///
/// # Errors
/// If the text is not a report of this version.
pub fn parse(text: &str) -> Result<Report, InvalidReport> {
    let report: Report =
        serde_json::from_str(text).map_err(|error| InvalidReport::Json(error.to_string()))?;
    match report.schema {
        Report::SCHEMA => Ok(report),
        other => Err(InvalidReport::Schema(other)),
    }
}

/// Why a text is not a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReport {
    /// Not JSON of this form.
    #[error("not the JSON of an audit: {0}")]
    Json(String),
    /// Another version of the format.
    #[error("an audit with schema {0}; this version reads schema 1")]
    Schema(u32),
}

/// The JSON Schema (draft 2020-12) of reports. `docs/reference/audit.schema.json` is this text.
pub fn json_schema() -> String {
    let mut schema =
        SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Report>();
    let title = format!("firstflight audit, schema {}", Report::SCHEMA);
    schema.insert("title".to_owned(), title.into());
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
