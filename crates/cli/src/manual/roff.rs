//! Converts Markdown to a manual page (man(7)). Supports what the configuration reference uses:
//! headings, paragraphs, lists and code.

use std::fmt::Write;

/// Header and footer of a page.
pub(super) struct Title {
    pub(super) name: String,
    pub(super) section: u8,
    /// The description in the section NAME.
    pub(super) description: String,
    pub(super) date: String,
    pub(super) source: String,
    pub(super) manual: String,
}

/// Converts a page. Its title is omitted, and the text before its first heading becomes the section
/// DESCRIPTION.
pub(super) fn page(markdown: &str, title: &Title) -> String {
    let mut out = format!(
        ".TH {} {} {} \"{}\" \"{}\"\n.SH NAME\n{} \\- {}\n.SH DESCRIPTION\n",
        escaped(&title.name.to_uppercase()),
        title.section,
        title.date,
        escaped(&title.source),
        escaped(&title.manual),
        escaped(&title.name),
        escaped(&title.description),
    );
    let mut block = Block::default();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            block.end(&mut out);
            out.push_str(".PP\n.RS 4\n.EX\n");
            for line in lines.by_ref().take_while(|line| !line.starts_with("```")) {
                let _ = writeln!(out, "{}", protected(&escaped(line)));
            }
            out.push_str(".EE\n.RE\n");
        } else if let Some(heading) = line.strip_prefix("## ") {
            block.end(&mut out);
            let _ = writeln!(out, ".SH {}", protected(&inline(heading)));
        } else if let Some(heading) = line.strip_prefix("### ") {
            block.end(&mut out);
            let _ = writeln!(out, ".SS {}", protected(&inline(heading)));
        } else if line.is_empty() || line.starts_with("# ") || line.starts_with("<!--") {
            block.end(&mut out);
        } else if let Some(item) = line.strip_prefix("- ") {
            block.end(&mut out);
            block = Block { start: ".IP \\(bu 2\n", text: item.to_owned() };
        } else {
            block.add(line.trim());
        }
    }
    block.end(&mut out);
    out
}

/// A paragraph or list item that is being read.
struct Block {
    start: &'static str,
    text: String,
}

impl Default for Block {
    fn default() -> Self {
        Self { start: ".PP\n", text: String::new() }
    }
}

impl Block {
    fn add(&mut self, line: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(line);
    }

    fn end(&mut self, out: &mut String) {
        let block = std::mem::take(self);
        if block.text.is_empty() {
            return;
        }
        // After a heading the paragraph needs no space.
        let after_heading = out.lines().last().is_some_and(|line| line.starts_with(".S"));
        if !(after_heading && block.start == Self::default().start) {
            out.push_str(block.start);
        }
        let _ = writeln!(out, "{}", protected(&inline(&block.text)));
    }
}

/// Makes code and emphasis bold. Replaces links by their text, followed by the address if it is a URL.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (plain, marked) = rest.split_at(at);
        out.push_str(&escaped(plain));
        let found = between(marked, "`", "`")
            .map(|(code, after)| (bold(&escaped(code)), after))
            .or_else(|| {
                between(marked, "**", "**").map(|(text, after)| (bold(&inline(text)), after))
            })
            .or_else(|| link(marked));
        rest = match found {
            Some((rendered, after)) => {
                out.push_str(&rendered);
                after
            }
            None => {
                out.push_str(&marked[..1]);
                &marked[1..]
            }
        };
    }
    out + &escaped(rest)
}

fn bold(text: &str) -> String {
    format!("\\fB{text}\\fR")
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(open)?.split_once(close)
}

fn link(text: &str) -> Option<(String, &str)> {
    let (label, rest) = between(text, "[", "](")?;
    let (target, rest) = rest.split_once(')')?;
    let rendered = match target.starts_with("http") {
        true => format!("{} ({})", inline(label), escaped(target)),
        false => inline(label),
    };
    Some((rendered, rest))
}

/// Escapes characters that roff interprets or replaces.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '"' => out.push_str("\\(dq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            letter => out.push(letter),
        }
    }
    out
}

/// Protects a line that starts like a roff request.
fn protected(line: &str) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_becomes_a_page() {
        let title = Title {
            name: "a.toml".to_owned(),
            section: 5,
            description: "a file".to_owned(),
            date: "2026-11-22".to_owned(),
            source: "a 1".to_owned(),
            manual: "a manual".to_owned(),
        };
        let markdown = "<!-- made -->\n\n# Title\n\n.`x-y` of [a page](p.md),\nsee \
                        [it](https://e.test).\n\n- **One**: 1\n  and more\n- two\n\n## [[s]]\n\n### \
                        key\n\nText\\.\n\n```toml\n.a = \"-\"\n```\n";
        insta::assert_snapshot!(page(markdown, &title));
    }
}
