//! Ours beside published figures, and cells beside each other.

use super::Sheet;
use crate::axes::{kind, names};
use crate::figure::{bare, signed};
use crate::published;
use crate::{Cell, Effect, Interval, Record, Summary};

/// The ping-pong matrix beside the published one, mean beside mean.
pub(crate) fn ping_pong(record: &Record) -> Option<Sheet> {
    const COLUMNS: [(&str, bool); 4] =
        [("full", false), ("full", true), ("resumed", false), ("resumed", true)];
    let mut sheet = Sheet::new(
        "The ping-pong matrix beside the published one",
        "Means in ms, ours / published (C++, OpenSSL 1.1.1), and our round trips. There is no \
         published 0-RTT.",
        &["RTT", "TLS", ">full", ">full + TFO", ">resumed", ">resumed + TFO"],
    );
    for group in super::groups(record) {
        if group.first().workload != "ping-pong" {
            continue;
        }
        for row in super::rows(&group) {
            let fields = COLUMNS.map(|(kind, tfo)| {
                let theirs = published::ping_pong(row.rtt_ms, &row.version, kind, tfo)?;
                let column = super::matrix::Column { kind: kind.to_owned(), tfo, token: false };
                let (_, cell) = group.at(&row, &column)?;
                let ours = cell.summary.as_ref()?;
                let trips = ours.round_trips.map_or("?".to_owned(), |trips| trips.to_string());
                Some(format!("{} / {} ({trips})", bare(ours.first_byte.mean_ms), bare(theirs)))
            });
            if fields.iter().any(Option::is_some) {
                let mut line = vec![row.rtt_ms.to_string(), row.version.clone()];
                line.extend(fields.map(Option::unwrap_or_default));
                sheet.rows.push(line);
            }
        }
    }
    sheet.filled()
}

/// curl's bars beside ours.
pub(crate) fn curl(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "TLS set-up, first byte and total beside curl's",
        "Medians in ms of a 10 KiB page, ours / published (curl 8.12, read off its bars), and our \
         round trips to the first byte and to the last. Of address tokens nothing is published.",
        &["network", "server", "HTTP", "kind", ">TLS set-up", ">first byte", ">total", ">RT"],
    );
    for cell in in_experiment(record, "curl") {
        let Some(summary) = &cell.summary else { continue };
        let published = published::curl(cell.rtt_ms, &cell.http, &cell.kind);
        let ours = times(summary);
        let fields = (0..3).map(|place| match (ours[place], published) {
            (Some(ours), Some(theirs)) => format!("{} / {}", bare(ours), bare(theirs[place])),
            (Some(ours), None) => bare(ours),
            (None, _) => "-".to_owned(),
        });
        let mut row =
            vec![cell.profile.clone(), cell.server.clone(), cell.http.clone(), kind(cell)];
        row.extend(fields);
        let trips = [summary.round_trips, summary.total_round_trips];
        row.push(trips.map(|trips| trips.map_or("?".to_owned(), |n| n.to_string())).join(", "));
        sheet.rows.push(row);
    }
    sheet.filled()
}

/// Medians of set-up, first byte and total.
pub(crate) fn times(summary: &Summary) -> [Option<f64>; 3] {
    [
        summary.setup.as_ref().map(|figures| figures.p50_ms),
        Some(summary.first_byte.p50_ms),
        summary.total.as_ref().map(|figures| figures.p50_ms),
    ]
}

/// The blueprint's percentiles beside ours.
pub(crate) fn blueprint(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "The blueprint's percentiles beside ours",
        "ms to the first byte on a LAN, ours / published (the blueprint says neither network nor \
         what it asked for).",
        &["server", "kind", ">samples", ">min", ">p50", ">p95", ">p99", ">max"],
    );
    for cell in in_experiment(record, "blueprint") {
        let Some(summary) = &cell.summary else { continue };
        let theirs = published::blueprint(&cell.kind);
        let beside = |ours: Option<f64>, place: usize| match (ours, theirs) {
            (Some(ours), Some(theirs)) => format!("{} / {}", bare(ours), bare(theirs[place])),
            (Some(ours), None) => bare(ours),
            (None, _) => "-".to_owned(),
        };
        let figures = &summary.first_byte;
        sheet.rows.push(vec![
            cell.server.clone(),
            cell.kind.clone(),
            summary.samples.to_string(),
            beside(Some(figures.min_ms), 0),
            beside(Some(figures.p50_ms), 1),
            beside(figures.p95_ms, 2),
            figures.p99_ms.map_or("-".to_owned(), bare),
            beside(Some(figures.max_ms), 3),
        ]);
    }
    sheet.filled()
}

/// What one kind saves against another.
pub(crate) fn effects(record: &Record) -> Option<Sheet> {
    let names = names(record);
    let mut sheet = Sheet::new(
        "What is saved",
        "Difference of medians to the first byte with its 95 % interval, in ms and in round trips.",
        &["what", "where", ">ms", ">95 %", ">round trips"],
    );
    sheet.glance = Some(GLANCE);
    for effect in ordered_effects(record) {
        sheet.rows.push(vec![
            effect.what.clone(),
            names[effect.to].clone(),
            signed(effect.difference_ms.estimate),
            range(&effect.difference_ms),
            in_round_trips(record, effect),
        ]);
    }
    sheet.filled()
}

/// What an effect is in round trips, where that says something.
pub(crate) fn in_round_trips(record: &Record, effect: &Effect) -> String {
    match record.cells[effect.to].counts_in_round_trips() {
        true => signed(effect.difference_rtt.estimate),
        false => "-".to_owned(),
    }
}

/// The effects, those of 0-RTT first, each kind together.
pub(crate) fn ordered_effects(record: &Record) -> Vec<&Effect> {
    let mut effects: Vec<&Effect> = record.effects.iter().collect();
    effects.sort_by_key(|effect| (!effect.what.starts_with("0-RTT"), &effect.what));
    effects
}

/// What is the same, measured twice.
pub(crate) fn control(record: &Record) -> Option<Sheet> {
    let control = record.control.as_ref()?;
    let names = names(record);
    let mut sheet = Sheet::new(
        "The A/A control",
        &format!(
            "Cells measured twice under two names: {} of {} pairs seem to differ at 95 %, chance \
             allows {}.",
            control.differing,
            control.pairs.len(),
            control.allowed
        ),
        &["cell", ">ms", ">95 %", "seems to differ"],
    );
    for pair in &control.pairs {
        sheet.rows.push(vec![
            names[pair.cell].clone(),
            signed(pair.difference_ms.estimate),
            range(&pair.difference_ms),
            if pair.differs { "yes" } else { "no" }.to_owned(),
        ]);
    }
    sheet.filled()
}

/// Cells whose median the model does not explain.
pub(crate) fn residuals(record: &Record) -> Option<Sheet> {
    let names = names(record);
    let judged =
        |cell: &&Cell| !cell.control && cell.summary.as_ref().is_some_and(|s| s.residual.is_some());
    let count = record.cells.iter().filter(judged).count();
    let mut sheet = Sheet::new(
        "What the model does not explain",
        "",
        &["cell", ">model ms", ">measured ms", ">beyond ms"],
    );
    sheet.glance = Some(GLANCE);
    for (cell, name) in record.cells.iter().zip(names).filter(|(cell, _)| !cell.control) {
        let Some(summary) = &cell.summary else { continue };
        let Some(residual) = summary.residual.filter(|residual| residual.flagged) else { continue };
        sheet.rows.push(vec![
            name,
            bare(residual.model_ms),
            bare(summary.first_byte.p50_ms),
            signed(residual.residual_ms),
        ]);
    }
    sheet.lead = format!(
        "The model is round trips times RTT, the rates' part, and both sides' processor time. {} of \
         {count} cells are further from it than it leaves open.",
        sheet.rows.len()
    );
    sheet.filled()
}

/// An interval in words.
pub(crate) fn range(interval: &Interval) -> String {
    format!("{} to {}", signed(interval.low), signed(interval.high))
}

/// The cells of an experiment without the second arms of A/A controls.
pub(crate) fn in_experiment<'a>(
    record: &'a Record,
    name: &'a str,
) -> impl Iterator<Item = &'a Cell> {
    record.cells.iter().filter(move |cell| cell.experiment == name && !cell.control)
}

const GLANCE: usize = 12;
