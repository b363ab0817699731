//! Two records beside each other: which cells became slower or faster, beyond chance.

use std::fmt::Write;

use firstflight_statistics::{allowed_by_chance, difference_of_medians};
use maud::html;

use crate::axes::{name, same_but_for};
use crate::drawing::Strip;
use crate::figure::{bare, signed};
use crate::html::{Section, page, table};
use crate::sheets::{Sheet, range};
use crate::{Interval, Record, Verdict, markdown, tables};

/// What became of the cells that two records share.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// When and with what the first was measured.
    pub old: String,
    /// The second.
    pub new: String,
    /// The cells that both have, in the order of the new record.
    pub changes: Vec<Change>,
    /// How many of them may seem to differ by chance at 95 %, all but 1 in 40 times.
    pub allowed: usize,
    /// Cells that the old record alone has, by name.
    pub only_old: Vec<String>,
    /// Cells that the new record alone has.
    pub only_new: Vec<String>,
    /// What makes the two hard to compare, a sentence each.
    pub cautions: Vec<String>,
}

/// A cell in both records. Times are milliseconds to the first byte.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The cell, by its place in the new record.
    pub cell: usize,
    /// Its name there.
    pub name: String,
    /// Medians, old and new.
    pub p50_ms: (f64, f64),
    /// New less old, with its 95 % interval by the bootstrap; `None` with fewer than 6 good samples
    /// on a side.
    pub difference_ms: Option<Interval>,
    /// 95th percentiles, old and new, where both have one.
    pub p95_ms: Option<(f64, f64)>,
    /// Bounds on their difference, from both intervals: wider than 95 % would need.
    pub p95_difference_ms: Option<Interval>,
    /// Round trips, old and new.
    pub round_trips: (Option<u32>, Option<u32>),
}

impl Change {
    /// Whether 0 lies outside the median's interval.
    pub fn differs(&self) -> bool {
        self.difference_ms.is_some_and(|interval| interval.low > 0.0 || interval.high < 0.0)
    }

    /// New less old in percent of the old median.
    pub fn percent(&self) -> f64 {
        100.0 * (self.p50_ms.1 - self.p50_ms.0) / self.p50_ms.0.abs().max(f64::MIN_POSITIVE)
    }
}

impl Comparison {
    /// How many cells seem to differ.
    pub fn differing(&self) -> usize {
        self.changes.iter().filter(|change| change.differs()).count()
    }

    /// For a terminal, at most 100 columns wide, with verdicts on the changes.
    pub fn text(&self, verdicts: &[Verdict]) -> String {
        let mut text = format!("old: {}\nnew: {}\n\n", self.old, self.new);
        let _ = writeln!(text, "{}\n", tables::block(&self.sheet()));
        for line in self.notes() {
            let _ = writeln!(text, "{}", tables::wrap(&line));
        }
        text.push_str(&tables::verdicts(verdicts));
        text
    }

    /// For a pull request or a job's summary.
    pub fn markdown(&self, verdicts: &[Verdict]) -> String {
        let mut sheet = self.sheet();
        sheet.notes = self.notes();
        sheet.lead = format!("Old: {}. New: {}. {}", self.old, self.new, sheet.lead);
        format!("{}{}", markdown::section(&sheet), markdown::verdicts(verdicts))
    }

    /// One self-contained HTML file.
    pub fn html(&self, verdicts: &[Verdict]) -> String {
        let intervals = self.changes.iter().filter_map(|change| change.difference_ms.as_ref());
        let strips = Strip::of(intervals, f64::MAX);
        let sheet = self.sheet();
        let header = html! {
            header {
                p.kicker { "firstflight \u{b7} two runs beside each other" }
                h1 { (self.sentence()) }
                p { "Old: " (self.old) }
                p { "New: " (self.new) }
                ul.facts {
                    @for verdict in verdicts {
                        li.good[verdict.passed()].bad[!verdict.passed()] { (verdict.name) }
                    }
                }
            }
        };
        let changes = html! {
            p { (sheet.lead) }
            div.scroll.tall tabindex="0" role="region" aria-label=(sheet.title) {
                table {
                    caption.hidden { (sheet.title) }
                    thead { tr {
                        @for head in &sheet.head { th scope="col" .n[head.right] { (head.text) } }
                        th scope="col" { "interval" }
                    } }
                    tbody { @for (change, row) in self.changes.iter().zip(&sheet.rows) { tr {
                        @for (place, field) in row.iter().enumerate() {
                            @if place == 0 { th scope="row" { (field) } }
                            @else { td.n { (field) } }
                        }
                        td { @if let Some(interval) = &change.difference_ms {
                            @let class = match (change.differs(), interval.estimate < 0.0) {
                                (false, _) => "k-other",
                                (true, true) => "k-saves",
                                (true, false) => "k-costs",
                            };
                            (strips.draw(interval, class))
                        } }
                    } } }
                }
            }
            @for note in self.notes() { p.note { (note) } }
        };
        let mut sections =
            vec![Section { id: "changes", title: sheet.title, short: "Changes", body: changes }];
        if !verdicts.is_empty() {
            let body = table(&verdict_sheet(verdicts));
            let title = "Conditions".to_owned();
            sections.push(Section { id: "conditions", title, short: "Conditions", body });
        }
        page(&self.sentence(), &header, &sections).into_string()
    }

    /// The outcome in a sentence.
    pub fn sentence(&self) -> String {
        let slower = |change: &&Change| change.differs() && change.p50_ms.1 > change.p50_ms.0;
        let slower = self.changes.iter().filter(slower).count();
        let faster = self.differing() - slower;
        let chance = match self.differing() <= self.allowed {
            true => "no more than chance makes",
            false => "more than chance makes",
        };
        format!(
            "Of {} cells {slower} became slower and {faster} faster, {chance}.",
            self.changes.len()
        )
    }

    fn sheet(&self) -> Sheet {
        let lead = format!(
            "Medians to the first byte in ms and their difference with its 95 % interval. {} of {} \
             seem to differ; by chance {} may.",
            self.differing(),
            self.changes.len(),
            self.allowed
        );
        let head =
            ["cell", ">old", ">new", ">ms", ">95 %", ">%", ">p95 old", ">p95 new", ">p95 within"];
        let mut sheet = Sheet::new("What changed", &lead, &head);
        for change in &self.changes {
            let p95 = |pick: fn((f64, f64)) -> f64| {
                change.p95_ms.map_or("-".to_owned(), |p95| bare(pick(p95)))
            };
            let within =
                |interval: &Option<Interval>| interval.as_ref().map_or("-".to_owned(), range);
            sheet.rows.push(vec![
                change.name.clone(),
                bare(change.p50_ms.0),
                bare(change.p50_ms.1),
                signed(change.p50_ms.1 - change.p50_ms.0),
                within(&change.difference_ms),
                signed(change.percent()),
                p95(|p95| p95.0),
                p95(|p95| p95.1),
                within(&change.p95_difference_ms),
            ]);
        }
        sheet
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.cautions.clone();
        for (whose, cells) in [("old", &self.only_old), ("new", &self.only_new)] {
            if !cells.is_empty() {
                let shown = cells[..cells.len().min(MOST_NAMES)].join("; ");
                let rest = cells.len().saturating_sub(MOST_NAMES);
                let rest = if rest > 0 { format!("; and {rest} more") } else { String::new() };
                notes.push(format!("Only in the {whose} record: {shown}{rest}."));
            }
        }
        for change in self.changes.iter().filter(|c| c.round_trips.0 != c.round_trips.1) {
            let say = |trips: Option<u32>| trips.map_or("?".to_owned(), |trips| trips.to_string());
            let (old, new) = (say(change.round_trips.0), say(change.round_trips.1));
            notes.push(format!("{}: {old} round trips became {new}.", change.name));
        }
        notes
    }
}

/// Compares two records, cell by cell, from their raw samples. Second arms of A/A controls are left
/// out.
pub fn compare(old: &Record, new: &Record) -> Comparison {
    let (old_times, new_times) = (times(old), times(new));
    let mut comparison = Comparison {
        old: run(old),
        new: run(new),
        cautions: cautions(old, new),
        ..Comparison::default()
    };
    let mut matched = vec![false; old.cells.len()];
    for (place, cell) in new.cells.iter().enumerate().filter(|(_, cell)| !cell.control) {
        let mut candidates = old.cells.iter().enumerate().filter(|(_, cell)| !cell.control);
        let before = candidates.find(|(_, other)| same_but_for(other, cell, &[]));
        let name = name(new, cell);
        let Some((old_place, before)) = before else {
            comparison.only_new.push(name);
            continue;
        };
        matched[old_place] = true;
        let (Some(was), Some(is)) = (&before.summary, &cell.summary) else {
            comparison.cautions.push(format!("{name}: no good sample in one of the records."));
            continue;
        };
        let (was_first, is_first) = (&was.first_byte, &is.first_byte);
        let bounds = |a: (f64, f64), b: (f64, f64), estimate| Interval {
            low: b.0 - a.1,
            estimate,
            high: b.1 - a.0,
        };
        let p95_ms = was_first.p95_ms.zip(is_first.p95_ms);
        let intervals = was_first.p95_interval_ms.zip(is_first.p95_interval_ms);
        comparison.changes.push(Change {
            cell: place,
            name,
            p50_ms: (was_first.p50_ms, is_first.p50_ms),
            difference_ms: difference_of_medians(&old_times[old_place], &new_times[place]).map(
                |interval| Interval {
                    low: interval.low,
                    estimate: interval.estimate,
                    high: interval.high,
                },
            ),
            p95_ms,
            p95_difference_ms: p95_ms
                .zip(intervals)
                .map(|((was, is), (a, b))| bounds(a, b, is - was)),
            round_trips: (was.round_trips, is.round_trips),
        });
    }
    comparison.only_old = (old.cells.iter().zip(matched))
        .filter(|(cell, matched)| !matched && !cell.control)
        .map(|(cell, _)| name(old, cell))
        .collect();
    comparison.allowed = allowed_by_chance(comparison.changes.len());
    comparison
}

/// Good first-byte times of each cell.
fn times(record: &Record) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); record.cells.len()];
    for sample in record.samples.iter().filter(|sample| sample.fault.is_none()) {
        times[sample.cell].extend(sample.time_ms.filter(|time| time.is_finite()));
    }
    times
}

fn run(record: &Record) -> String {
    let servers: Vec<&str> = record.servers.iter().map(|server| server.version.as_str()).collect();
    format!(
        "{} by firstflight {}; {}; seed {}",
        record.date,
        record.version,
        servers.join(", "),
        record.seed
    )
}

fn cautions(old: &Record, new: &Record) -> Vec<String> {
    let mut cautions = Vec::new();
    let mut differs = |what: &str, old: String, new: String| {
        if old != new {
            cautions.push(format!("The {what} is another: {old} then, {new} now."));
        }
    };
    differs("processor", old.machine.processor.clone(), new.machine.processor.clone());
    let processors = |record: &Record| record.machine.processors.to_string();
    differs("number of processors", processors(old), processors(new));
    differs("kernel", old.machine.kernel.clone(), new.machine.kernel.clone());
    let witness = |record: &Record| match record.witness {
        crate::Witness::Packets => "packets".to_owned(),
        crate::Witness::Kernel => "the kernel".to_owned(),
    };
    differs("witness", witness(old), witness(new));
    let awake = |record: &Record| {
        let awake = record.link.as_ref().map(|link| link.keep_awake);
        match awake {
            Some(true) => "kept awake".to_owned(),
            Some(false) => "free to sleep".to_owned(),
            None => "not ours".to_owned(),
        }
    };
    differs("processors' rest", awake(old), awake(new));
    cautions
}

fn verdict_sheet(verdicts: &[Verdict]) -> Sheet {
    let mut sheet =
        Sheet::new("Conditions", "", &["what should hold", "holds", "checked", "where not"]);
    for verdict in verdicts {
        let holds = match (&verdict.undecided, verdict.passed()) {
            (Some(_), _) => "undecided",
            (None, true) => "yes",
            (None, false) => "no",
        };
        let why = verdict.undecided.iter().chain(&verdict.findings);
        let why: Vec<&str> = why.map(String::as_str).collect();
        sheet.rows.push(vec![
            verdict.name.clone(),
            holds.to_owned(),
            verdict.checked.to_string(),
            why.join("; "),
        ]);
    }
    sheet
}

const MOST_NAMES: usize = 6;
