//! The record's form as a JSON Schema, made from its types.

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{Schema, SchemaGenerator};

use crate::{Record, SCHEMA};

/// The JSON Schema (draft 2020-12) of the record that this version writes, indented, with the
/// types' own descriptions. `docs/record.schema.json` is this text.
pub fn json_schema() -> String {
    let settings = SchemaSettings::draft2020_12().with_transform(WithoutLinks);
    let generator: SchemaGenerator = settings.into_generator();
    let mut schema = generator.into_root_schema_for::<Record>();
    schema.insert("title".to_owned(), format!("firstflight record, schema {SCHEMA}").into());
    // A schema is made of text, numbers and maps by text, which JSON always takes.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

/// Takes the links of the source out of descriptions: `` [`X`](crate::X) `` is `` `X` ``.
#[derive(Clone, Debug)]
struct WithoutLinks;

impl Transform for WithoutLinks {
    fn transform(&mut self, schema: &mut Schema) {
        let description = schema.get("description").and_then(|text| text.as_str());
        if let Some(text) = description.map(without_links) {
            schema.insert("description".to_owned(), text.into());
        }
        transform_subschemas(self, schema);
    }
}

fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        out.push_str(before);
        let (name, after) = link.split_once("`]").unwrap_or((link, ""));
        out.push('`');
        out.push_str(name);
        out.push('`');
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    out.push_str(rest);
    // Wrapped lines of the source are one sentence.
    out.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}
