//! What `fetch` prints. The server's words are escaped, its body is not.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use firstflight_client::{ClientError, Event, Head, Listener, Output, Report, Template, Verbose};
use firstflight_units::{printable, printable_bytes};

/// Where body, head and events of one transfer go.
pub(super) struct Screen {
    pub(super) path: Option<PathBuf>,
    pub(super) file: Option<File>,
    pub(super) include: bool,
    pub(super) verbose: Option<Verbose<io::Stderr>>,
    pub(super) silent: bool,
}

impl Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(path) = &self.path else { return io::stdout().write_all(bytes) };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::create(path)?),
        };
        file.write_all(bytes)
    }

    /// Makes the file also where nothing came.
    pub(super) fn finish(&mut self, success: bool) -> io::Result<()> {
        if success && self.file.is_none() {
            self.write(b"")?;
        }
        io::stdout().flush()
    }

    pub(super) fn name(&self) -> Option<String> {
        let path = self.path.as_ref().filter(|_| self.file.is_some())?;
        Some(path.to_string_lossy().into_owned())
    }
}

impl Listener for Screen {
    fn event(&mut self, event: &Event<'_>) {
        match (&mut self.verbose, event) {
            (Some(verbose), event) => verbose.event(event),
            (None, Event::Warning(text)) if !self.silent => {
                eprintln!("firstflight: warning: {}", printable(text));
            }
            _ => {}
        }
    }

    fn head(&mut self, head: &Head) -> io::Result<()> {
        match (self.include, self.path.is_none() && io::stdout().is_terminal()) {
            (false, _) => Ok(()),
            (true, false) => self.write(&head.raw),
            (true, true) => self.write(shown(&head.raw).as_bytes()),
        }
    }

    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)
    }
}

/// A head as a terminal may have it: its line ends stay.
fn shown(head: &[u8]) -> String {
    let mut text = String::new();
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let words = line.trim_ascii_end();
        text.push_str(&printable_bytes(words));
        text.push_str(if line.ends_with(b"\n") { "\r\n" } else { "" });
    }
    text
}

/// Writes what `-w` asks for.
pub(super) fn write_out(template: Option<&Template>, report: &Report) {
    for piece in template.map(|template| template.render(report)).unwrap_or_default() {
        // Nobody is left to tell when this fails.
        let _ = match piece.output {
            Output::Stdout => {
                io::stdout().write_all(piece.text.as_bytes()).and_then(|()| io::stdout().flush())
            }
            Output::Stderr => io::stderr().write_all(piece.text.as_bytes()),
        };
    }
}

/// Says on standard error what went wrong.
pub(super) fn complain(quiet: bool, error: &ClientError) {
    if !quiet {
        let text = error.to_string();
        eprintln!("firstflight: ({}) {}", error.exit_code(), printable(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_a_head_without_commands() {
        assert_eq!(
            shown(b"HTTP/1.1 200 \xc2\x9b2J\r\nA: \x9bb\tc\nB: d\r\n\r\n"),
            "HTTP/1.1 200 \\u{9b}2J\r\nA: \\x9bb\\tc\r\nB: d\r\n\r\n"
        );
    }
}
