//! Where in a file a setting stands.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::FileProblem;
use crate::misfit::{Place, Step};

/// A parser's error, in one line.
pub(super) fn wrong(text: &str, error: &toml::de::Error) -> FileProblem {
    let at = error.span().map_or(0, |span| span.start);
    let reason = error.message().lines().collect::<Vec<_>>().join(", ");
    FileProblem { line: line(text, at), reason: in_our_words(&reason) }
}

/// A sentence of the library that reads types, as an operator would say it.
fn in_our_words(reason: &str) -> String {
    if let Some((given, allowed)) =
        reason.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        let allowed = allowed.trim_start_matches("one of ");
        return format!("{given} is not known; allowed are {allowed}");
    }
    if let Some(key) = reason.strip_prefix("missing field ") {
        return format!("{key} is missing, and is needed");
    }
    match reason.rsplit_once(", expected ") {
        Some((given, "a sequence")) => format!("{given}; allowed is a list"),
        Some((given, "u16" | "u32" | "u64" | "usize")) => {
            format!("{given}; allowed is a whole number from 0 on")
        }
        Some((given, allowed)) => format!("{given}; allowed is {allowed}"),
        None => reason.to_owned(),
    }
}

/// The line of a byte, from 1 on.
pub(super) fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// Where the key at a place starts; for one that is not there, that of the section around it.
pub(super) fn offset(text: &str, place: &Place) -> usize {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut found = 0;
    let mut value = Value::Table(table.get_ref());
    for step in place.steps() {
        let next = match (value, step) {
            (Value::Table(table), Step::Key(key)) => table.get_key_value(key.as_ref()),
            (Value::Other(inner), Step::Key(key)) => {
                inner.as_table().and_then(|table| table.get_key_value(key.as_ref()))
            }
            (Value::Other(inner), Step::Index(index)) => {
                let Some(element) = inner.as_array().and_then(|list| list.get(*index)) else {
                    break;
                };
                found = element.span().start;
                value = Value::Other(element.get_ref());
                continue;
            }
            (Value::Table(_), Step::Index(_)) => None,
        };
        let Some((key, inner)) = next else { break };
        found = start(key.span(), inner);
        value = Value::Other(inner.get_ref());
    }
    found
}

#[derive(Clone, Copy)]
enum Value<'a, 'i> {
    Table(&'a DeTable<'i>),
    Other(&'a DeValue<'i>),
}

/// A key's own place.
fn start(key: Range<usize>, _value: &Spanned<DeValue<'_>>) -> usize {
    key.start
}
