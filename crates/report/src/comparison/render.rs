//! Comparisons as text, Markdown and HTML.

use std::fmt::Write;

use maud::html;

use super::{Change, Comparison};
use crate::charts::IntervalStrip;
use crate::format::{format_ms, format_signed_ms};
use crate::html::{Section, page, table_html};
use crate::tables::{Table, range};
use crate::{CheckOutcome, Interval, markdown, terminal};

impl Comparison {
    /// Renders text for a terminal, at most 100 columns wide, with check outcomes.
    pub fn text(&self, outcomes: &[CheckOutcome]) -> String {
        let mut text = format!("old: {}\nnew: {}\n\n", self.old, self.new);
        let _ = writeln!(text, "{}\n", terminal::table_text(&self.table()));
        for line in self.notes() {
            let _ = writeln!(text, "{}", terminal::wrap(&line));
        }
        text.push_str(&terminal::check_outcomes(outcomes));
        text
    }

    /// Renders Markdown for a pull request or a job summary.
    pub fn markdown(&self, outcomes: &[CheckOutcome]) -> String {
        let mut table = self.table();
        table.notes = self.notes();
        table.lead = format!("Old: {}. New: {}. {}", self.old, self.new, table.lead);
        format!("{}{}", markdown::section(&table), markdown::check_outcomes(outcomes))
    }

    /// Renders one self-contained HTML file.
    pub fn html(&self, outcomes: &[CheckOutcome]) -> String {
        let intervals = self.changes.iter().filter_map(|change| change.difference_ms.as_ref());
        let strips = IntervalStrip::of(intervals, f64::MAX);
        let table = self.table();
        let header = html! {
            header {
                p.kicker { "firstflight \u{b7} two runs compared" }
                h1 { (self.sentence()) }
                p { "Old: " (self.old) }
                p { "New: " (self.new) }
                ul.facts {
                    @for outcome in outcomes {
                        li.good[outcome.passed()].bad[!outcome.passed()] { (outcome.name) }
                    }
                }
            }
        };
        let changes = html! {
            p { (table.lead) }
            div.scroll.tall tabindex="0" role="region" aria-label=(table.title) {
                table {
                    caption.hidden { (table.title) }
                    thead { tr {
                        @for head in &table.head { th scope="col" .n[head.right] { (head.text) } }
                        th scope="col" { "interval" }
                    } }
                    tbody { @for (change, row) in self.changes.iter().zip(&table.rows) { tr {
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
            vec![Section { id: "changes", title: table.title, short: "Changes", body: changes }];
        if !outcomes.is_empty() {
            let body = table_html(&outcome_table(outcomes));
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

    fn table(&self) -> Table {
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
        let mut table = Table::new("What changed", &lead, &head);
        for change in &self.changes {
            let p95 = |pick: fn((f64, f64)) -> f64| {
                change.p95_ms.map_or("-".to_owned(), |p95| format_ms(pick(p95)))
            };
            let within =
                |interval: &Option<Interval>| interval.as_ref().map_or("-".to_owned(), range);
            table.rows.push(vec![
                change.name.clone(),
                format_ms(change.p50_ms.0),
                format_ms(change.p50_ms.1),
                format_signed_ms(change.p50_ms.1 - change.p50_ms.0),
                within(&change.difference_ms),
                format_signed_ms(change.percent()),
                p95(|p95| p95.0),
                p95(|p95| p95.1),
                within(&change.p95_difference_ms),
            ]);
        }
        table
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
            let format_trips =
                |trips: Option<u32>| trips.map_or("?".to_owned(), |trips| trips.to_string());
            let (old, new) =
                (format_trips(change.round_trips.0), format_trips(change.round_trips.1));
            notes.push(format!("{}: {old} round trips became {new}.", change.name));
        }
        notes
    }
}

fn outcome_table(outcomes: &[CheckOutcome]) -> Table {
    let mut table =
        Table::new("Conditions", "", &["what should hold", "holds", "checked", "where not"]);
    for outcome in outcomes {
        let holds = match (&outcome.undecided, outcome.passed()) {
            (Some(_), _) => "undecided",
            _ if outcome.is_idle() => "not decidable",
            (None, true) => "yes",
            (None, false) => "no",
        };
        let why = outcome.undecided.iter().chain(&outcome.findings);
        let why: Vec<&str> = why.map(String::as_str).collect();
        table.rows.push(vec![
            outcome.name.clone(),
            holds.to_owned(),
            outcome.checked.to_string(),
            why.join("; "),
        ]);
    }
    table
}

const MAX_NAMES: usize = 6;
