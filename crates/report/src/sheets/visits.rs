//! What browsers visited: the walk-through again, the access networks, every cell, and where
//! browser and packets disagree.

use super::{Sheet, range};
use crate::figure::{bare, count, plain, signed};
use crate::published::{WALK_THROUGH, WALK_THROUGH_RTT_MS, walk_through as published};
use crate::visits::{Pair, browser, name, networks, page, pairs, path, place, warned, who};
use crate::{Figures, Record, VisitCell, VisitEffect, VisitSummary};

/// The pairs that the walk-through has figures of: small page and image at its round-trip time.
pub(crate) fn walked(record: &Record) -> Vec<Pair<'_>> {
    let walked = |pair: &Pair<'_>| {
        pair.on.rtt_ms.total_cmp(&WALK_THROUGH_RTT_MS).is_eq()
            && published(&pair.on.page).is_some()
            && pair.summaries().is_some()
    };
    let mut pairs: Vec<Pair<'_>> = pairs(record).into_iter().filter(walked).collect();
    // Page by page, beside the published figures of it; small before image.
    pairs.sort_by(|a, b| b.on.page.cmp(&a.on.page));
    pairs
}

/// The walk-through's table beside its published figures.
pub(crate) fn walk_through(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "The walk-through again, by browsers without hands",
        "Return visits at 112 ms round-trip time with 0-RTT off and on: medians in ms of TLS set-up \
         and total as the browser has them, and what is saved with its 95 % interval.",
        &["page", "who", ">TLS off", ">TLS on", ">total off", ">total on", ">less", ">95 %"],
    );
    let pairs = walked(record);
    let words = Words::of(record);
    let mut told = "";
    for pair in &pairs {
        let Some((off, on)) = pair.summaries() else { continue };
        if told != pair.on.page {
            told = &pair.on.page;
            sheet.rows.extend(published_row(told));
        }
        let mut row = vec![page(told).to_owned(), words.who(pair.on)];
        row.extend([&off.tls, &on.tls].map(|tls| median(tls.as_ref())));
        row.extend([&off.total, &on.total].map(|total| bare(total.p50_ms)));
        row.push(pair.difference_ms().map_or("-".to_owned(), signed));
        row.push(pair.interval().as_ref().map_or("-".to_owned(), range));
        sheet.rows.push(row);
    }
    let visits = pairs.iter().filter_map(Pair::summaries).flat_map(|(off, on)| [off, on]);
    sheet.notes.push(format!("{}; published: by hand, 2019.", how_many(visits)?));
    sheet.notes.extend(not_all_early(&pairs));
    sheet.filled()
}

fn published_row(name: &str) -> Option<Vec<String>> {
    let theirs = published(name)?;
    let tls = theirs.tls.map(|tls| tls.map(bare));
    let [tls_off, tls_on] = tls.unwrap_or_else(|| ["-", "-"].map(str::to_owned));
    let [off, on] = theirs.total;
    Some(vec![
        page(name).to_owned(),
        "published (Firefox)".to_owned(),
        tls_off,
        tls_on,
        bare(off),
        bare(on),
        signed(on - off),
        "-".to_owned(),
    ])
}

/// Where visits with 0-RTT on had no early data, in a sentence.
fn not_all_early<'a>(pairs: impl IntoIterator<Item = &'a Pair<'a>>) -> Option<String> {
    let told = |pair: &Pair<'_>| Some(format!("{}, {}", place(pair.on), pair.not_all_early()?));
    let told: Vec<String> = pairs.into_iter().filter_map(told).collect();
    (!told.is_empty()).then(|| format!("Not all visits with 0-RTT on: {}.", told.join("; ")))
}

/// `30 visits each`, or `28 to 30 visits each`.
pub(crate) fn how_many<'a>(summaries: impl Iterator<Item = &'a VisitSummary>) -> Option<String> {
    let visits: Vec<usize> = summaries.map(|summary| summary.visits).collect();
    let (least, most) = (visits.iter().min()?, visits.iter().max()?);
    Some(match least == most {
        true => format!("{} visits each", count(*least as f64)),
        false => format!("{} to {} visits each", count(*least as f64), count(*most as f64)),
    })
}

fn median(figures: Option<&Figures>) -> String {
    figures.map_or("-".to_owned(), |figures| plain(figures.p50_ms))
}

/// Pairs of one server, HTTP version and page on several networks: a chart of access networks.
#[derive(Clone, Debug)]
pub(crate) struct Ladder<'a> {
    /// Server, HTTP version and page in words.
    pub heading: String,
    /// Network by network in the record's order, in each browser by browser.
    pub pairs: Vec<Pair<'a>>,
}

/// The charts of access networks that a record has, those with the most networks first. The
/// walk-through's path is none.
pub(crate) fn ladders(record: &Record) -> Vec<Ladder<'_>> {
    let mut ladders: Vec<Ladder<'_>> = Vec::new();
    for network in networks(record).into_iter().filter(|name| *name != WALK_THROUGH) {
        let here = |pair: &Pair<'_>| pair.on.profile == network && pair.medians().is_some();
        for pair in pairs(record).into_iter().filter(here) {
            let words = (&pair.on.server, &pair.on.http, page(&pair.on.page));
            let heading = format!("{}, HTTP/{}, {}", words.0, words.1, words.2);
            match ladders.iter_mut().find(|ladder| ladder.heading == heading) {
                Some(ladder) => ladder.pairs.push(pair),
                None => ladders.push(Ladder { heading, pairs: vec![pair] }),
            }
        }
    }
    ladders.retain(|ladder| ladder.networks() >= MIN_NETWORKS);
    ladders.sort_by_key(|ladder| std::cmp::Reverse(ladder.networks()));
    ladders
}

impl Ladder<'_> {
    /// How many networks it has.
    pub(crate) fn networks(&self) -> usize {
        let mut names: Vec<&str> = self.pairs.iter().map(|pair| &*pair.on.profile).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }
}

/// What a returning visitor gains, network by network.
pub(crate) fn returning(record: &Record) -> Option<Sheet> {
    let ladders = ladders(record);
    let mut sheet = Sheet::new(
        "What a returning visitor gains",
        "Return visits with 0-RTT off and on: median total in the browser in ms (the load event for a \
         page with subresources), what is saved with its 95 % interval, in percent and in round trips.",
        &["network", "browser", ">off", ">on", ">less", ">95 %", ">%", ">RT"],
    );
    let several = ladders.len() > 1;
    for ladder in &ladders {
        for pair in &ladder.pairs {
            let Some((off, on)) = pair.medians() else { continue };
            let who = browser(&pair.on.browser);
            sheet.rows.push(vec![
                path(pair.on),
                if several { format!("{who}, {}", ladder.heading) } else { who.to_owned() },
                bare(off),
                bare(on),
                pair.difference_ms().map_or("-".to_owned(), signed),
                pair.interval().as_ref().map_or("-".to_owned(), range),
                pair.percent().map_or("-".to_owned(), percent),
                pair.round_trips().map_or("-".to_owned(), signed),
            ]);
        }
    }
    let visits = ladders.iter().flat_map(|ladder| &ladder.pairs).filter_map(Pair::summaries);
    let visits = how_many(visits.flat_map(|(off, on)| [off, on]));
    sheet.notes.extend(match (several, ladders.first(), visits) {
        (false, Some(ladder), Some(visits)) => Some(format!("{}; {visits}.", ladder.heading)),
        (_, _, visits) => visits.map(|visits| format!("{visits}.")),
    });
    sheet.notes.extend(not_all_early(ladders.iter().flat_map(|ladder| &ladder.pairs)));
    sheet.filled()
}

/// Whole percent with a true minus.
pub(crate) fn percent(value: f64) -> String {
    format!("{value:.0}").replace('-', "\u{2212}")
}

/// Every cell: the browser's words beside the packets'.
pub(crate) fn visit_cells(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "All visits",
        "First visits, and returns with 0-RTT off and on. Medians in ms, as the browser has them and after the slash as the packets do: TLS set-up, and \
         the total from the navigation's start or the first packet to the last byte (of a page's \
         subresources beside its load event). Round trips to the first byte of the response. Early: visits in which the server accepted early data.",
        &["network", "who", "page", "visit", ">early", ">TLS", ">total", ">RT", ">load", ">LCP"],
    );
    sheet.glance = Some(GLANCE);
    let words = Words::of(record);
    for cell in &record.visit_cells {
        let mut row =
            [&cell.profile, &words.who(cell), &cell.page, &cell.visit].map(String::clone).to_vec();
        row.extend(figures_of(cell));
        sheet.rows.push(row);
    }
    sheet.filled()
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

/// Milliseconds with one decimal, none from a thousand on, and a true minus.
fn plain_tenths(ms: f64) -> String {
    if ms >= 1e3 {
        return format!("{ms:.0}");
    }
    format!("{ms:.1}").replace("-0.0", "0.0").replace('-', "\u{2212}")
}

/// Names without what is the same in all cells of a record.
struct Words {
    several_http: bool,
}

impl Words {
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

/// What one kind of visit saves against another, as far as no other table has it.
pub(crate) fn visit_effects(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "What a kind of visit saves",
        "Difference of medians of the total in the browser with its 95 % interval, in ms and in round \
         trips; of the load event where there are subresources.",
        &["what", "where", ">ms", ">95 %", ">RT", ">load ms"],
    );
    sheet.glance = Some(GLANCE_EFFECTS);
    let ladders = ladders(record);
    let told: Vec<usize> = (walked(record).iter())
        .chain(ladders.iter().flat_map(|ladder| &ladder.pairs))
        .filter_map(|pair| pair.effect.map(|effect| effect.to))
        .collect();
    let words = Words::of(record);
    for effect in ordered(record) {
        let cell = &record.visit_cells[effect.to];
        if is_early(record, effect) && told.contains(&effect.to) {
            continue;
        }
        let in_trips = |value: f64| match cell.rtt_ms >= 0.1 {
            true => signed(value),
            false => String::new(),
        };
        sheet.rows.push(vec![
            effect.what.clone(),
            format!("{}, {}, {}", words.who(cell), cell.page, cell.profile),
            signed(effect.total_ms.estimate),
            range(&effect.total_ms),
            in_trips(effect.total_rtt.estimate),
            effect.load_ms.map_or(String::new(), |load| signed(load.estimate)),
        ]);
    }
    sheet.filled()
}

/// Whether it is what 0-RTT saves a returning visitor.
fn is_early(record: &Record, effect: &VisitEffect) -> bool {
    let [from, to] = [effect.from, effect.to].map(|place| &*record.visit_cells[place].visit);
    (from, to) == ("off", "on")
}

/// What 0-RTT saves before all else, each in the order of the cells.
pub(crate) fn ordered(record: &Record) -> Vec<&VisitEffect> {
    let mut effects: Vec<&VisitEffect> = record.visit_effects.iter().collect();
    effects.sort_by_key(|effect| (!is_early(record, effect), effect.what.clone(), effect.to));
    effects
}

/// Where browser and packets disagree, a row for each cell that has such a visit.
pub(crate) fn disagreements(record: &Record) -> Option<Sheet> {
    let (warned, visits) = warned(record);
    let mut sheet = Sheet::new(
        "Where browser and packets disagree",
        &format!(
            "{} of {} visits have a warning; they stay in the figures. For each kind of visit the first \
             that was warned of.",
            count(warned as f64),
            count(visits as f64)
        ),
        &["visit", ">warned", "such as"],
    );
    for (place, cell) in record.visit_cells.iter().enumerate() {
        let here = || record.visits.iter().filter(move |visit| visit.cell == place);
        let mut warned = here().filter(|visit| !visit.warnings.is_empty());
        let Some(first) = warned.next() else { continue };
        sheet.rows.push(vec![
            name(cell),
            format!("{} of {}", 1 + warned.count(), here().count()),
            first.warnings.join("; "),
        ]);
    }
    sheet.filled()
}

/// The browsers.
pub(crate) fn browsers(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new("Browsers", "", &["name", "version", "to know"]);
    for facts in &record.browsers {
        sheet.rows.push(vec![
            browser(&facts.name).to_owned(),
            facts.version.clone(),
            facts.notes.join(" "),
        ]);
    }
    sheet.filled()
}

const GLANCE: usize = 24;
const GLANCE_EFFECTS: usize = 8;
// Fewer are no ladder from fibre to satellite.
const MIN_NETWORKS: usize = 3;
