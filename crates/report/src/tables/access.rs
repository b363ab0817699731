//! Access networks in the order of their latency, compared with the published order.

use super::Table;
use super::comparisons::in_experiment;
use crate::axes::path;
use crate::format::{both_ways, format_ms, format_signed_ms};
use crate::published::{ACCESS_ORDER, access_place};
use crate::{Cell, ProfileFacts, Record};

/// What was measured on one access network.
pub(crate) struct AccessNetwork<'a> {
    pub cell: &'a Cell,
    /// Medians of the first byte: full, resumed, 0-RTT.
    pub first_byte: [Option<f64>; 3],
}

impl AccessNetwork<'_> {
    /// The time by which networks are ordered: the first byte with a full handshake.
    pub(crate) fn full_ms(&self) -> f64 {
        self.first_byte[0].unwrap_or(f64::INFINITY)
    }
}

/// The networks of the experiment `access`, the fastest first.
pub(crate) fn access_networks(record: &Record) -> Vec<AccessNetwork<'_>> {
    let mut networks: Vec<AccessNetwork<'_>> = Vec::new();
    let cells: Vec<&Cell> = in_experiment(record, "access").collect();
    for cell in &cells {
        if networks.iter().any(|network| network.cell.profile == cell.profile) {
            continue;
        }
        let first_byte = ["full", "resumed", "0-RTT"].map(|kind| {
            let same = |other: &&&Cell| other.profile == cell.profile && other.kind == kind;
            Some(cells.iter().find(same)?.summary.as_ref()?.first_byte.p50_ms)
        });
        networks.push(AccessNetwork { cell, first_byte });
    }
    networks.retain(|network| network.first_byte[0].is_some());
    networks.sort_by(|a, b| a.full_ms().total_cmp(&b.full_ms()));
    networks
}

/// The table of access networks.
pub(crate) fn access(record: &Record) -> Option<Table> {
    let networks = access_networks(record);
    let mut table = Table::new(
        "Access networks, from the fastest to the slowest",
        "Medians in ms to the first byte of 1 KiB over TLS 1.3 and TCP, what 0-RTT saves, and bytes \
         to the server / to the client until then. Published: the place in the walk-through's \
         ranking of 2019, which has no 5G and one satellite.",
        &["network", ">published", ">full", ">resumed", ">0-RTT", ">less", ">full B", ">0-RTT B"],
    );
    for network in &networks {
        let ms = |place: usize| network.first_byte[place].map_or("-".to_owned(), format_ms);
        let saved = network.first_byte[2].map(|early| format_signed_ms(early - network.full_ms()));
        let bytes = |kind: &str| {
            let same = |cell: &&Cell| cell.profile == network.cell.profile && cell.kind == kind;
            let summary = in_experiment(record, "access").find(same)?.summary.as_ref()?;
            summary.first_byte_bytes.map(both_ways)
        };
        let place = access_place(&network.cell.profile);
        table.rows.push(vec![
            path(network.cell),
            place.map_or("-".to_owned(), |place| (place + 1).to_string()),
            ms(0),
            ms(1),
            ms(2),
            saved.unwrap_or_else(|| "-".to_owned()),
            bytes("full").unwrap_or_else(|| "-".to_owned()),
            bytes("0-RTT").unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.notes = order_notes(record, &networks);
    table.filled()
}

/// A sentence for each pair of neighbours in the published ranking that were measured the other way
/// round.
pub(crate) fn order_notes(record: &Record, networks: &[AccessNetwork<'_>]) -> Vec<String> {
    let measured = |name: &str| networks.iter().find(|network| network.cell.profile == name);
    let neighbours = ACCESS_ORDER.windows(2).filter_map(|pair| {
        let (before, after) = (measured(pair[0])?, measured(pair[1])?);
        (after.full_ms() < before.full_ms()).then(|| order_note(record, before, after))
    });
    neighbours.collect()
}

/// Explains why a network was faster than one that ranks as faster in the published order.
fn order_note(record: &Record, before: &AccessNetwork<'_>, after: &AccessNetwork<'_>) -> String {
    let facts = |network: &AccessNetwork<'_>| record.profile(&network.cell.profile);
    let what = |network: &AccessNetwork<'_>| {
        let rates = facts(network).and_then(rates).unwrap_or_default();
        format!("{} ms{rates}", network.cell.rtt_ms)
    };
    format!(
        "Measured the other way round: {} ({}) before {} ({}). The ranking was of kinds of networks; \
         these profiles have figures.",
        after.cell.profile,
        what(after),
        before.cell.profile,
        what(before),
    )
}

fn rates(facts: &ProfileFacts) -> Option<String> {
    Some(format!(", {}/{} Mbit/s", facts.down_mbps?, facts.up_mbps?))
}
