//! Visits of browsers: the walk-through, access networks, every cell, and disagreements between
//! browser and packets.

use super::{Table, range};
use crate::format::{count, format_ms, format_ms_minus, format_signed_ms};
use crate::published::{WALK_THROUGH, WALK_THROUGH_RTT_MS, walk_through as published};
use crate::visits::{
    VisitPair, as_shipped, browser, name, networks, page, pairs, path, phases_ms, place, warned,
    who,
};
use crate::{Figures, Record, VisitCell, VisitEffect, VisitSummary};

/// The pairs for which the walk-through published figures: small page and image at its round-trip
/// time.
pub(crate) fn walkthrough_pairs(record: &Record) -> Vec<VisitPair<'_>> {
    let is_published = |pair: &VisitPair<'_>| {
        pair.on.rtt_ms.total_cmp(&WALK_THROUGH_RTT_MS).is_eq()
            && published(&pair.on.page).is_some()
            && pair.summaries().is_some()
    };
    let mut pairs: Vec<VisitPair<'_>> = pairs(record).into_iter().filter(is_published).collect();
    // Page by page, as the published figures are; small before image.
    pairs.sort_by(|a, b| b.on.page.cmp(&a.on.page));
    pairs
}

/// The walk-through's table beside its published figures.
pub(crate) fn walk_through(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "The walk-through, repeated with automated browsers",
        "Return visits at 112 ms round-trip time with 0-RTT off and on: medians in ms of TLS setup \
         and total in the browser, and what is saved with its 95 % interval.",
        &["page", "who", ">TLS off", ">TLS on", ">total off", ">total on", ">less", ">95 %"],
    );
    let pairs = walkthrough_pairs(record);
    let names = CellNames::of(record);
    let mut listed = "";
    for pair in &pairs {
        let Some((off, on)) = pair.summaries() else { continue };
        if listed != pair.on.page {
            listed = &pair.on.page;
            table.rows.extend(published_row(listed));
        }
        let mut row = vec![page(listed).to_owned(), names.who(pair.on)];
        row.extend([&off.tls, &on.tls].map(|tls| median(tls.as_ref())));
        row.extend([&off.total, &on.total].map(|total| format_ms(total.p50_ms)));
        row.push(pair.difference_ms().map_or("-".to_owned(), format_signed_ms));
        row.push(pair.interval().as_ref().map_or("-".to_owned(), range));
        table.rows.push(row);
    }
    let visits = pairs.iter().filter_map(VisitPair::summaries).flat_map(|(off, on)| [off, on]);
    table.notes.push(format!("{}; published: by hand, 2019.", visits_each(visits)?));
    table.notes.extend(early_data_share(&pairs));
    table.notes.extend(as_shipped(record).into_iter().map(str::to_owned));
    table.filled()
}

fn published_row(name: &str) -> Option<Vec<String>> {
    let theirs = published(name)?;
    let tls = theirs.tls.map(|tls| tls.map(format_ms));
    let [tls_off, tls_on] = tls.unwrap_or_else(|| ["-", "-"].map(str::to_owned));
    let [off, on] = theirs.total;
    Some(vec![
        page(name).to_owned(),
        "published (Firefox)".to_owned(),
        tls_off,
        tls_on,
        format_ms(off),
        format_ms(on),
        format_signed_ms(on - off),
        "-".to_owned(),
    ])
}

/// A sentence about visits with 0-RTT on that had no early data.
fn early_data_share<'a>(pairs: impl IntoIterator<Item = &'a VisitPair<'a>>) -> Option<String> {
    let listed =
        |pair: &VisitPair<'_>| Some(format!("{}, {}", place(pair.on), pair.early_data_share()?));
    let listed: Vec<String> = pairs.into_iter().filter_map(listed).collect();
    (!listed.is_empty()).then(|| format!("Not all visits with 0-RTT on: {}.", listed.join("; ")))
}

/// `30 visits each`, or `28 to 30 visits each`.
pub(crate) fn visits_each<'a>(summaries: impl Iterator<Item = &'a VisitSummary>) -> Option<String> {
    let visits: Vec<usize> = summaries.map(|summary| summary.visits).collect();
    let (least, most) = (visits.iter().min()?, visits.iter().max()?);
    Some(match least == most {
        true => format!("{} visits each", count(*least as f64)),
        false => format!("{} to {} visits each", count(*least as f64), count(*most as f64)),
    })
}

fn median(figures: Option<&Figures>) -> String {
    figures.map_or("-".to_owned(), |figures| format_ms_minus(figures.p50_ms))
}

/// Pairs of one server, HTTP version and page on several networks.
#[derive(Clone, Debug)]
pub(crate) struct NetworkSeries<'a> {
    /// Server, HTTP version and page in words.
    pub heading: String,
    /// Network by network in the record's order, in each browser by browser.
    pub pairs: Vec<VisitPair<'a>>,
}

/// The series of access networks in a record, those with the most networks first. The
/// walk-through's path does not count as one.
pub(crate) fn network_series(record: &Record) -> Vec<NetworkSeries<'_>> {
    let mut network_series: Vec<NetworkSeries<'_>> = Vec::new();
    for network in networks(record).into_iter().filter(|name| *name != WALK_THROUGH) {
        let here = |pair: &VisitPair<'_>| pair.on.profile == network && pair.medians().is_some();
        for pair in pairs(record).into_iter().filter(here) {
            let words = (&pair.on.server, &pair.on.http, page(&pair.on.page));
            let heading = format!("{}, HTTP/{}, {}", words.0, words.1, words.2);
            match network_series.iter_mut().find(|series| series.heading == heading) {
                Some(series) => series.pairs.push(pair),
                None => network_series.push(NetworkSeries { heading, pairs: vec![pair] }),
            }
        }
    }
    network_series.retain(|series| series.networks() >= MIN_NETWORKS);
    network_series.sort_by_key(|series| std::cmp::Reverse(series.networks()));
    network_series
}

impl NetworkSeries<'_> {
    /// How many networks it has.
    pub(crate) fn networks(&self) -> usize {
        let mut names: Vec<&str> = self.pairs.iter().map(|pair| &*pair.on.profile).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }
}

/// The savings of return visits, network by network.
pub(crate) fn returning(record: &Record) -> Option<Table> {
    let network_series = network_series(record);
    let mut table = Table::new(
        "What a returning visitor gains",
        "Return visits with 0-RTT off and on: median total in the browser in ms (the load event for a \
         page with subresources), what is saved with its 95 % interval, in percent and in round trips.",
        &["network", "browser", ">off", ">on", ">less", ">95 %", ">%", ">RT"],
    );
    let several = network_series.len() > 1;
    for series in &network_series {
        for pair in &series.pairs {
            let Some((off, on)) = pair.medians() else { continue };
            let who = browser(&pair.on.browser);
            table.rows.push(vec![
                path(pair.on),
                if several { format!("{who}, {}", series.heading) } else { who.to_owned() },
                format_ms(off),
                format_ms(on),
                pair.difference_ms().map_or("-".to_owned(), format_signed_ms),
                pair.interval().as_ref().map_or("-".to_owned(), range),
                pair.percent().map_or("-".to_owned(), percent),
                pair.round_trips().map_or("-".to_owned(), format_signed_ms),
            ]);
        }
    }
    let visits =
        network_series.iter().flat_map(|series| &series.pairs).filter_map(VisitPair::summaries);
    let visits = visits_each(visits.flat_map(|(off, on)| [off, on]));
    table.notes.extend(match (several, network_series.first(), visits) {
        (false, Some(series), Some(visits)) => Some(format!("{}; {visits}.", series.heading)),
        (_, _, visits) => visits.map(|visits| format!("{visits}.")),
    });
    table.notes.extend(early_data_share(network_series.iter().flat_map(|series| &series.pairs)));
    table.notes.extend(as_shipped(record).into_iter().map(str::to_owned));
    table.filled()
}

/// Whole percent with a typographic minus.
pub(crate) fn percent(value: f64) -> String {
    format!("{value:.0}").replace('-', "\u{2212}")
}

/// The phases of return visits.
pub(crate) fn visit_phases(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Where the time of a return visit goes",
        "Return visits with 0-RTT off and on, from the start of connecting to the last byte: medians \
         in ms of the phases as the browser reports them. Over HTTP/3 connecting is part of TLS. With \
         early data the request is under way during the handshake, so the handshake counts as waiting.",
        &["network", "who", "page", "visit", ">connecting", ">TLS", ">waiting", ">receiving"],
    );
    table.terminal_rows = Some(MAX_TERMINAL_ROWS);
    let names = CellNames::of(record);
    for pair in pairs(record) {
        for cell in [pair.off, pair.on] {
            let Some(phases) = phases_ms(record, cell) else { continue };
            let mut row = [&cell.profile, &names.who(cell), &cell.page, &cell.visit]
                .map(String::clone)
                .to_vec();
            row.extend(phases.map(plain_tenths));
            table.rows.push(row);
        }
    }
    table.notes.extend(as_shipped(record).into_iter().map(str::to_owned));
    table.filled()
}

/// Every cell: the browser's figures and those of the packets.
pub(crate) fn visit_cells(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "All visits",
        "First visits, and returns with 0-RTT off and on. Medians in ms, of the browser and after the slash of the packets: TLS setup, and \
         the total from the navigation's start or the first packet to the last byte (of a page's \
         subresources beside its load event). Round trips to the first byte of the response. Early: visits in which the server accepted early data.",
        &["network", "who", "page", "visit", ">early", ">TLS", ">total", ">RT", ">load", ">LCP"],
    );
    table.terminal_rows = Some(MAX_TERMINAL_ROWS);
    let names = CellNames::of(record);
    for cell in &record.visit_cells {
        let mut row =
            [&cell.profile, &names.who(cell), &cell.page, &cell.visit].map(String::clone).to_vec();
        row.extend(figures_of(cell));
        table.rows.push(row);
    }
    table.filled()
}

fn figures_of(cell: &VisitCell) -> [String; 6] {
    let Some(summary) = &cell.summary else {
        return ["none", "-", "-", "-", "-", "-"].map(str::to_owned);
    };
    let short = |figures: Option<&Figures>| {
        figures.map_or("-".to_owned(), |figures| plain_tenths(figures.p50_ms))
    };
    let beside = |browser: Option<&Figures>, wire: Option<&Figures>| match wire {
        Some(_) => format!("{}/{}", short(browser), short(wire)),
        None => short(browser),
    };
    let [page, all] = cell.last_bytes(summary);
    [
        format!("{}/{}", summary.early, summary.visits),
        beside(summary.tls.as_ref(), summary.wire_tls.as_ref()),
        beside(Some(&summary.total), page),
        summary.round_trips.map_or("?".to_owned(), |trips| trips.to_string()),
        beside(summary.load.as_ref(), all),
        short(summary.largest_paint.as_ref()),
    ]
}

/// Milliseconds with one decimal, none from a thousand on, and a typographic minus.
fn plain_tenths(ms: f64) -> String {
    if ms >= 1e3 {
        return format!("{ms:.0}");
    }
    format!("{ms:.1}").replace("-0.0", "0.0").replace('-', "\u{2212}")
}

/// Names of visit cells, without what is equal in all cells of a record.
struct CellNames {
    several_http: bool,
}

impl CellNames {
    fn of(record: &Record) -> Self {
        let first = record.visit_cells.first();
        let other = |cell: &VisitCell| first.is_some_and(|first| first.http != cell.http);
        Self { several_http: record.visit_cells.iter().any(other) }
    }

    fn who(&self, cell: &VisitCell) -> String {
        match self.several_http {
            true => who(cell),
            false => format!("{}, {}", browser(&cell.browser), cell.server),
        }
    }
}

/// The effects that no other table shows.
pub(crate) fn visit_effects(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "What a kind of visit saves",
        "Difference of medians of the total in the browser with its 95 % interval, in ms and in round \
         trips; of the load event where there are subresources.",
        &["what", "where", ">ms", ">95 %", ">RT", ">load ms"],
    );
    table.terminal_rows = Some(MAX_TERMINAL_EFFECTS);
    let network_series = network_series(record);
    let listed: Vec<usize> = (walkthrough_pairs(record).iter())
        .chain(network_series.iter().flat_map(|series| &series.pairs))
        .filter_map(|pair| pair.effect.map(|effect| effect.to))
        .collect();
    let names = CellNames::of(record);
    for effect in ordered(record) {
        let cell = &record.visit_cells[effect.to];
        if is_early(record, effect) && listed.contains(&effect.to) {
            continue;
        }
        let in_trips = |value: f64| match cell.rtt_ms >= 0.1 {
            true => format_signed_ms(value),
            false => String::new(),
        };
        table.rows.push(vec![
            effect.what.clone(),
            format!("{}, {}, {}", names.who(cell), cell.page, cell.profile),
            format_signed_ms(effect.total_ms.estimate),
            range(&effect.total_ms),
            in_trips(effect.total_rtt.estimate),
            effect.load_ms.map_or(String::new(), |load| format_signed_ms(load.estimate)),
        ]);
    }
    table.filled()
}

/// Whether the effect is that of 0-RTT on return visits.
fn is_early(record: &Record, effect: &VisitEffect) -> bool {
    let [from, to] = [effect.from, effect.to].map(|place| &*record.visit_cells[place].visit);
    (from, to) == ("off", "on")
}

/// The effects sorted by kind, those of 0-RTT first.
pub(crate) fn ordered(record: &Record) -> Vec<&VisitEffect> {
    let mut effects: Vec<&VisitEffect> = record.visit_effects.iter().collect();
    effects.sort_by_key(|effect| (!is_early(record, effect), effect.what.clone(), effect.to));
    effects
}

/// Where browser and packets disagree, a row for each cell that has such a visit.
pub(crate) fn disagreements(record: &Record) -> Option<Table> {
    let (warned, visits) = warned(record);
    let mut table = Table::new(
        "Where browser and packets disagree",
        &format!(
            "{} of {} visits have a warning; they stay in the figures. The table has the first warning of each \
             kind of visit.",
            count(warned as f64),
            count(visits as f64)
        ),
        &["visit", ">warnings", "such as"],
    );
    for (place, cell) in record.visit_cells.iter().enumerate() {
        let here = || record.visits.iter().filter(move |visit| visit.cell == place);
        let mut warned = here().filter(|visit| !visit.warnings.is_empty());
        let Some(first) = warned.next() else { continue };
        table.rows.push(vec![
            name(cell),
            format!("{} of {}", 1 + warned.count(), here().count()),
            first.warnings.join("; "),
        ]);
    }
    table.filled()
}

/// The browsers.
pub(crate) fn browsers(record: &Record) -> Option<Table> {
    let mut table = Table::new("Browsers", "", &["name", "version", "to know"]);
    for facts in &record.browsers {
        table.rows.push(vec![
            browser(&facts.name).to_owned(),
            facts.version.clone(),
            facts.notes.join(" "),
        ]);
    }
    table.filled()
}

const MAX_TERMINAL_ROWS: usize = 24;
const MAX_TERMINAL_EFFECTS: usize = 8;
// Series of fewer networks are not shown.
const MIN_NETWORKS: usize = 3;
