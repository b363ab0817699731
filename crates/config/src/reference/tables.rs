//! The reference as a table for each section.

use std::fmt::Write;

use super::{Key, Kind, Section};

pub(super) fn write(sections: &[Section]) -> String {
    let headings = sections.iter().map(|section| section.heading).collect::<Vec<_>>();
    let mut listed = Vec::new();
    let mut out = String::new();
    for section in sections {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n## {}\n\n{}\n\n", section.heading, one_line(&section.about));
        let _ = writeln!(out, "|key|type|meaning|default|\n|---|---|---|---|");
        for key in &section.keys {
            let (kind, values) = match &key.kind {
                Kind::Plain(words) => (short(words).to_owned(), String::new()),
                Kind::Choice(values) => {
                    let key = EnumKey { section: section.heading, key: key.name, values };
                    ("enum".to_owned(), list_once(key, &mut listed))
                }
                Kind::Section(heading) => (table(heading, &headings), String::new()),
            };
            let (meaning, reason) = split(&key.about);
            let _ = writeln!(
                out,
                "|`{}`|{}|{}|{}|",
                key.name,
                cell(&kind),
                cell(&format!("{}{values}", meaning.join("<br>"))),
                cell(&default(key, reason.as_deref())),
            );
        }
    }
    out
}

/// The type, abbreviated.
fn short(words: &str) -> &str {
    match words {
        "`true` or `false`" => "boolean",
        "a list of strings" => "strings",
        "a string, or a list of strings" => "string or strings",
        "a duration, or `false` for none" => "duration or `false`",
        _ => words.strip_prefix("a ").unwrap_or(words),
    }
}

/// The paragraphs of a key's description, and the reason for the default if the last one has it.
fn split(about: &str) -> (Vec<String>, Option<String>) {
    let mut meaning = paragraphs(about);
    let reason = meaning.last().and_then(|last| {
        LEADS.iter().find_map(|(lead, short)| Some(format!("{short}{}", last.strip_prefix(lead)?)))
    });
    if reason.is_some() {
        meaning.pop();
    }
    // A single phrase needs no full stop.
    let phrase = |text: String| match text.strip_suffix('.') {
        Some(phrase) if !phrase.contains(". ") => phrase.to_owned(),
        _ => text,
    };
    (meaning, reason.map(phrase))
}

/// How a paragraph about a default starts, and what replaces this start in the column of defaults.
const LEADS: [(&str, &str); 8] = [
    ("By default, ", ""),
    ("By default ", ""),
    ("The default is ", ""),
    ("The defaults are ", ""),
    ("The default ", ""),
    ("Off by default: ", "off: "),
    ("Off by default; ", "off; "),
    ("On by default, ", "on, "),
];

/// The default, and the reason for it.
fn default(key: &Key, reason: Option<&str>) -> String {
    let literal = match &key.default {
        Some(default) => default,
        None if key.required => "required",
        None => return reason.unwrap_or_default().to_owned(),
    };
    // Do not repeat the value.
    let value = literal.trim_matches(['`', '"']);
    let Some(reason) = reason.filter(|reason| reason.trim_matches('`') != value) else {
        return literal.to_owned();
    };
    let new = reason.strip_prefix(value).and_then(|rest| rest.strip_prefix([':', ',']));
    format!("{literal}<br>{}", new.unwrap_or(reason).trim_start())
}

/// A link to the section that describes a table.
fn table(heading: &str, headings: &[&str]) -> String {
    let word = if heading.starts_with("[[") { "tables" } else { "table" };
    match headings.contains(&heading) {
        true => format!("[{word}](#{})", anchor(heading)),
        false => word.to_owned(),
    }
}

/// The anchor that GitHub gives to a heading: lower case, without punctuation.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || "-_".contains(*letter);
    heading.to_lowercase().chars().filter(kept).collect()
}

/// A key with enumerated values.
#[derive(Clone, Copy)]
struct EnumKey<'a> {
    section: &'static str,
    key: &'static str,
    values: &'a [(String, String)],
}

/// Lists the values, or refers to a key that has the same ones.
fn list_once<'a>(key: EnumKey<'a>, listed: &mut Vec<EnumKey<'a>>) -> String {
    let Some(same) = listed.iter().find(|other| other.values == key.values) else {
        listed.push(key);
        let lines = key.values.iter();
        return lines.map(|(value, about)| format!("<br>{value}: {}", one_line(about))).collect();
    };
    match same.section == key.section {
        true => format!("<br>Values as for `{}`.", same.key),
        false => format!(
            "<br>Values as for `{}` in [`{}`](#{}).",
            same.key,
            same.section,
            anchor(same.section)
        ),
    }
}

fn one_line(text: &str) -> String {
    paragraphs(text).join("<br>")
}

/// Each paragraph on one line.
fn paragraphs(text: &str) -> Vec<String> {
    let one_line = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split("\n\n").map(one_line).collect()
}

/// Escapes the character that ends a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str, kind: Kind) -> Key {
        Key { name, kind, default: None, required: false, about: "One\ntwo|three.".to_owned() }
    }

    #[test]
    fn values_are_listed_once() {
        let choice = || Kind::Choice(vec![("`\"a\"`".to_owned(), "A.".to_owned())]);
        let section = |heading, keys| Section { heading, about: "About.".to_owned(), keys };
        let page = write(&[
            section("[a.B]", vec![key("x", choice()), key("y", choice())]),
            section("[c]", vec![key("z", choice()), key("t", Kind::Section("[a.B]".to_owned()))]),
        ]);
        assert!(page.contains("|`x`|enum|One two\\|three.<br>`\"a\"`: A.||"), "{page}");
        assert!(page.contains("|`y`|enum|One two\\|three.<br>Values as for `x`.||"), "{page}");
        assert!(page.contains("<br>Values as for `x` in [`[a.B]`](#ab).||"), "{page}");
        assert!(page.contains("|`t`|[table](#ab)|"), "{page}");
    }

    #[test]
    fn a_default_has_its_reason_beside_it() {
        let cells = |literal: Option<&str>, about: &str| {
            let kind = Kind::Plain("a number".to_owned());
            let default = literal.map(|literal| format!("`{literal}`"));
            let key = Key { default, about: about.to_owned(), ..key("x", kind) };
            let (meaning, reason) = split(&key.about);
            (meaning.join("<br>"), super::default(&key, reason.as_deref()))
        };
        let found = cells(Some("true"), "One.\n\nTwo.\n\nBy default true: three\nfour.");
        assert_eq!(found, ("One.<br>Two.".to_owned(), "`true`<br>three four".to_owned()));
        let (_, found) = cells(Some("2"), "One.\n\nThe default is enough.");
        assert_eq!(found, "`2`<br>enough");
        let (_, found) = cells(Some("\"/\""), "One.\n\nBy default `/`.");
        assert_eq!(found, "`\"/\"`");
        let (_, found) = cells(None, "One.\n\nBy default none: two. Three.");
        assert_eq!(found, "none: two. Three.");
        assert_eq!(cells(Some("3"), "One.").1, "`3`");
    }
}
