//! Third-party clients for HTTP/1.1 over TCP: curl, `openssl s_client` and gnutls-cli.
//!
//! curl and gnutls-cli keep sessions only within a process, so a resumed connection follows a full
//! one in the same process. Only the last connection is the sample.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use firstflight_samples::RequestedConnection;
use firstflight_tls::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Invocation;
use crate::servers::{HOST, find};
use crate::{ClientKind, HandshakeKind, HttpVersion, Workload};

/// Says why one of these clients cannot make a connection. Returns `None` if it can.
pub(super) fn unsupported_reason(
    client: ClientKind,
    requested: &RequestedConnection,
) -> Option<&'static str> {
    if requested.http != HttpVersion::One || requested.workload != Workload::Get {
        return Some("without anything but HTTP/1.1 over TCP");
    }
    if requested.tfo {
        return Some("without TCP Fast Open: the lab does not request it from third-party clients");
    }
    if requested.version != Version::Tls13 {
        // curl and gnutls-cli log no secrets of resumed sessions of TLS 1.2, which would identify
        // their packets.
        return Some("before TLS 1.3: key logs lack resumed sessions");
    }
    match (client, program(client)) {
        (ClientKind::Curl, None) => Some("not at all: install it (apt-get install curl)"),
        (ClientKind::OpenSsl, None) => Some("not at all: install it (apt-get install openssl)"),
        (_, None) => Some("not at all: install it (apt-get install gnutls-bin)"),
        (ClientKind::Curl, Some(_)) if requested.kind.is_early() => Some(
            "without 0-RTT: versions before 8.11 send no early data, and the lab does not use that \
             of later ones",
        ),
        _ => None,
    }
}

/// The program of a client, if it is installed.
fn program(client: ClientKind) -> Option<std::path::PathBuf> {
    find(match client {
        ClientKind::Curl => "curl",
        ClientKind::OpenSsl => "openssl",
        _ => "gnutls-cli",
    })
}

/// A client's command, and the console that feeds its input if it needs any.
pub(super) fn command(
    invocation: &Invocation<'_>,
    trust: &Path,
) -> io::Result<(Command, Option<Console>)> {
    match invocation.client {
        ClientKind::Curl => Ok((curl(invocation, trust), None)),
        ClientKind::OpenSsl => s_client(invocation, trust),
        _ => gnutls_cli(invocation, trust),
    }
}

fn curl(invocation: &Invocation<'_>, trust: &Path) -> Command {
    let Invocation { address, requested, keys, .. } = invocation;
    let mut command = Command::new("curl");
    // The user's .curlrc must not change what is measured.
    command.args(["-q", "--silent", "--http1.1", "--noproxy", "*", "--header", CLOSE]);
    command.env("SSLKEYLOGFILE", keys).arg("--cacert").arg(trust);
    command.arg("--resolve").arg(format!("{HOST}:{}:{}", address.port(), address.ip()));
    command.args(["--tlsv1.3", "--tls-max", "1.3"]);
    let url = format!("https://{HOST}:{}{}", address.port(), requested.size.path());
    let connections = if requested.kind == HandshakeKind::Full { 1 } else { 2 };
    for _ in 0..connections {
        command.args(["--output", "/dev/null", &url]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn s_client(invocation: &Invocation<'_>, trust: &Path) -> io::Result<(Command, Option<Console>)> {
    let Invocation { address, requested, state, keys, .. } = invocation;
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-alpn", "http/1.1", "-servername", HOST]);
    command.args(["-verify_hostname", HOST, "-verify_return_error", "-CAfile"]).arg(trust);
    command.args(["-connect", &address.to_string(), "-keylogfile"]).arg(keys);
    command.arg("-tls1_3");
    let session = state.join("session");
    if requested.kind != HandshakeKind::Full {
        command.arg("-sess_in").arg(&session);
    }
    // Saves the session for the next connection.
    command.arg("-sess_out").arg(&session);
    let request = request(requested, true);
    let mut lines = Vec::new();
    if requested.kind.is_early() {
        let early = state.join("early-data");
        std::fs::write(&early, request)?;
        command.arg("-early_data").arg(early);
    } else {
        lines.push(request);
    }
    let (console, theirs) = Console::new(lines, 0)?;
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    Ok((command, Some(console)))
}

fn gnutls_cli(invocation: &Invocation<'_>, trust: &Path) -> io::Result<(Command, Option<Console>)> {
    let Invocation { address, requested, state, keys, .. } = invocation;
    let mut command = Command::new("gnutls-cli");
    command.args(["--logfile=/dev/null", "--alpn=http/1.1", "--inline-commands"]);
    command.arg(format!("--sni-hostname={HOST}")).arg(format!("--verify-hostname={HOST}"));
    command.arg("--priority=NORMAL:-VERS-ALL:+VERS-TLS1.3");
    command.arg("--x509cafile").arg(trust).env("SSLKEYLOGFILE", keys);
    let last = request(requested, true);
    let lines = match requested.kind {
        HandshakeKind::Full => vec![last],
        // Servers send tickets with the response, so the first connection makes a request as well.
        kind => {
            let mut lines = vec![request(requested, false), b"^resume^\n".to_vec()];
            if kind.is_early() {
                let early = state.join("early-data");
                std::fs::write(&early, last)?;
                command.arg("--earlydata").arg(early);
            } else {
                lines.push(last);
            }
            lines
        }
    };
    command.arg("--port").arg(address.port().to_string()).arg(address.ip().to_string());
    let (console, theirs) = Console::new(lines, requested.size.bytes())?;
    command.stdin(Stdio::from(theirs.try_clone()?)).stdout(Stdio::from(theirs));
    command.stderr(Stdio::null());
    Ok((command, Some(console)))
}

const CLOSE: &str = "Connection: close";

/// A GET over HTTP/1.1. If `last` is set, the connection ends with the response.
fn request(requested: &RequestedConnection, last: bool) -> Vec<u8> {
    let close = if last { format!("{CLOSE}\r\n") } else { String::new() };
    format!("GET {} HTTP/1.1\r\nHost: {HOST}\r\n{close}\r\n", requested.size.path()).into_bytes()
}

/// The standard input of a client, and for some its output. It stays open until the client ends: at
/// the end of its input, gnutls-cli would close its side of the connection.
pub(super) struct Console {
    stream: UnixStream,
    lines: Vec<Vec<u8>>,
    /// The length of the response's body, which is awaited after the first line.
    body_bytes: usize,
}

impl Console {
    /// A console, and the client's end of it.
    fn new(lines: Vec<Vec<u8>>, body_bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((Self { stream: UnixStream::from_std(ours)?, lines, body_bytes }, theirs.into()))
    }

    /// Writes the lines, and reads until the client ends. An error counts as its end.
    pub(super) async fn run(mut self) {
        let mut received = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            while index == 1 && !has_response(&received, self.body_bytes) {
                if !matches!(self.stream.read_buf(&mut received).await, Ok(1..)) {
                    return;
                }
            }
            if self.stream.write_all(line).await.is_err() {
                return;
            }
        }
        while matches!(self.stream.read_buf(&mut received).await, Ok(1..)) {
            received.clear();
        }
    }
}

/// Whether a response with a body of this length is complete.
fn has_response(received: &[u8], body_bytes: usize) -> bool {
    const END_OF_HEADERS: &[u8] = b"\r\n\r\n";
    let end = received.windows(END_OF_HEADERS.len()).position(|bytes| bytes == END_OF_HEADERS);
    end.is_some_and(|end| received.len() >= end + END_OF_HEADERS.len() + body_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_body() {
        assert!(!has_response(b"HTTP/1.1 200 OK\r\nA: b\r\n", 0));
        assert!(!has_response(b"HTTP/1.1 200 OK\r\n\r\nabc", 4));
        assert!(has_response(b"HTTP/1.1 200 OK\r\n\r\nabcd", 4));
    }
}
