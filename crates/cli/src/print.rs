//! Printing to standard output and standard error, where `print!` and `eprintln!` of the standard
//! library panic if that fails. When the reader of standard output has closed the pipe (`| head`),
//! the program ends quietly. Failures to write to standard error are ignored.

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
        exit(EXIT_CODE_SIGPIPE);
    }
    errln!("firstflight: {}", stdout_failure(&error));
    exit(2)
}

/// Writes to standard error. There is nowhere to report that this fails.
pub(crate) fn write_error(text: Arguments<'_>) {
    let _ = stderr().lock().write_fmt(text);
}

/// The message for a failed write to standard output.
pub(crate) fn stdout_failure(error: &io::Error) -> String {
    format!(
        "cannot write to standard output: {error}; free some space, or redirect it to another file"
    )
}

/// Treats a broken pipe as success: nobody reads the output any more.
pub(crate) fn ignore_broken_pipe(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.kind() {
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

/// The exit code that shells report for a program ended by SIGPIPE: 128 plus the signal's number.
const EXIT_CODE_SIGPIPE: i32 = 128 + 13;

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
    fn only_a_broken_pipe_is_ignored() {
        ignore_broken_pipe(Ok(())).unwrap();
        ignore_broken_pipe(Err(ErrorKind::BrokenPipe.into())).unwrap();
        ignore_broken_pipe(Err(ErrorKind::StorageFull.into())).unwrap_err();
    }
}
