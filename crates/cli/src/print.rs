//! Printing to standard output and standard error, where `print!` and `eprintln!` of the standard
//! library panic if that fails. When the reader of standard output has closed the pipe (`| head`),
//! the program ends quietly. Without standard error it goes on.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write, stderr, stdout};
use std::process::exit;

/// Prints text, like `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::print::write(format_args!($($text)*)) };
}

/// Prints a line, like `println!`.
macro_rules! outln {
    () => { out!("\n") };
    ($($text:tt)*) => { out!("{}\n", format_args!($($text)*)) };
}

/// Prints text to standard error, like `eprint!`.
macro_rules! err {
    ($($text:tt)*) => { $crate::print::write_error(format_args!($($text)*)) };
}

/// Prints a line to standard error, like `eprintln!`.
macro_rules! errln {
    ($($text:tt)*) => { err!("{}\n", format_args!($($text)*)) };
}

/// Writes to standard output, and ends the program if that fails.
pub(crate) fn write(text: Arguments<'_>) {
    let mut stdout = stdout().lock();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        exit(CLOSED_PIPE);
    }
    errln!("firstflight: {}", no_room(&error));
    exit(2)
}

/// Writes to standard error. There is nowhere to report that this fails.
pub(crate) fn write_error(text: Arguments<'_>) {
    let _ = stderr().lock().write_fmt(text);
}

/// Why nothing can be written to standard output.
pub(crate) fn no_room(error: &io::Error) -> String {
    format!("cannot write to standard output: {error}; give it room, or a file")
}

/// The result of a write, without the error that its reader has closed the pipe.
pub(crate) fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| match error.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })
}

/// An error and its causes. Many messages contain their cause already.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The exit code of programs that SIGPIPE ends: 128 and the signal's number.
const CLOSED_PIPE: i32 = 128 + 13;

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_cause_that_the_message_contains_is_not_repeated() {
        let reason = || io::Error::other("no room");
        let contained = Err::<(), _>(reason()).context("cannot write a: no room; remove b");
        let contained = contained.context("cannot start").unwrap_err();
        assert_eq!(with_causes(&contained), "cannot start: cannot write a: no room; remove b");
        let other = Err::<(), _>(reason()).context("cannot write a").unwrap_err();
        assert_eq!(with_causes(&other), "cannot write a: no room");
        assert_eq!(with_causes(&anyhow!("alone")), "alone");
    }

    #[test]
    fn only_a_closed_pipe_is_no_error() {
        unless_closed(Ok(())).unwrap();
        unless_closed(Err(ErrorKind::BrokenPipe.into())).unwrap();
        unless_closed(Err(ErrorKind::StorageFull.into())).unwrap_err();
    }
}
