//! docs/reference/metrics.md: a table for each group of metrics, and one for its labels.

use std::fmt::Write;

use super::{Family, LabelInfo};

/// Metrics under a common heading.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) families: Vec<Family>,
}

pub(super) fn write(groups: &[Group]) -> String {
    let mut out = HEADER.to_owned();
    for group in groups {
        let _ = writeln!(out, "\n## {}\n\n{METRIC_COLUMNS}", group.title);
        for family in &group.families {
            metric_row(&mut out, family);
        }
        let sets = label_sets(&group.families);
        let own = sets.into_iter().filter(|set| !is_shared(set, groups)).collect::<Vec<_>>();
        label_table(&mut out, &own);
    }
    let mut shared = Vec::new();
    for set in groups.iter().flat_map(|group| label_sets(&group.families)) {
        if is_shared(&set, groups)
            && !shared.iter().any(|listed: &LabelSet| listed.info == set.info)
        {
            shared.push(LabelSet { named: true, ..set });
        }
    }
    let _ = writeln!(out, "\n## Labels of several groups");
    label_table(&mut out, &shared);
    out
}

fn metric_row(out: &mut String, family: &Family) {
    let description = family.description;
    let labels = family.labels.iter().map(|label| format!("`{}`", label.name));
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "|`{}`|{}|{}<br>{}|{}|",
        description.name,
        description.kind.name(),
        cell(description.help),
        cell(description.advice),
        labels.collect::<Vec<_>>().join(", "),
    );
}

/// A label and its values.
struct LabelSet {
    info: LabelInfo,
    /// The first metric that has it.
    metric: &'static str,
    /// Whether the name is enough, because no other label of the group has it.
    named: bool,
}

/// The labels of a group, each set of values once.
fn label_sets(families: &[Family]) -> Vec<LabelSet> {
    let mut sets = Vec::<LabelSet>::new();
    for family in families {
        for info in &family.labels {
            match sets.iter_mut().find(|set| is_part(&set.info, info) || is_part(info, &set.info)) {
                Some(set) if set.info.values.len() < info.values.len() => set.info = *info,
                Some(_) => {}
                None => {
                    let metric = family.description.name;
                    sets.push(LabelSet { info: *info, metric, named: true });
                }
            }
        }
    }
    let names = sets.iter().map(|set| set.info.name).collect::<Vec<_>>();
    for set in &mut sets {
        set.named = names.iter().filter(|name| **name == set.info.name).count() == 1;
    }
    sets
}

/// Whether `part` is the same label, perhaps with the first values of `whole` only.
fn is_part(part: &LabelInfo, whole: &LabelInfo) -> bool {
    let starts = !part.values.is_empty() && whole.values.starts_with(part.values);
    part.name == whole.name && (part == whole || starts)
}

/// Whether several groups have these values.
fn is_shared(set: &LabelSet, groups: &[Group]) -> bool {
    let has =
        |group: &&Group| label_sets(&group.families).iter().any(|other| other.info == set.info);
    groups.iter().filter(has).count() > 1
}

fn label_table(out: &mut String, sets: &[LabelSet]) {
    if sets.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{LABEL_COLUMNS}");
    for set in sets {
        let mut name = match set.named {
            true => format!("`{}`", set.info.name),
            false => format!("`{}` of `{}`", set.info.name, set.metric),
        };
        if set.info.values.is_empty() {
            let _ = writeln!(out, "|{name}||{}|", cell(set.info.meaning));
        }
        for (value, meaning) in set.info.values {
            let _ = writeln!(out, "|{name}|`{value}`|{}|", cell(meaning));
            // Only the first row of a label has its name.
            name.clear();
        }
    }
}

/// Text on one line, without the character that ends a cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

const METRIC_COLUMNS: &str = "|metric|kind|meaning|labels|\n|---|---|---|---|";
const LABEL_COLUMNS: &str = "|label|value|meaning|\n|---|---|---|";

const HEADER: &str = "\
# Metrics

<!-- Made from crates/telemetry by `make bless`. -->

`/metrics` on the admin address serves them in Prometheus' text format or as OpenMetrics, by `Accept`.
Label values are fixed sets or names from the configuration: no client, path or header creates a
series. Counters exist from the start, at 0, so that `increase()` sees the first event;
`firstflight_requests_total` and histograms have a series for each combination that occurred.

[examples/prometheus](../../examples/prometheus) has alerts and recording rules,
[examples/grafana](../../examples/grafana) a dashboard. The second line of a meaning says what to do.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Description;

    static ONE: Description = Description::counter("one_total", "One|two.", "Do.");
    static OTHER: Description = Description::gauge("other", "Other.", "Wait.");

    const SHORT: LabelInfo = LabelInfo { name: "key", values: &[("a", "A.")], meaning: "" };
    const LONG: LabelInfo =
        LabelInfo { name: "key", values: &[("a", "A."), ("b", "B.")], meaning: "" };
    const REASON: LabelInfo = LabelInfo { name: "reason", values: &[("x", "X.")], meaning: "" };
    const OTHER_REASON: LabelInfo = LabelInfo::configured("reason", "as above");

    fn family(description: &'static Description, labels: &[LabelInfo]) -> Family {
        Family { description, labels: labels.to_vec(), series: Vec::new() }
    }

    fn group(title: &'static str, families: Vec<Family>) -> Group {
        Group { title, families }
    }

    #[test]
    fn values_are_listed_once_and_where_they_are_used() {
        let page = write(&[
            group("First", vec![family(&ONE, &[SHORT, REASON]), family(&OTHER, &[OTHER_REASON])]),
            group("Second", vec![family(&OTHER, &[LONG]), family(&ONE, &[SHORT])]),
            group("Third", vec![family(&ONE, &[REASON])]),
        ]);
        assert!(page.contains("|`one_total`|counter|One\\|two.<br>Do.|`key`, `reason`|"), "{page}");
        assert!(page.contains("|`reason` of `other`||as above|\n\n## Second"), "{page}");
        assert!(page.contains("|`key`|`a`|A.|\n||`b`|B.|\n\n## Third"), "{page}");
        let shared = page.split("## Labels of several groups").last().unwrap_or_default();
        assert!(shared.ends_with("|---|---|---|\n|`reason`|`x`|X.|\n"), "{page}");
        assert_eq!(page.matches("|X.|").count(), 1, "{page}");
    }
}
