//! The reference as text, with a heading for each key.

use std::fmt::Write;

use super::{Key, Kind, Section};

pub(super) fn write(sections: &[Section]) -> String {
    let mut out = String::new();
    for section in sections {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n## {}\n\n{}", section.heading, wrapped(&section.about, ""));
        for key in &section.keys {
            write_key(&mut out, key);
        }
    }
    out
}

fn write_key(out: &mut String, key: &Key) {
    let mut line = match &key.kind {
        Kind::Plain(words) => capital(words),
        Kind::Choice(_) => "One of the values below".to_owned(),
        Kind::Section(heading) if heading.starts_with("[[") => {
            format!("Sections of their own, `{heading}`")
        }
        Kind::Section(_) => "A table, described in a section below".to_owned(),
    };
    match &key.default {
        Some(default) => line += &format!("; default {default}"),
        None if key.required => line += "; required",
        None => {}
    }
    let line = wrapped(&format!("{line}."), "");
    let _ = write!(out, "\n### {}\n\n{line}\n{}", key.name, wrapped(&key.about, ""));
    if let Kind::Choice(values) = &key.kind {
        out.push('\n');
        for (value, meaning) in values {
            out.push_str(&wrapped(&format!("{value}: {meaning}"), "- "));
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

/// Wraps paragraphs at 100 columns. The first line starts with `bullet`, the others are indented.
fn wrapped(text: &str, bullet: &str) -> String {
    let mut out = String::new();
    for (at, paragraph) in text.split("\n\n").filter(|part| !part.is_empty()).enumerate() {
        let indent = " ".repeat(bullet.len());
        if at > 0 {
            out.push('\n');
        }
        let mut line = if at == 0 { bullet.to_owned() } else { indent.clone() };
        let start = line.len();
        for word in paragraph.split_whitespace() {
            if line.len() > start && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                out.push_str(&line);
                out.push('\n');
                line = indent.clone();
            }
            if line.len() > start {
                line.push(' ');
            }
            line.push_str(word);
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// The width of the project's other pages.
const COLUMNS: usize = 100;
