//! A record as text for a terminal, at most 100 columns wide.

use std::fmt::Write;

use comfy_table::{
    Cell as Field, CellAlignment, ColumnConstraint, ContentArrangement, Table as TerminalTable,
    presets,
};
use firstflight_units::printable;

use crate::headline::sentences;
use crate::tables::{self, Table};
use crate::{CheckOutcome, Fault, Record, Witness, axes, visits};

/// Renders the whole record: the matrices, the other tables, the results in sentences, where it was
/// measured, and its [`data_quality`].
pub fn render(record: &Record) -> String {
    let mut text = String::new();
    for group in tables::groups(record) {
        let wide = tables::matrix(&group, false);
        let table = match width(&wide) <= WIDTH {
            true => wide,
            false => tables::matrix(&group, true),
        };
        let title = wrap(&format!("{} ({})", table.title, table.lead));
        let _ = writeln!(text, "{title}\n{}\n", grid(&table));
    }
    for table in tables::others(record) {
        let _ = writeln!(text, "{}\n", table_text(&table));
    }
    for sentence in sentences(record) {
        let _ = writeln!(text, "{}", wrap(&sentence));
    }
    let servers = record.servers.iter().map(|server| server.version.as_str());
    let browsers = record.browsers.iter().map(|browser| browser.version.as_str());
    let listed: Vec<&str> =
        std::iter::once(record.date.as_str()).chain(servers).chain(browsers).collect();
    let _ = writeln!(text, "\n{}", wrap(&listed.join("; ")));
    let machine = &record.machine;
    let machine =
        format!("{}, {} processors; {}", machine.processor, machine.processors, machine.kernel);
    let _ = writeln!(text, "{}", wrap(&machine));
    text.push_str(&data_quality(record));
    text
}

/// How far the tables can be trusted: spoiled samples, the link's own error, and everything that
/// fails the run.
pub fn data_quality(record: &Record) -> String {
    let mut text = match (record.samples.len(), record.witness) {
        (0, _) => String::new(),
        (samples, Witness::Kernel) => format!("{samples} samples\n"),
        (samples, Witness::Packets) => format!(
            "{samples} samples; {} spoiled by the machine and left out; {} with other round trips \
             than most of their cell\n",
            record.spoiled(),
            record.deviating(),
        ),
    };
    if !record.visits.is_empty() {
        let (warned, visits) = crate::visits::warned(record);
        let good = record.visits.iter().filter(|visit| visit.fault.is_none()).count();
        let _ = writeln!(
            text,
            "{visits} visits; {} left out; browser and packets disagree in {warned}",
            visits - good
        );
    }
    if record.disturbed() > 0 {
        let disturbed = record.disturbed();
        let _ = writeln!(text, "{disturbed} excluded because of intended packet loss");
    }
    if let Some(link) = &record.link {
        let waited = link.waited_ms.map(|ms| format!("its thread waited {ms:.0} ms; "));
        let stolen = link.stolen_ms.map(|ms| format!("{ms:.0} ms stolen by the hypervisor; "));
        let _ = write!(
            text,
            "link: lateness p50 {:.0} us, p99 {:.0} us{}; {}{}{}, initial window {}; processors {}; ",
            link.lateness_p50_us,
            link.lateness_p99_us,
            link.own_lateness_p99_us
                .map_or_else(String::new, |own| format!(" ({own:.0} us while the machine ran it)")),
            waited.unwrap_or_default(),
            stolen.unwrap_or_default(),
            link.congestion_control,
            link.initial_window,
            if link.keep_awake { "kept awake" } else { "free to sleep" },
        );
    }
    let _ = writeln!(text, "seed {}", record.seed);
    for stage in &record.failed_stages {
        let _ = writeln!(text, "WRONG: {}", printable(stage));
    }
    let failures = failures(record);
    for (name, why) in failures.iter().take(MAX_FAILURES) {
        let line = format!("WRONG: {name} {why}");
        let _ = writeln!(text, "{}", printable(&line));
    }
    if failures.len() > MAX_FAILURES {
        let _ = writeln!(text, "... and {} more", failures.len() - MAX_FAILURES);
    }
    let lines: Vec<String> = text.lines().map(wrap).collect();
    lines.join("\n") + "\n"
}

/// Connections and visits that failed or were not of the requested kind: the cell's name, and what
/// was wrong.
pub(crate) fn failures(record: &Record) -> Vec<(String, String)> {
    let describe = |fault: &Option<Fault>| fault.as_ref().map(Fault::describe).unwrap_or_default();
    let names = axes::cell_names(record);
    let samples = record.failures().map(|s| (names[s.cell].clone(), describe(&s.fault)));
    let visit = |cell: usize| visits::name(&record.visit_cells[cell]);
    let visits = record.visit_failures().map(|v| (visit(v.cell), describe(&v.fault)));
    samples.chain(visits).collect()
}

/// Renders check outcomes, a line each, with the findings below.
pub fn check_outcomes(outcomes: &[CheckOutcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let _ = writeln!(text, "{}", printable(&outcome.sentence()));
        for finding in outcome.findings.iter().take(MAX_FAILURES) {
            let _ = writeln!(text, "  {}", printable(finding));
        }
        if outcome.findings.len() > MAX_FAILURES {
            let _ = writeln!(text, "  ... and {} more", outcome.findings.len() - MAX_FAILURES);
        }
        for left_out in outcome.skipped.iter().take(MAX_FAILURES) {
            let _ = writeln!(text, "  skipped: {}", printable(left_out));
        }
        if outcome.skipped.len() > MAX_FAILURES {
            let _ = writeln!(text, "  ... and {} more", outcome.skipped.len() - MAX_FAILURES);
        }
    }
    text
}

/// A table with its title and lead.
pub(crate) fn table_text(table: &Table) -> String {
    let mut text = format!("{}\n", wrap(&table.title));
    if !table.lead.is_empty() {
        let _ = writeln!(text, "{}", wrap(&table.lead));
    }
    text.push_str(&grid(table));
    for note in &table.notes {
        let _ = write!(text, "\n{}", wrap(note));
    }
    text
}

/// The rows of a table, as many as a terminal shows.
fn grid(table: &Table) -> String {
    let mut output = TerminalTable::new();
    output.load_style(presets::NOTHING);
    output.set_content_arrangement(ContentArrangement::Dynamic);
    // The padding of the last column is trimmed below.
    output.set_width(WIDTH as u16 + 2);
    output.set_header(table.head.iter().map(|head| printable(&head.text)));
    let limit = table.terminal_rows.unwrap_or(MAX_ROWS);
    for row in table.rows.iter().take(limit) {
        output.add_row(row.iter().zip(&table.head).map(|(field, head)| match head.right {
            true => Field::new(printable(field)).set_alignment(CellAlignment::Right),
            false => Field::new(printable(field)),
        }));
    }
    for (column, head) in output.column_iter_mut().zip(&table.head) {
        column.set_padding((0, 2));
        if head.right {
            // Numbers are not wrapped; text beside them is.
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let lines: Vec<String> = output.lines().map(|line| line.trim_end().to_owned()).collect();
    let mut text = lines.join("\n");
    if table.rows.len() > limit {
        let _ = write!(text, "\n... and {} more, in the report", table.rows.len() - limit);
    }
    text
}

/// The width of a table without wrapping.
fn width(table: &Table) -> usize {
    let longest = |place: usize| {
        let fields = table.rows.iter().filter_map(|row| row.get(place));
        let fields = fields.chain([&table.head[place].text]);
        fields.map(|field| field.chars().count() + 2).max().unwrap_or(0)
    };
    (0..table.head.len()).map(longest).sum::<usize>().saturating_sub(2)
}

/// Wraps text at 100 columns.
pub(crate) fn wrap(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in printable(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

const WIDTH: usize = 100;
// The HTML report has all rows.
const MAX_ROWS: usize = 40;
const MAX_FAILURES: usize = 10;
