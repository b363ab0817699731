//! Parses the text of a configuration file: sections, unknown keys, and the lines of errors. Each
//! section is deserialized by itself, so that an error in one does not hide the others.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Error, ValueDeserializer};

use super::{Document, SiteSection};
use crate::Listener;
use crate::error::{FileProblem, PathSegment, SettingPath, nearest};

/// Reads the sections. Invalid values get their defaults, and an error.
pub(super) fn read_sections(table: DeTable<'_>) -> (Document, Vec<Error>) {
    let mut reading = SectionReader { table, errors: Vec::new() };
    let document = Document {
        listener: reading.list("listener", || Listener::new(([127, 0, 0, 1], 0).into())),
        tls: reading.section("tls").unwrap_or_default(),
        acme: reading.section("acme"),
        site: reading.list("site", SiteSection::default),
        upstream: reading.named("upstream"),
        early_data: reading.section("early_data").unwrap_or_default(),
        http3: reading.section("http3").unwrap_or_default(),
        limits: reading.section("limits").unwrap_or_default(),
        proxies: reading.section("proxies").unwrap_or_default(),
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

    /// Reads the elements of `[[name]]`. An invalid one is replaced, so that the others keep their
    /// indexes.
    fn list<T: DeserializeOwned>(&mut self, name: &str, replacement: impl Fn() -> T) -> Vec<T> {
        match self.table.remove(name).map(|list| (list.span(), list.into_inner())) {
            None => Vec::new(),
            Some((_, DeValue::Array(list))) => list
                .into_iter()
                .map(|element| self.value(element).unwrap_or_else(&replacement))
                .collect(),
            // Not a list; deserializing it produces the error.
            Some((at, other)) => self.value(Spanned::new(at, other)).unwrap_or_default(),
        }
    }

    /// Reads the sections of `[kind.name]`. An invalid one is replaced, so that references to its
    /// name are valid.
    fn named<T: DeserializeOwned + Default>(&mut self, kind: &str) -> BTreeMap<String, T> {
        match self.table.remove(kind).map(|table| (table.span(), table.into_inner())) {
            None => BTreeMap::new(),
            Some((_, DeValue::Table(table))) => table
                .into_iter()
                .map(|(name, section)| {
                    (name.into_inner().into_owned(), self.value(section).unwrap_or_default())
                })
                .collect(),
            Some((at, other)) => self.value(Spanned::new(at, other)).unwrap_or_default(),
        }
    }

    /// Reads a value. After an error, removes the part that the error is about, and reads again.
    fn value<T: DeserializeOwned>(&mut self, mut value: Spanned<DeValue<'i>>) -> Option<T> {
        let mut removed = false;
        loop {
            let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(value) => return Some(value),
                Err(error) => error,
            };
            // The missing field may be the part that was just removed.
            if removed && error.message().starts_with("missing field") {
                return None;
            }
            let at = error.span().map(|span| span.start);
            self.errors.push(error);
            removed = at.is_some_and(|at| remove_value(value.get_mut(), at));
            if !removed {
                return None;
            }
        }
    }
}

/// Removes the innermost value that contains the offset `at`. Returns false if there is none.
fn remove_value(value: &mut DeValue<'_>, at: usize) -> bool {
    // The span of a section is its header, which says nothing about its keys.
    let contains = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::Table(_) => value.span().start == at,
        _ => value.span().contains(&at),
    };
    match value {
        DeValue::Table(table) => {
            if table.iter_mut().any(|(_, inner)| remove_value(inner.get_mut(), at)) {
                return true;
            }
            let key = table.iter().find(|(key, inner)| key.span().contains(&at) || contains(inner));
            let key = key.map(|(key, _)| key.clone());
            key.is_some_and(|key| table.remove(&key).is_some())
        }
        DeValue::Array(list) => {
            if list.iter_mut().any(|inner| remove_value(inner.get_mut(), at)) {
                return true;
            }
            let Some(index) = list.iter().position(contains) else { return false };
            let elements = std::mem::replace(list, DeArray::new()).into_iter().enumerate();
            elements.filter(|(at, _)| *at != index).for_each(|(_, element)| list.push(element));
            true
        }
        _ => false,
    }
}

/// Removes unknown keys from the parsed file, by its schema, and corrects `[site]` to `[[site]]`.
/// Returns the offset and an error for each.
pub(super) fn check_keys(table: &mut DeTable<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    check_table(table, &[&SCHEMA], "", &mut found);
    found
}

/// The schema of the file, without references.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Document>().to_value()
});

/// `schemas` are the alternative schemas of the table, `path` its keys, joined by dots.
fn check_table(
    table: &mut DeTable<'_>,
    schemas: &[&Value],
    path: &str,
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
            found.push((key.span().start, unknown_key_message(key.get_ref(), path, &known)));
            continue;
        }
        let path = match path {
            "" => key.get_ref().to_string(),
            path => format!("{path}.{}", key.get_ref()),
        };
        if let Some(reason) = correct_brackets(&mut value, &inner, &path) {
            found.push((key.span().start, reason));
        }
        check_value(value.get_mut(), &inner, &path, found);
        table.insert(key, value);
    }
}

fn check_value(
    value: &mut DeValue<'_>,
    schemas: &[&Value],
    path: &str,
    found: &mut Vec<(usize, String)>,
) {
    match value {
        DeValue::Table(table) => check_table(table, schemas, path, found),
        DeValue::Array(list) => {
            let schemas = elements(schemas);
            for element in list.iter_mut() {
                check_value(element.get_mut(), &schemas, path, found);
            }
        }
        _ => {}
    }
}

/// Corrects a section with single brackets that is an element of a list, and the reverse. Returns
/// the error.
fn correct_brackets(
    value: &mut Spanned<DeValue<'_>>,
    schemas: &[&Value],
    path: &str,
) -> Option<String> {
    let is_section = |schemas: &[&Value]| {
        let member = |key| schemas.iter().any(|schema| schema.get(key).is_some());
        member("properties") || member("additionalProperties")
    };
    let span = value.span();
    let elements = elements(schemas);
    match value.get_mut() {
        DeValue::Table(table) if !is_section(schemas) && is_section(&elements) => {
            let mut list = DeArray::new();
            list.push(Spanned::new(span, DeValue::Table(std::mem::take(table))));
            *value.get_mut() = DeValue::Array(list);
            Some(format!("there may be several `{path}` sections; write [[{path}]]"))
        }
        DeValue::Array(list) if elements.is_empty() && is_section(schemas) => {
            let mut elements =
                std::mem::replace(list, DeArray::new()).into_iter().map(Spanned::into_inner);
            *value.get_mut() = elements.next().filter(|first| first.as_table().is_some())?;
            Some(format!("there is only one section `{path}`; write [{path}]"))
        }
        _ => None,
    }
}

/// The schemas of the elements, if these are schemas of lists.
fn elements<'a>(schemas: &[&'a Value]) -> Vec<&'a Value> {
    schemas.iter().filter_map(|schema| schema.get("items")).flat_map(alternatives).collect()
}

/// A schema, or its alternatives.
fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        Some(schemas) => schemas.iter().flat_map(alternatives).collect(),
        None => vec![schema],
    }
}

fn unknown_key_message(key: &str, path: &str, known: &[&str]) -> String {
    let path = path.rsplit('.').next().filter(|name| !name.is_empty()).unwrap_or("the file");
    match nearest(key, known) {
        Some(known) => format!("{path} has no key `{key}`; did you mean `{known}`?"),
        None => {
            let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!("{path} has no key `{key}`; allowed are {}", known.join(", "))
        }
    }
}

/// The error of the TOML parser, in one line.
pub(super) fn parser_error(text: &str, error: &Error) -> FileProblem {
    let (at, reason) = type_error(error);
    FileProblem { line: line(text, at), reason }
}

/// The offset and the reason of an error, in one line.
pub(super) fn type_error(error: &Error) -> (usize, String) {
    let reason = error.message().lines().collect::<Vec<_>>().join(", ");
    (error.span().map_or(0, |span| span.start), plain_message(&reason))
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
    if let Some(fix) = quoting_message(reason) {
        return fix;
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

/// The message for a value that has quotes and should not, or the reverse.
fn quoting_message(reason: &str) -> Option<String> {
    let (value, expected) = reason.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    let (kind, value) = value.split_once(' ')?;
    match (kind, expected) {
        ("string", "u16" | "u32" | "u64" | "usize" | "i64" | "f64" | "a boolean") => {
            let bare = value.trim_matches('"');
            let fits = bare.parse::<f64>().is_ok() || bare.parse::<bool>().is_ok();
            fits.then(|| format!("{value} is text; write {bare}, without quotes"))
        }
        ("integer" | "boolean", "a string") => {
            let bare = value.trim_matches('`');
            Some(format!("{bare} is not text; write it with quotes: \"{bare}\""))
        }
        ("floating", "a string") => {
            let bare = value.trim_start_matches("point ").trim_matches('`');
            Some(format!("{bare} is not text; write it with quotes: \"{bare}\""))
        }
        _ => None,
    }
}

/// Where the section that contains an offset starts: at its header.
pub(super) fn section_start(text: &str, offset: usize) -> usize {
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at > offset {
            break;
        }
        if line.trim_start().starts_with('[') {
            start = at;
        }
        at += line.len();
    }
    start
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
    for segment in path.segments() {
        let next = match (value, segment) {
            (Node::Table(table), PathSegment::Key(key)) => table.get_key_value(key.as_ref()),
            (Node::Other(inner), PathSegment::Key(key)) => {
                inner.as_table().and_then(|table| table.get_key_value(key.as_ref()))
            }
            // Written as `[site]` instead of `[[site]]`.
            (Node::Other(DeValue::Table(_)), PathSegment::Index(0)) => continue,
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
        found = key.span().start;
        value = Node::Other(inner.get_ref());
    }
    found
}

#[derive(Clone, Copy)]
enum Node<'a, 'i> {
    Table(&'a DeTable<'i>),
    Other(&'a DeValue<'i>),
}
