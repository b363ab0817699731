//! The link's own error, and how the run was measured.

use maud::{Markup, html};

use super::{Section, folded, table_html};
use crate::format::{count, format_ms, format_us};
use crate::{LinkFacts, Record, tables, terminal};

pub(super) fn link(record: &Record) -> Option<Section> {
    let link = record.link.as_ref()?;
    let body = html! {
        p { "Late by " b { (format_us(link.lateness_p50_us)) " \u{b5}s" } " at p50, "
            b { (format_us(link.lateness_p99_us)) " \u{b5}s" } " at p99 and "
            (format_us(link.lateness_max_us)) " \u{b5}s at worst, over "
            (count(link.packets as f64)) " packets that it delivered meanwhile."
            @if let Some(own) = link.own_lateness_p99_us {
                " While the machine ran it: " b { (format_us(own)) " \u{b5}s" } " at p99."
            }
            @if let Some(waited) = link.waited_ms {
                " Its thread waited " b { (format_ms(waited)) " ms" } " for a processor."
            }
            @if let Some(stolen) = link.stolen_ms {
                " The hypervisor took " b { (format_ms(stolen)) " ms" } " from all processors."
            }
            @if !record.samples.is_empty() { " Samples with a packet later than 1 ms are left out." }
            @if !record.visits.is_empty() { " Visits with a packet later than 5 ms are left out." } }
        @if let Some(table) = tables::calibrations(record) {
            p { (table.lead) }
            (table_html(&table))
        }
    };
    Some(Section { id: "link", title: "The link's own error".to_owned(), short: "Link", body })
}

pub(super) fn section(record: &Record) -> Section {
    let setup_tables =
        [tables::servers(record), tables::browsers(record), tables::profiles(record)];
    let body = html! {
        (facts(record))
        @for table in setup_tables.into_iter().flatten() {
            h3 { (table.title) }
            (table_html(&table))
        }
        @if let Some(table) = tables::captures(record) {
            h3 { (table.title) }
            p { (table.lead) }
            (table_html(&table))
        }
        @if !record.left_out.is_empty() {
            details {
                summary { (record.left_out.len()) " combinations were left out" }
                ul { @for reason in &record.left_out { li { (reason) } } }
            }
        }
        (failures(record))
        @if !record.command.is_empty() {
            h3 { "To repeat the run" }
            pre tabindex="0" { code { "firstflight" @for word in &record.command { " " (quoted(word)) } } }
        }
    };
    Section { id: "setting", title: "How it was measured".to_owned(), short: "Setting", body }
}

fn facts(record: &Record) -> Markup {
    let machine = &record.machine;
    html! {
        dl.setting {
            dt { "When" } dd { (record.date) ", for " (format!("{:.0}", record.seconds)) " s" }
            dt { "Machine" }
            dd { (machine.processor) ", " (machine.processors) " processors, " (machine.kernel) }
            dt { "Program" } dd { "firstflight " (record.version) }
            dt { "Seed" } dd { (record.seed) ", orders the samples and decides what the link drops" }
            @if let Some(link) = &record.link { (link_facts(link)) }
            @if let Some(why) = &machine.no_counters {
                dt { "Counters" } dd { "no cycles and instructions: " (why) }
            }
        }
    }
}

fn link_facts(link: &LinkFacts) -> Markup {
    html! {
        dt { "Link" }
        dd {
            (link.backend) ", " (link.congestion_control) ", initial window "
            (link.initial_window) ", processors "
            (if link.keep_awake { "kept awake" } else { "free to sleep" })
            @if !link.refused_settings.is_empty() {
                "; the machine refused " (link.refused_settings.join(", "))
            }
        }
    }
}

fn failures(record: &Record) -> Markup {
    let failures = terminal::failures(record);
    if failures.is_empty() {
        return html! {};
    }
    let all = failures.len();
    let mut table = tables::Table::new("Failures", "", &["cell", "what"]);
    table.rows.extend(failures.into_iter().take(MAX_FAILURES).map(|(name, why)| vec![name, why]));
    if all > MAX_FAILURES {
        table.notes.push(format!("and {} more", all - MAX_FAILURES));
    }
    let what = if record.visits.is_empty() { "connections" } else { "connections and visits" };
    folded(&format!("{all} {what} failed or were not of the requested kind"), &[table])
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(safe) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

const MAX_FAILURES: usize = 50;
