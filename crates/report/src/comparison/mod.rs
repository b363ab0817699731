//! Compares two records: which cells became slower or faster, beyond chance.

mod render;

use crate::axes::{cell_name, same_except};
use crate::statistics::{allowed_by_chance, difference_of_medians};
use crate::{Figures, Interval, ProfileFacts, Record, visits};

/// The changes of the cells that two records share.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// When and with what the old record was measured.
    pub old: String,
    /// When and with what the new record was measured.
    pub new: String,
    /// The cells in both records, in the order of the new record.
    pub changes: Vec<Change>,
    /// How many of them may differ at 95 % by chance, in 39 of 40 comparisons.
    pub allowed: usize,
    /// Names of cells only in the old record.
    pub only_old: Vec<String>,
    /// Names of cells only in the new record.
    pub only_new: Vec<String>,
    /// What makes the records hard to compare, a sentence each.
    pub cautions: Vec<String>,
}

/// A cell in both records. Times are milliseconds to the first byte; for visits of browsers, the
/// total in the browser.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The index of the cell in the new record's cells or visit cells.
    pub cell: usize,
    /// Whether it is a cell of browser visits.
    pub visits: bool,
    /// Its name in the new record.
    pub name: String,
    /// Medians, old and new.
    pub p50_ms: (f64, f64),
    /// New minus old with a 95 % bootstrap interval; `None` if either has fewer than 6 good
    /// samples.
    pub difference_ms: Option<Interval>,
    /// 95th percentiles, old and new; `None` unless both have one.
    pub p95_ms: Option<(f64, f64)>,
    /// Bounds of their difference from both intervals; wider than a 95 % interval.
    pub p95_difference_ms: Option<Interval>,
    /// Round trips, old and new.
    pub round_trips: (Option<u32>, Option<u32>),
}

impl Change {
    /// Whether 0 is outside the interval of the median's difference.
    pub fn differs(&self) -> bool {
        self.difference_ms.is_some_and(|interval| interval.low > 0.0 || interval.high < 0.0)
    }

    /// New minus old in percent of the old median.
    pub fn percent(&self) -> f64 {
        100.0 * (self.p50_ms.1 - self.p50_ms.0) / self.p50_ms.0.abs().max(f64::MIN_POSITIVE)
    }
}

impl Comparison {
    /// The number of cells that differ.
    pub fn differing(&self) -> usize {
        self.changes.iter().filter(|change| change.differs()).count()
    }
}

/// Compares two records cell by cell, from their raw samples, without the second arms of A/A
/// controls.
pub fn compare(old: &Record, new: &Record) -> Comparison {
    let (old_times, new_times) = (times(old), times(new));
    let mut comparison = Comparison {
        old: describe_run(old),
        new: describe_run(new),
        cautions: cautions(old, new),
        ..Comparison::default()
    };
    let mut matched = vec![false; old.cells.len()];
    for (place, cell) in new.cells.iter().enumerate().filter(|(_, cell)| !cell.control) {
        let mut candidates = old.cells.iter().enumerate().filter(|(_, cell)| !cell.control);
        let before = candidates.find(|(_, other)| same_except(other, cell, &[]));
        let name = cell_name(new, cell);
        let Some((old_place, before)) = before else {
            comparison.only_new.push(name);
            continue;
        };
        matched[old_place] = true;
        let (Some(was), Some(is)) = (&before.summary, &cell.summary) else {
            comparison.cautions.push(format!("{name}: no good sample in one of the records."));
            continue;
        };
        let times = (&*old_times[old_place], &*new_times[place]);
        comparison.changes.push(Change {
            cell: place,
            name,
            round_trips: (was.round_trips, is.round_trips),
            ..change((&was.first_byte, &is.first_byte), times)
        });
    }
    comparison.only_old = (old.cells.iter().zip(matched))
        .filter(|(cell, matched)| !matched && !cell.control)
        .map(|(cell, _)| cell_name(old, cell))
        .collect();
    compare_visits(old, new, &mut comparison);
    comparison.allowed = allowed_by_chance(comparison.changes.len());
    comparison
}

/// The change of a cell by its figures and its raw times.
fn change((was, is): (&Figures, &Figures), (old, new): (&[f64], &[f64])) -> Change {
    let bounds = |a: (f64, f64), b: (f64, f64), estimate| Interval {
        low: b.0 - a.1,
        estimate,
        high: b.1 - a.0,
    };
    let p95_ms = was.p95_ms.zip(is.p95_ms);
    let intervals = was.p95_interval_ms.zip(is.p95_interval_ms);
    Change {
        p50_ms: (was.p50_ms, is.p50_ms),
        difference_ms: difference_of_medians(old, new),
        p95_ms,
        p95_difference_ms: p95_ms.zip(intervals).map(|((was, is), (a, b))| bounds(a, b, is - was)),
        ..Change::default()
    }
}

/// The good first-byte times of each cell.
fn times(record: &Record) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); record.cells.len()];
    for sample in record.samples.iter().filter(|sample| sample.fault.is_none()) {
        times[sample.cell].extend(sample.time_ms.filter(|time| time.is_finite()));
    }
    times
}

fn describe_run(record: &Record) -> String {
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
            cautions.push(format!("The {what} differs: {old} before, {new} now."));
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
            None => "unknown".to_owned(),
        }
    };
    differs("processors' rest", awake(old), awake(new));
    for profile in &new.profiles {
        // A record may have two profiles of the same name, for cells and for visits.
        let mut before =
            old.profiles.iter().filter(|other| other.name == profile.name).map(network);
        let now = network(profile);
        if let Some(first) = before.clone().next()
            && before.all(|before| before != now)
        {
            differs(&format!("network {}", profile.name), first, now);
        }
    }
    for server in &new.servers {
        if let Some(before) = old.servers.iter().find(|other| other.name == server.name) {
            let what = format!("version of {}", server.name);
            differs(&what, before.version.clone(), server.version.clone());
        }
    }
    for browser in &new.browsers {
        let before = old.browsers.iter().find(|other| other.name == browser.name);
        let before = before.map_or(&browser.version, |before| &before.version);
        differs("browser", before.clone(), browser.version.clone());
    }
    cautions
}

/// Describes a network without its round-trip time, which is equal in matched cells.
fn network(profile: &ProfileFacts) -> String {
    let rate = |mbps: Option<f64>, way| mbps.map(|mbps| format!("{mbps} Mbit/s {way}"));
    let more = Some(profile.more.clone()).filter(|more| !more.is_empty());
    let facts = [rate(profile.down_mbps, "down"), rate(profile.up_mbps, "up"), more];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    if facts.is_empty() { "delay alone".to_owned() } else { facts.join(", ") }
}

/// Compares the visits of browsers by their totals.
pub(super) fn compare_visits(old: &Record, new: &Record, comparison: &mut Comparison) {
    let (old_times, new_times) = (totals(old), totals(new));
    let mut matched = vec![false; old.visit_cells.len()];
    for (place, cell) in new.visit_cells.iter().enumerate() {
        let mut others = old.visit_cells.iter();
        let name = visits::name(cell);
        let Some(before) = others.position(|c| c.visit == cell.visit && c.same_except_visit(cell))
        else {
            comparison.only_new.push(name);
            continue;
        };
        matched[before] = true;
        let (Some(was), Some(is)) = (&old.visit_cells[before].summary, &cell.summary) else {
            comparison.cautions.push(format!("{name}: no good visit in one of the records."));
            continue;
        };
        comparison.changes.push(Change {
            cell: place,
            visits: true,
            name,
            round_trips: (was.round_trips, is.round_trips),
            ..change((&was.total, &is.total), (&old_times[before], &new_times[place]))
        });
    }
    let unmatched = old.visit_cells.iter().zip(matched).filter(|(_, matched)| !matched);
    comparison.only_old.extend(unmatched.map(|(cell, _)| visits::name(cell)));
}

/// The good totals of each visit cell, as the browser measured them.
fn totals(record: &Record) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); record.visit_cells.len()];
    for visit in record.visits.iter().filter(|visit| visit.fault.is_none()) {
        let page = &record.visit_cells[visit.cell].page;
        let total = visit.browser.as_ref().map(|browser| browser.total_ms(page));
        times[visit.cell].extend(total.filter(|time| time.is_finite()));
    }
    times
}
