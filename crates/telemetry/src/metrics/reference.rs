//! docs/reference/metrics.md, from the metrics' own words.

use std::fmt::Write;

use super::{Family, LabelInfo, Snapshot};

pub(super) fn write(snapshot: &Snapshot) -> String {
    let mut out = HEADER.to_owned();
    for family in &snapshot.families {
        section(&mut out, family);
    }
    out
}

fn section(out: &mut String, family: &Family) {
    let description = family.description;
    let (name, kind) = (description.name, description.kind.name());
    // A string takes everything.
    let _ = write!(out, "\n## {name}\n\n");
    let _ = writeln!(out, "{}", wrapped(&format!("*{kind}.* {}", description.help), ""));
    let _ = writeln!(out, "\n{}", wrapped(description.advice, ""));
    if family.labels.is_empty() {
        return;
    }
    out.push('\n');
    for label in &family.labels {
        label_lines(out, label);
    }
}

fn label_lines(out: &mut String, label: &LabelInfo) {
    if label.values.is_empty() {
        let _ =
            writeln!(out, "{}", wrapped(&format!("- `{}`: {}", label.name, label.meaning), "  "));
        return;
    }
    let _ = writeln!(out, "- `{}`:", label.name);
    for (value, meaning) in label.values {
        let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(out, "{}", wrapped(&format!("  - `{value}`: {meaning}"), "    "));
    }
}

/// Lines of 100 columns, those after the first indented.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    let lead = text.len() - text.trim_start().len();
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.trim().is_empty() && line.len() + 1 + word.len() > 100 {
            lines.push(format!("{indent}{word}"));
            continue;
        }
        match line.is_empty() {
            true => line.push_str(&text[..lead]),
            false => line.push(' '),
        }
        line.push_str(word);
    }
    lines.join("\n")
}

const HEADER: &str = "\
# Metrics

<!-- Made from the metrics' own words by `make bless`. -->

`/metrics` on the admin address has them, as Prometheus' text or as OpenMetrics, by `Accept`. Names
and units follow Prometheus' conventions. Labels are closed sets or names out of the configuration:
no client, path or header makes a series. Counters that say whether something bad happens are there
from the start, at 0, so that `increase()` sees a first event; `firstflight_requests_total` and
histograms have a series for what was met. Metrics of what is not configured have no series.

[examples/prometheus](../../examples/prometheus) has alerts and recording rules on them,
[examples/grafana](../../examples/grafana) a dashboard.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken() {
        let text = wrapped(&format!("  - `a`: {}", "word ".repeat(40)), "    ");
        let lines = text.lines().collect::<Vec<_>>();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].starts_with("  - `a`: word") && lines[1].starts_with("    word"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.len() <= 100), "{text}");
    }
}
