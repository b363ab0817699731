//! Log messages on stderr, in words or as JSON. Their words may be a peer's, so each entry is one
//! line of printable text.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use firstflight_units::{printable, printable_json};
use tracing_subscriber::EnvFilter;

/// Logs from `level` on, unless the environment says otherwise.
pub(crate) fn to_stderr(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| level.into());
    let json = std::env::var("FIRSTFLIGHT_LOG_FORMAT").is_ok_and(|format| format == "json");
    begin(filter, json);
}

/// Logs from now on; may be called once.
pub(crate) fn begin(filter: EnvFilter, json: bool) {
    let form = match (json, io::stderr().is_terminal()) {
        (true, _) => Form::Json,
        (false, true) => Form::Coloured,
        (false, false) => Form::Plain,
    };
    let writer = move || Entry { out: io::stderr(), form };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match json {
        true => log.json().init(),
        false => log.with_ansi(form == Form::Coloured).init(),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Json,
    Plain,
    /// In colours, which are escape sequences too.
    Coloured,
}

/// Writes one entry; it comes in one call.
struct Entry<W> {
    out: W,
    form: Form,
}

impl<W: Write> Write for Entry<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let shown = match self.form {
            Form::Json => printable_json(line),
            Form::Plain => printable(line),
            Form::Coloured => coloured(line),
        };
        // In one call too: what other threads log does not come between.
        self.out.write_all(format!("{shown}\n").as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Keeps the sequences that change colours (SGR). The subscriber has escaped those of values.
fn coloured(line: &str) -> Cow<'_, str> {
    let mut pieces = line.split("\x1b[");
    let mut out = printable(pieces.next().unwrap_or_default()).into_owned();
    for piece in pieces {
        let parameters = piece.find(|c: char| !c.is_ascii_digit() && c != ';');
        match parameters {
            Some(end) if piece[end..].starts_with('m') => out.push_str("\x1b["),
            _ => out.push_str(&printable("\x1b[")),
        }
        out.push_str(&printable(piece));
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form, entry: &str) -> String {
        let mut writer = Entry { out: Vec::new(), form };
        writer.write_all(entry.as_bytes()).unwrap();
        String::from_utf8(writer.out).unwrap()
    }

    #[test]
    fn an_entry_is_one_line_without_commands() {
        let entry = "WARN upstream: \x1b]0;x\x07 \u{9b}2J\n::error::x\n";
        assert_eq!(
            written(Form::Plain, entry),
            "WARN upstream: \\u{1b}]0;x\\u{7} \\u{9b}2J\\n::error::x\n"
        );
        let json = "{\"message\":\"\\u001b \u{9b}2J \u{202e}\"}\n";
        assert_eq!(written(Form::Json, json), "{\"message\":\"\\u001b \\u009b2J \\u202e\"}\n");
    }

    #[test]
    fn colours_stay_and_nothing_else_of_a_terminals_commands() {
        let entry = "\x1b[2m12:00\x1b[0m \x1b[33m WARN\x1b[0m a\x1b[2Jb\x1bcd\n";
        assert_eq!(
            written(Form::Coloured, entry),
            "\x1b[2m12:00\x1b[0m \x1b[33m WARN\x1b[0m a\\u{1b}[2Jb\\u{1b}cd\n"
        );
    }
}
