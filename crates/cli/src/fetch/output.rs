//! The output of `fetch`: bodies, heads and messages. Text from the server is escaped, bodies are
//! not.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use firstflight_client::{ClientError, Event, Head, Listener, Output, Report, Template, Verbose};
use firstflight_units::{printable, printable_bytes};

use crate::print::ignore_broken_pipe;

/// Writes body, head and events of one transfer.
pub(super) struct TransferOutput {
    pub(super) path: Option<PathBuf>,
    pub(super) file: Option<File>,
    pub(super) include: bool,
    pub(super) verbose: Option<Verbose<io::Stderr>>,
    pub(super) silent: bool,
}

impl TransferOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(path) = &self.path else { return io::stdout().write_all(bytes) };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::create(path)?),
        };
        file.write_all(bytes)
    }

    /// Flushes stdout. After a success, creates the file of an empty body, too.
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

impl Listener for TransferOutput {
    fn event(&mut self, event: &Event<'_>) {
        match (&mut self.verbose, event) {
            (Some(verbose), event) => verbose.event(event),
            (None, Event::Warning(text)) if !self.silent => {
                errln!("firstflight: warning: {}", printable(text));
            }
            _ => {}
        }
    }

    fn head(&mut self, head: &Head) -> io::Result<()> {
        match (self.include, self.path.is_none() && io::stdout().is_terminal()) {
            (false, _) => Ok(()),
            (true, false) => self.write(&head.raw),
            (true, true) => self.write(escaped_head(&head.raw).as_bytes()),
        }
    }

    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)
    }
}

/// Escapes a head for a terminal, except its line breaks.
fn escaped_head(head: &[u8]) -> String {
    let mut text = String::new();
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        text.push_str(&printable_bytes(line.trim_ascii_end()));
        text.push_str(if line.ends_with(b"\n") { "\r\n" } else { "" });
    }
    text
}

/// Writes the text of `-w`. A broken pipe is not an error.
pub(super) fn write_out(template: Option<&Template>, report: &Report) -> io::Result<()> {
    for piece in template.map(|template| template.render(report)).unwrap_or_default() {
        let text = piece.text.as_bytes();
        ignore_broken_pipe(match piece.output {
            Output::Stdout => io::stdout().write_all(text).and_then(|()| io::stdout().flush()),
            Output::Stderr => io::stderr().write_all(text),
        })?;
    }
    Ok(())
}

/// Prints an error to standard error, with its exit code.
pub(super) fn print_error(quiet: bool, error: &ClientError) {
    // No message for `fetch | head`, unlike curl: nobody is left to read the body.
    let is_broken_pipe =
        matches!(error, ClientError::Write(cause) if cause.kind() == io::ErrorKind::BrokenPipe);
    if !quiet && !is_broken_pipe {
        let text = error.to_string();
        errln!("firstflight: ({}) {}", error.exit_code(), printable(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_on_a_terminal_has_no_control_sequences() {
        assert_eq!(
            escaped_head(b"HTTP/1.1 200 \xc2\x9b2J\r\nA: \x9bb\tc\nB: d\r\n\r\n"),
            "HTTP/1.1 200 \\u{9b}2J\r\nA: \\x9bb\\tc\r\nB: d\r\n\r\n"
        );
    }
}
