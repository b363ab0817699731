//! Metrics as their text exposition has them (Prometheus and OpenMetrics), so that what is sent is
//! what is scraped, by the same names.

use std::collections::BTreeMap;

/// Metrics of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name that its `TYPE` line gives.
    pub name: String,
    /// What it says.
    pub help: String,
    /// What it is.
    pub kind: FamilyKind,
    /// Its samples, in order.
    pub samples: Vec<Sample>,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
    /// Anything else, read as a gauge.
    Other,
}

/// A line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What follows the family's name: nothing, `_total`, `_bucket`, `_sum`, `_count`, ...
    pub suffix: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// A line that is none of the format's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the metrics is none of their text format")]
pub struct BadExposition {
    /// The line, from 1 on.
    pub line: usize,
}

/// Reads an exposition.
///
/// # Errors
/// [`BadExposition`] at the first line that is none.
pub fn parse_exposition(text: &str) -> Result<Vec<Family>, BadExposition> {
    let mut families: Vec<Family> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bad = BadExposition { line: index + 1 };
        let read = match line.strip_prefix('#') {
            Some(comment) => take_comment(comment, &mut families),
            None if line.trim().is_empty() => Some(()),
            None => take_sample(line, &mut families),
        };
        read.ok_or(bad)?;
    }
    Ok(families)
}

fn take_comment(comment: &str, families: &mut Vec<Family>) -> Option<()> {
    let mut words = comment.trim_start().splitn(3, ' ');
    match words.next()? {
        word @ ("HELP" | "TYPE") => {
            let (name, rest) = (words.next()?, words.next().unwrap_or_default());
            if families.last().is_none_or(|family| family.name != name) {
                let (name, help) = (name.to_owned(), String::new());
                let kind = FamilyKind::Other;
                families.push(Family { name, help, kind, samples: Vec::new() });
            }
            let family = families.last_mut()?;
            match word {
                "HELP" => family.help = unescape(rest)?,
                _ => {
                    family.kind = match rest.trim() {
                        "counter" => FamilyKind::Counter,
                        "gauge" => FamilyKind::Gauge,
                        "histogram" => FamilyKind::Histogram,
                        _ => FamilyKind::Other,
                    }
                }
            }
            Some(())
        }
        // UNIT, EOF, and what anybody likes to say.
        _ => Some(()),
    }
}

fn take_sample(line: &str, families: &mut Vec<Family>) -> Option<()> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.trim_start().split(' ').next()?.parse().ok()?;
    let ours = families.last().is_some_and(|family| is_of(name, &family.name));
    if !ours {
        let (family, help) = (name.to_owned(), String::new());
        let kind = FamilyKind::Other;
        families.push(Family { name: family, help, kind, samples: Vec::new() });
    }
    let family = families.last_mut()?;
    let suffix = name.strip_prefix(family.name.as_str())?.to_owned();
    family.samples.push(Sample { suffix, labels, value });
    Some(())
}

/// Whether a sample's name is the family's, with one of the format's suffixes perhaps.
fn is_of(sample: &str, family: &str) -> bool {
    sample.strip_prefix(family).is_some_and(|suffix| {
        ["", "_total", "_created", "_bucket", "_sum", "_count", "_info"].contains(&suffix)
    })
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, value) = rest.split_once("=\"")?;
        let end = closing_quote(value)?;
        labels.insert(name.to_owned(), unescape(&value[..end])?);
        rest = &value[end + 1..];
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                c => c,
            },
            c => c,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "# HELP a_requests Requests, \\\"all\\\" of them.\n# TYPE a_requests counter\n\
        a_requests_total{kind=\"early\",why=\"a \\\"b\\\" {c}, d\\\\\"} 17\na_requests_total 3 1700\n\
        # TYPE b_seconds histogram\n# UNIT b_seconds seconds\nb_seconds_bucket{le=\"0.5\"} 1\n\
        b_seconds_bucket{le=\"+Inf\"} 2 # {trace_id=\"x\"} 0.7\nb_seconds_sum 1.2\nb_seconds_count 2\n\
        # TYPE c gauge\nc NaN\nlonely 4\n# EOF\n";

    #[test]
    fn families_labels_and_values_are_read() {
        let families = parse_exposition(TEXT).unwrap();
        let names: Vec<_> = families.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names, ["a_requests", "b_seconds", "c", "lonely"]);
        assert_eq!(families[0].kind, FamilyKind::Counter);
        assert_eq!(families[0].help, "Requests, \"all\" of them.");
        let first = &families[0].samples[0];
        assert_eq!((first.suffix.as_str(), first.value), ("_total", 17.0));
        assert_eq!(first.labels["why"], "a \"b\" {c}, d\\");
        assert_eq!(families[0].samples[1].value, 3.0);
        let suffixes: Vec<_> = families[1].samples.iter().map(|s| s.suffix.as_str()).collect();
        assert_eq!(suffixes, ["_bucket", "_bucket", "_sum", "_count"]);
        assert_eq!(families[1].samples[1].labels["le"], "+Inf");
        assert!(families[2].samples[0].value.is_nan());
    }

    #[test]
    fn the_line_that_is_none_is_named() {
        for (text, line) in [("a", 1), ("a 1\nb{c=\"d\" 2", 2), ("a x", 1), ("a{b=\"\\", 1)] {
            assert_eq!(parse_exposition(text), Err(BadExposition { line }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,200}|([a-z_]{1,8}(\\{[a-z=\"\\\\,]{0,20}\\})? [0-9.]{1,4}\n){0,5}") {
            let _ = parse_exposition(&text);
        }
    }
}
