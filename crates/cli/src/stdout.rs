//! Printing to standard output. When its reader has closed the pipe (`| head`), the program ends
//! quietly, where `print!` of the standard library panics.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

/// Prints text, like `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::stdout::write(format_args!($($text)*)) };
}

/// Prints a line, like `println!`.
macro_rules! outln {
    () => { out!("\n") };
    ($($text:tt)*) => { out!("{}\n", format_args!($($text)*)) };
}

/// Writes to standard output, and ends the program if that fails.
pub(crate) fn write(text: Arguments<'_>) {
    let mut stdout = stdout().lock();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        exit(CLOSED_PIPE);
    }
    eprintln!("firstflight: cannot write to standard output: {error}; give it room, or a file");
    exit(2)
}

/// The exit code of programs that SIGPIPE ends: 128 and the signal's number.
const CLOSED_PIPE: i32 = 128 + 13;
