//! A shell in a machine, to which commands are given one after the other.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What stands behind the output of each script. No program of a guide says that by itself.
const MARK: &str = "\u{1}end of script";

/// bash with its variables, its directory and its jobs, until it is dropped. Standard error goes
/// where standard output goes, as in a terminal.
pub struct Shell {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Shell {
    pub(super) fn start(mut command: Command) -> Self {
        let mut child = command
            .args(["-c", "exec /bin/bash 2>&1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter, of util-linux");
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, to, from }
    }

    /// Runs commands as if they had been typed, up to the first that fails. They have no input.
    ///
    /// # Errors
    /// The output, if a command failed. The shell has ended then.
    pub fn run(&mut self, script: &str) -> Result<String, String> {
        let quoted = script.replace('\'', r"'\''");
        let line = format!("set -e; eval '{quoted}' </dev/null; printf '%s\\n' '{MARK}'\n");
        let written = self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush());
        let mut said = String::new();
        if written.is_err() {
            return Err(said);
        }
        loop {
            let mut line = Vec::new();
            let length = self.from.read_until(b'\n', &mut line).unwrap_or(0);
            let line = String::from_utf8_lossy(&line);
            if length == 0 {
                return Err(said);
            }
            // The last line of a script may lack its end.
            if let Some(rest) = line.strip_suffix(&format!("{MARK}\n")) {
                said += rest;
                return Ok(said);
            }
            said += &line;
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
