//! Keys that no section knows, by the file's schema, and what was probably meant.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::Document;
use crate::nearest::nearest;

/// Takes unknown keys out of a file's content: where each stands, and a sentence.
pub(super) fn take_out(table: &mut DeTable<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    look(table, &[&SCHEMA], "the file", &mut found);
    found
}

/// The file's form, without references from one part to another.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Document>().to_value()
});

/// `forms`: the schemas, one of which the table is to have.
fn look(table: &mut DeTable<'_>, forms: &[&Value], name: &str, found: &mut Vec<(usize, String)>) {
    let known: Vec<&str> = forms
        .iter()
        .filter_map(|form| form.get("properties")?.as_object())
        .flat_map(|properties| properties.keys().map(String::as_str))
        .collect();
    let others: Vec<&Value> = forms
        .iter()
        .filter_map(|form| form.get("additionalProperties"))
        .filter(|form| form.is_object())
        .collect();
    if known.is_empty() && others.is_empty() {
        // Not to be a table at all, which the section's own type says.
        return;
    }
    for (key, mut value) in std::mem::take(table) {
        let inner: Vec<&Value> = forms
            .iter()
            .filter_map(|form| form.get("properties")?.get(key.get_ref().as_ref()))
            .chain(others.iter().copied())
            .flat_map(alternatives)
            .collect();
        if inner.is_empty() {
            found.push((key.span().start, sentence(key.get_ref(), name, &known)));
        } else {
            look_inside(value.get_mut(), &inner, key.get_ref(), found);
            table.insert(key, value);
        }
    }
}

fn look_inside(
    value: &mut DeValue<'_>,
    forms: &[&Value],
    name: &str,
    found: &mut Vec<(usize, String)>,
) {
    match value {
        DeValue::Table(table) => look(table, forms, name, found),
        DeValue::Array(list) => {
            let forms: Vec<&Value> =
                forms.iter().filter_map(|form| form.get("items")).flat_map(alternatives).collect();
            for element in list.iter_mut() {
                look_inside(element.get_mut(), &forms, name, found);
            }
        }
        _ => {}
    }
}

/// A schema, or those of which it allows any.
fn alternatives(form: &Value) -> Vec<&Value> {
    match form.get("anyOf").or_else(|| form.get("oneOf")).and_then(Value::as_array) {
        Some(forms) => forms.iter().flat_map(alternatives).collect(),
        None => vec![form],
    }
}

fn sentence(key: &str, place: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(known) => format!("{place} has no key `{key}`; did you mean `{known}`?"),
        None => {
            let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!("{place} has no key `{key}`; allowed are {}", known.join(", "))
        }
    }
}
