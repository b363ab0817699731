//! Parses the text of a configuration file: sections, unknown keys, and the lines of errors. Each
//! section is deserialized by itself, so that an error in one does not hide the others.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error, ValueDeserializer};

use super::Document;
use crate::error::{FileProblem, PathSegment, SettingPath, nearest};

/// Reads the valid sections; the others have their defaults, and an error.
pub(super) fn read_sections(table: DeTable<'_>) -> (Document, Vec<Error>) {
    let mut reading = SectionReader { table, errors: Vec::new() };
    let document = Document {
        listener: reading.list("listener"),
        tls: reading.section("tls").unwrap_or_default(),
        acme: reading.section("acme"),
        site: reading.list("site"),
        upstream: reading.named("upstream"),
        early_data: reading.section("early_data").unwrap_or_default(),
        http3: reading.section("http3").unwrap_or_default(),
        limits: reading.section("limits").unwrap_or_default(),
        store: reading.section("store"),
        tickets: reading.section("tickets").unwrap_or_default(),
        admin: reading.section("admin"),
        access_log: reading.section("access_log"),
        log: reading.section("log").unwrap_or_default(),
        telemetry: reading.section("telemetry"),
        process: reading.section("process").unwrap_or_default(),
    };
    (document, reading.errors)
}

struct SectionReader<'i> {
    table: DeTable<'i>,
    errors: Vec<Error>,
}

impl<'i> SectionReader<'i> {
    /// Reads a section, if it exists and is valid.
    fn section<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let section = self.table.remove(name)?;
        self.value(section)
    }

    /// Reads the valid elements of `[[name]]`.
    fn list<T: DeserializeOwned>(&mut self, name: &str) -> Vec<T> {
        match self.table.remove(name).map(|list| (list.span(), list.into_inner())) {
            None => Vec::new(),
            Some((_, DeValue::Array(list))) => {
                list.into_iter().filter_map(|element| self.value(element)).collect()
            }
            // Not a list; deserializing it produces the error.
            Some((at, other)) => self.value(Spanned::new(at, other)).unwrap_or_default(),
        }
    }

    /// Reads the valid sections of `[kind.name]`.
    fn named<T: DeserializeOwned>(&mut self, kind: &str) -> BTreeMap<String, T> {
        match self.table.remove(kind).map(|table| (table.span(), table.into_inner())) {
            None => BTreeMap::new(),
            Some((_, DeValue::Table(table))) => table
                .into_iter()
                .filter_map(|(name, section)| {
                    Some((name.into_inner().into_owned(), self.value(section)?))
                })
                .collect(),
            Some((at, other)) => self.value(Spanned::new(at, other)).unwrap_or_default(),
        }
    }

    fn value<T: DeserializeOwned>(&mut self, value: Spanned<DeValue<'i>>) -> Option<T> {
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }
}

/// Removes unknown keys from the parsed file, by its schema. Returns the offset and an error for
/// each.
pub(super) fn remove_unknown_keys(table: &mut DeTable<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    find_unknown(table, &[&SCHEMA], "the file", &mut found);
    found
}

/// The schema of the file, without references.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Document>().to_value()
});

/// `schemas` are the alternative schemas of the table.
fn find_unknown(
    table: &mut DeTable<'_>,
    schemas: &[&Value],
    name: &str,
    found: &mut Vec<(usize, String)>,
) {
    let known: Vec<&str> = schemas
        .iter()
        .filter_map(|schema| schema.get("properties")?.as_object())
        .flat_map(|properties| properties.keys().map(String::as_str))
        .collect();
    let others: Vec<&Value> = schemas
        .iter()
        .filter_map(|schema| schema.get("additionalProperties"))
        .filter(|schema| schema.is_object())
        .collect();
    if known.is_empty() && others.is_empty() {
        // Not a table at all, which the section's own type reports.
        return;
    }
    for (key, mut value) in std::mem::take(table) {
        let inner: Vec<&Value> = schemas
            .iter()
            .filter_map(|schema| schema.get("properties")?.get(key.get_ref().as_ref()))
            .chain(others.iter().copied())
            .flat_map(alternatives)
            .collect();
        if inner.is_empty() {
            found.push((key.span().start, sentence(key.get_ref(), name, &known)));
        } else {
            find_unknown_inside(value.get_mut(), &inner, key.get_ref(), found);
            table.insert(key, value);
        }
    }
}

fn find_unknown_inside(
    value: &mut DeValue<'_>,
    schemas: &[&Value],
    name: &str,
    found: &mut Vec<(usize, String)>,
) {
    match value {
        DeValue::Table(table) => find_unknown(table, schemas, name, found),
        DeValue::Array(list) => {
            let schemas: Vec<&Value> = schemas
                .iter()
                .filter_map(|schema| schema.get("items"))
                .flat_map(alternatives)
                .collect();
            for element in list.iter_mut() {
                find_unknown_inside(element.get_mut(), &schemas, name, found);
            }
        }
        _ => {}
    }
}

/// A schema, or its alternatives.
fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        Some(schemas) => schemas.iter().flat_map(alternatives).collect(),
        None => vec![schema],
    }
}

fn sentence(key: &str, path: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(known) => format!("{path} has no key `{key}`; did you mean `{known}`?"),
        None => {
            let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!("{path} has no key `{key}`; allowed are {}", known.join(", "))
        }
    }
}

/// The error of the TOML parser, in one line.
pub(super) fn parser_error(text: &str, error: &toml::de::Error) -> FileProblem {
    let at = error.span().map_or(0, |span| span.start);
    let reason = error.message().lines().collect::<Vec<_>>().join(", ");
    FileProblem { line: line(text, at), reason: plain_message(&reason) }
}

/// Rewrites a message of the deserializer for operators.
fn plain_message(reason: &str) -> String {
    if let Some((value, allowed)) =
        reason.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        let allowed = allowed.trim_start_matches("one of ");
        return format!("unknown value {value}; allowed are {allowed}");
    }
    if let Some(key) = reason.strip_prefix("missing field ") {
        return format!("{key} is missing but required");
    }
    match reason.rsplit_once(", expected ") {
        Some((value, "a sequence")) => format!("{value}; allowed is a list"),
        Some((value, "u16" | "u32" | "u64" | "usize")) => {
            format!("{value}; allowed is a non-negative integer")
        }
        Some((value, allowed)) => format!("{value}; allowed is {allowed}"),
        None => reason.to_owned(),
    }
}

/// The line of a byte offset, from 1.
pub(super) fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// The offset of the key at a path, or of the innermost section that exists.
pub(super) fn offset(text: &str, path: &SettingPath) -> usize {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut found = 0;
    let mut value = Node::Table(table.get_ref());
    for step in path.segments() {
        let next = match (value, step) {
            (Node::Table(table), PathSegment::Key(key)) => table.get_key_value(key.as_ref()),
            (Node::Other(inner), PathSegment::Key(key)) => {
                inner.as_table().and_then(|table| table.get_key_value(key.as_ref()))
            }
            (Node::Other(inner), PathSegment::Index(index)) => {
                let Some(element) = inner.as_array().and_then(|list| list.get(*index)) else {
                    break;
                };
                found = element.span().start;
                value = Node::Other(element.get_ref());
                continue;
            }
            (Node::Table(_), PathSegment::Index(_)) => None,
        };
        let Some((key, inner)) = next else { break };
        found = start(key.span(), inner);
        value = Node::Other(inner.get_ref());
    }
    found
}

#[derive(Clone, Copy)]
enum Node<'a, 'i> {
    Table(&'a DeTable<'i>),
    Other(&'a DeValue<'i>),
}

/// A key's own place.
fn start(key: Range<usize>, _value: &Spanned<DeValue<'_>>) -> usize {
    key.start
}
