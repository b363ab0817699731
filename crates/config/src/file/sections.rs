//! The sections of a file, each read by its type, so that one that is wrong hides no other.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error, ValueDeserializer};

use super::Document;

/// Reads what it can; the rest has defaults, and an error.
pub(super) fn read(table: DeTable<'_>) -> (Document, Vec<Error>) {
    let mut reading = Reading { table, errors: Vec::new() };
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

struct Reading<'i> {
    table: DeTable<'i>,
    errors: Vec<Error>,
}

impl<'i> Reading<'i> {
    /// A section, if it is there and good.
    fn section<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let section = self.table.remove(name)?;
        self.value(section)
    }

    /// The elements of a list that are good: `[[name]]`.
    fn list<T: DeserializeOwned>(&mut self, name: &str) -> Vec<T> {
        match self.table.remove(name).map(|list| (list.span(), list.into_inner())) {
            None => Vec::new(),
            Some((_, DeValue::Array(list))) => {
                list.into_iter().filter_map(|element| self.value(element)).collect()
            }
            // The error of a list that is none.
            Some((at, other)) => self.value(Spanned::new(at, other)).unwrap_or_default(),
        }
    }

    /// The sections with names of their own that are good: `[kind.name]`.
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
