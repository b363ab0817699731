//! A comparison as text, Markdown and HTML.

use std::fmt::Write;

use maud::html;

use super::{Change, Comparison};
use crate::drawing::Strip;
use crate::figure::{bare, signed};
use crate::html::{Section, page, table};
use crate::sheets::{Sheet, range};
use crate::{Interval, Verdict, markdown, tables};

impl Comparison {
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
            "Medians {} in ms and their difference with its 95 % interval. {} of {} seem to differ; by \
             chance {} may.",
            match (self.changes.iter().any(|c| c.visits), self.changes.iter().all(|c| c.visits)) {
                (false, _) => "to the first byte",
                (true, true) => "of a visit's total in the browser",
                (true, false) => "to the first byte, of a visit the total in the browser,",
            },
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
                let shown = cells[..cells.len().min(MAX_NAMES)].join("; ");
                let rest = cells.len().saturating_sub(MAX_NAMES);
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

const MAX_NAMES: usize = 6;
