//! `openssl s_client` as a client, and the contents of its session files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::program::run;

/// The result of a connection, with the session that it saved to a file.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) file: PathBuf,
    pub(crate) reused: bool,
    /// The name in the ticket of the key that sealed it.
    pub(crate) key: String,
    /// The lifetime of the ticket in seconds; 0 if there is no new one.
    pub(crate) lifetime: u64,
}

/// Sends a request with OpenSSL, which saves the last ticket to a file in `dir`.
pub(crate) fn connect(dir: &Path, port: u16, session: Option<&Session>) -> Session {
    let file = tempfile::Builder::new().prefix("session").tempfile_in(dir).unwrap();
    let (_, file) = file.keep().unwrap();
    let offered = match session {
        Some(session) => format!("-sess_in {}", session.file.display()),
        None => String::new(),
    };
    let script = format!(
        "printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' | openssl \
         s_client -connect 127.0.0.1:{port} -servername localhost -tls1_3 -ign_eof {offered} \
         -sess_out {}",
        file.display()
    );
    let ended = run(Command::new("sh").args(["-c", &script]));
    assert!(ended.out.contains("TLSv1.3, Cipher is"), "{ended:?}");
    let reused = ended.out.contains("Reused, TLSv1.3");
    let mut show = Command::new("openssl");
    let shown = run(show.args(["sess_id", "-noout", "-text", "-in"]).arg(&file));
    let dump = shown.out.lines().skip_while(|line| !line.contains("TLS session ticket:")).nth(1);
    let key = dump.and_then(|line| line.trim().get(7..54)).unwrap_or_default().to_owned();
    let hint = shown.out.lines().find_map(|line| line.trim().strip_prefix(LIFETIME));
    let lifetime = hint.and_then(|hint| hint.split(' ').next()?.parse().ok()).unwrap_or_default();
    // HAProxy issues no new ticket after it has accepted one under the current key.
    assert!(reused || key.len() == 47, "16 bytes in hexadecimal: {shown:?}");
    Session { file, reused, key, lifetime }
}

const LIFETIME: &str = "TLS session ticket lifetime hint: ";
