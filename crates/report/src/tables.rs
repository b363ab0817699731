//! A record on a terminal: tables of at most 100 columns.

use std::fmt::Write;

use comfy_table::{
    Cell as Field, CellAlignment, ColumnConstraint, ContentArrangement, Table, presets,
};
use firstflight_units::printable;

use crate::headline::sentences;
use crate::sheets::{self, Sheet};
use crate::{Fault, Record, Verdict, Witness, axes, visits};

/// Everything that a record says, for a terminal: what it found in a sentence or two, the matrices,
/// the other tables, where it was measured, and what a reader has to know before believing them.
/// At most 100 columns wide.
pub fn summary(record: &Record) -> String {
    let mut text = String::new();
    for group in sheets::groups(record) {
        let wide = sheets::matrix(&group, false);
        let sheet = match width(&wide) <= WIDTH {
            true => wide,
            false => sheets::matrix(&group, true),
        };
        let title = wrap(&format!("{} ({})", sheet.title, sheet.lead));
        let _ = writeln!(text, "{title}\n{}\n", grid(&sheet));
    }
    for sheet in sheets::others(record) {
        let _ = writeln!(text, "{}\n", block(&sheet));
    }
    for sentence in sentences(record) {
        let _ = writeln!(text, "{}", wrap(&sentence));
    }
    let servers = record.servers.iter().map(|server| server.version.as_str());
    let browsers = record.browsers.iter().map(|browser| browser.version.as_str());
    let told: Vec<&str> =
        std::iter::once(record.date.as_str()).chain(servers).chain(browsers).collect();
    let _ = writeln!(text, "\n{}", wrap(&told.join("; ")));
    let machine = &record.machine;
    let machine =
        format!("{}, {} processors; {}", machine.processor, machine.processors, machine.kernel);
    let _ = writeln!(text, "{}", wrap(&machine));
    text.push_str(&verdict(record));
    text
}

/// What a reader has to know before believing the tables: spoiled samples, the link's own error,
/// and everything that fails the run.
pub fn verdict(record: &Record) -> String {
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
        let kept = record.visits.iter().filter(|visit| visit.fault.is_none()).count();
        let _ = writeln!(
            text,
            "{visits} visits; {} left out; in {warned} browser and packets disagree",
            visits - kept
        );
    }
    if record.disturbed() > 0 {
        let disturbed = record.disturbed();
        let _ = writeln!(text, "{disturbed} kept out of their cells by packets lost on purpose");
    }
    if let Some(link) = &record.link {
        let _ = write!(
            text,
            "link: lateness p50 {:.0} us, p99 {:.0} us; {}, initial window {}; processors {}; ",
            link.lateness_p50_us,
            link.lateness_p99_us,
            link.congestion_control,
            link.initial_window,
            if link.keep_awake { "kept awake" } else { "free to sleep" },
        );
    }
    let _ = writeln!(text, "seed {}", record.seed);
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

/// What failed or was not what its cell asked for: the cell's name and what was wrong, of
/// connections and of visits.
pub(crate) fn failures(record: &Record) -> Vec<(String, String)> {
    let said = |fault: &Option<Fault>| fault.as_ref().map(why).unwrap_or_default();
    let names = axes::names(record);
    let samples = record.failures().map(|s| (names[s.cell].clone(), said(&s.fault)));
    let visit = |cell: usize| visits::name(&record.visit_cells[cell]);
    let visits = record.visit_failures().map(|v| (visit(v.cell), said(&v.fault)));
    samples.chain(visits).collect()
}

/// Verdicts, a line each, and below it where it does not hold.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let word = match (&verdict.undecided, verdict.passed()) {
            (Some(_), _) => "UNDECIDED",
            (None, true) => "passed",
            (None, false) => "FAILED",
        };
        let checked = verdict.checked;
        let _ = writeln!(
            text,
            "{word}: {}: {} ({checked} checked)",
            verdict.group,
            printable(&verdict.name)
        );
        for finding in verdict.undecided.iter().chain(&verdict.findings).take(MAX_FAILURES) {
            let _ = writeln!(text, "  {}", printable(finding));
        }
        if verdict.findings.len() > MAX_FAILURES {
            let _ = writeln!(text, "  ... and {} more", verdict.findings.len() - MAX_FAILURES);
        }
        for left_out in verdict.left_out.iter().take(MAX_FAILURES) {
            let _ = writeln!(text, "  not asked: {}", printable(left_out));
        }
        if verdict.left_out.len() > MAX_FAILURES {
            let _ = writeln!(text, "  ... and {} more", verdict.left_out.len() - MAX_FAILURES);
        }
    }
    text
}

/// What is wrong with a sample, to follow its cell's name.
pub(crate) fn why(fault: &Fault) -> String {
    match fault {
        Fault::Mislabelled(why) => format!("shows {why}"),
        Fault::Failed(why) => format!("failed: {why}"),
        Fault::Spoiled(why) => format!("was spoiled: {why}"),
        Fault::Disturbed(why) => format!("was disturbed by its network: {why}"),
    }
}

/// A table with its title and what its figures are.
pub(crate) fn block(sheet: &Sheet) -> String {
    let mut text = format!("{}\n", wrap(&sheet.title));
    if !sheet.lead.is_empty() {
        let _ = writeln!(text, "{}", wrap(&sheet.lead));
    }
    text.push_str(&grid(sheet));
    for note in &sheet.notes {
        let _ = write!(text, "\n{}", wrap(note));
    }
    text
}

/// The table itself, its first rows.
fn grid(sheet: &Sheet) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    // The last column's padding is cut off again.
    table.set_width(WIDTH as u16 + 2);
    table.set_header(sheet.head.iter().map(|head| printable(&head.text)));
    let most = sheet.glance.unwrap_or(MAX_ROWS);
    for row in sheet.rows.iter().take(most) {
        table.add_row(row.iter().zip(&sheet.head).map(|(field, head)| match head.right {
            true => Field::new(printable(field)).set_alignment(CellAlignment::Right),
            false => Field::new(printable(field)),
        }));
    }
    for (column, head) in table.column_iter_mut().zip(&sheet.head) {
        column.set_padding((0, 2));
        if head.right {
            // Figures are not broken; words beside them are.
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let mut text = lines.join("\n");
    if sheet.rows.len() > most {
        let _ = write!(text, "\n... and {} more, in the report", sheet.rows.len() - most);
    }
    text
}

/// How wide a table is with no field broken.
fn width(sheet: &Sheet) -> usize {
    let longest = |place: usize| {
        let fields = sheet.rows.iter().filter_map(|row| row.get(place));
        let fields = fields.chain([&sheet.head[place].text]);
        fields.map(|field| field.chars().count() + 2).max().unwrap_or(0)
    };
    (0..sheet.head.len()).map(longest).sum::<usize>().saturating_sub(2)
}

/// Words in lines of at most 100 columns.
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
// The report has them all.
const MAX_ROWS: usize = 40;
const MAX_FAILURES: usize = 10;
