//! Log messages on stderr, as text or JSON. Messages may contain untrusted bytes, so each entry is
//! escaped to one line of printable text.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use firstflight_units::{printable, printable_json};
use tracing_subscriber::EnvFilter;

/// Starts logging at `level`, unless RUST_LOG sets another.
pub(crate) fn to_stderr(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| level.into());
    let json = std::env::var("FIRSTFLIGHT_LOG_FORMAT").is_ok_and(|format| format == "json");
    init(filter, json);
}

/// Starts logging. Call it once.
pub(crate) fn init(filter: EnvFilter, json: bool) {
    let format = match (json, io::stderr().is_terminal()) {
        (true, _) => LogFormat::Json,
        (false, true) => LogFormat::Coloured,
        (false, false) => LogFormat::Plain,
    };
    let writer = move || LineWriter { out: io::stderr(), format };
    // The subscriber would print internal errors with `eprintln!`, which panics if stderr is closed
    // or full.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(writer);
    match json {
        true => log.json().init(),
        false => log.with_ansi(format == LogFormat::Coloured).init(),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum LogFormat {
    Json,
    Plain,
    /// Text with colours, which are escape sequences.
    Coloured,
}

/// Writes log entries. The subscriber passes each entry in one call.
struct LineWriter<W> {
    out: W,
    format: LogFormat,
}

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let escaped = match self.format {
            LogFormat::Json => printable_json(line),
            LogFormat::Plain => printable(line),
            LogFormat::Coloured => escape_except_colours(line),
        };
        // One call, so that entries of other threads do not interleave. An entry that cannot be
        // written is lost: there is nowhere to report that.
        let _ = self.out.write_all(format!("{escaped}\n").as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Escapes everything but the sequences that change colours (SGR). The subscriber has already
/// escaped those in values.
fn escape_except_colours(line: &str) -> Cow<'_, str> {
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

    fn written_line(format: LogFormat, entry: &str) -> String {
        let mut writer = LineWriter { out: Vec::new(), format };
        writer.write_all(entry.as_bytes()).unwrap();
        String::from_utf8(writer.out).unwrap()
    }

    #[test]
    fn an_entry_is_one_line_without_control_sequences() {
        let entry = "WARN upstream: \x1b]0;x\x07 \u{9b}2J\n::error::x\n";
        assert_eq!(
            written_line(LogFormat::Plain, entry),
            "WARN upstream: \\u{1b}]0;x\\u{7} \\u{9b}2J\\n::error::x\n"
        );
        let json = "{\"message\":\"\\u001b \u{9b}2J \u{202e}\"}\n";
        assert_eq!(
            written_line(LogFormat::Json, json),
            "{\"message\":\"\\u001b \\u009b2J \\u202e\"}\n"
        );
    }

    #[test]
    fn an_entry_that_cannot_be_written_is_lost_without_an_error() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer = LineWriter { out: full, format: LogFormat::Plain };
        writer.write_all(b"an entry\n").unwrap();
    }

    #[test]
    fn colours_are_the_only_control_sequences_kept() {
        let entry = "\x1b[2m12:00\x1b[0m \x1b[33m WARN\x1b[0m a\x1b[2Jb\x1bcd\n";
        assert_eq!(
            written_line(LogFormat::Coloured, entry),
            "\x1b[2m12:00\x1b[0m \x1b[33m WARN\x1b[0m a\\u{1b}[2Jb\\u{1b}cd\n"
        );
    }
}
