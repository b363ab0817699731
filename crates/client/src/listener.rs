use std::io;
use std::io::Write;
use std::net::SocketAddr;

use firstflight_tls::{EarlyData, Handshake};
use firstflight_units::printable_bytes;
use http::{HeaderMap, StatusCode, Version};

/// Receives the events of a transfer as they happen.
pub trait Listener {
    /// An event.
    fn event(&mut self, event: &Event<'_>) {
        let _ = event;
    }

    /// A response head, including those of redirections.
    ///
    /// # Errors
    /// If it cannot be written; the transfer then ends.
    fn head(&mut self, head: &Head) -> io::Result<()> {
        let _ = head;
        Ok(())
    }

    /// The next bytes of the body.
    ///
    /// # Errors
    /// If they cannot be written; the transfer then ends.
    fn body(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Collects the body and ignores the rest.
impl Listener for Vec<u8> {
    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct Head {
    /// The HTTP version.
    pub version: Version,
    /// The status.
    pub status: StatusCode,
    /// The fields.
    pub headers: HeaderMap,
    /// The head as text, including the empty line: as received for HTTP/1.1 (with informational heads
    /// before it), in the same form for HTTP/2 and HTTP/3.
    pub raw: Vec<u8>,
}

/// An event of a transfer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A name was resolved.
    Resolved {
        /// The name.
        host: &'a str,
        /// Its addresses in order.
        addresses: &'a [SocketAddr],
    },
    /// TCP is connected, or will be with the first write.
    Connected {
        /// The name or address that was requested.
        host: &'a str,
        /// Address of the server.
        peer: SocketAddr,
        /// Local address.
        local: Option<SocketAddr>,
        /// Whether TCP Fast Open was requested.
        fast_open: bool,
    },
    /// QUIC is connected: the handshake is complete.
    QuicConnected {
        /// The name or address that was requested.
        host: &'a str,
        /// Address of the server.
        peer: SocketAddr,
        /// Local address.
        local: Option<SocketAddr>,
        /// Whether an address token was sent.
        token: bool,
    },
    /// TCP is tried in addition to QUIC, or instead; with the reason.
    TryingTcp(&'a str),
    /// A session from the jar is offered.
    Resuming {
        /// Whether the request is sent as early data.
        early_data: bool,
    },
    /// The TLS handshake is complete.
    Secured(&'a Handshake),
    /// The request head was sent.
    RequestHead(&'a [u8]),
    /// The response head was received.
    ResponseHead(&'a [u8]),
    /// The request is sent again; with the reason.
    Retrying(&'a str),
    /// A redirection is followed.
    Redirected(&'a str),
    /// New sessions were stored in the jar.
    SessionsStored(usize),
    /// New address tokens were stored in the jar.
    TokensStored(usize),
    /// A warning; the transfer continues.
    Warning(&'a str),
    /// The connection was closed.
    Closed,
}

/// Writes events like curl's `-v`: `* ` for events, `> ` and `< ` for heads. Control characters are
/// escaped, because much of the text comes from the server.
pub struct Verbose<W>(pub W);

impl<W: Write> Verbose<W> {
    /// Writes one event. Write errors are ignored.
    pub fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Resolved { host, addresses } => {
                let list: Vec<String> = addresses.iter().map(|a| a.ip().to_string()).collect();
                self.note(&format!("Host {host} resolved to {}", list.join(", ")));
            }
            Event::Connected { host, peer, local, fast_open } => {
                let from = local.map_or_else(String::new, |local| format!(" from {local}"));
                let how = if *fast_open { ", with TCP Fast Open" } else { "" };
                self.note(&format!("Connected to {host} ({peer}){from}{how}"));
            }
            Event::QuicConnected { host, peer, local, token } => {
                let from = local.map_or_else(String::new, |local| format!(" from {local}"));
                let how = if *token { ", with an address token" } else { "" };
                self.note(&format!("Connected to {host} ({peer}){from} over QUIC{how}"));
            }
            Event::TryingTcp(why) => self.note(&format!("Trying TCP: {why}")),
            Event::Resuming { early_data } => self.note(match early_data {
                true => "TLS: offering a session, and the request as early data",
                false => "TLS: offering a session",
            }),
            Event::Secured(facts) => self.secured(facts),
            Event::RequestHead(head) => self.head("> ", head),
            Event::ResponseHead(head) => self.head("< ", head),
            Event::Retrying(why) => self.note(&format!("Sending the request again: {why}")),
            Event::Redirected(to) => self.note(&format!("Following the redirection to {to}")),
            Event::SessionsStored(count) => {
                self.note(&format!("TLS: {count} new session(s) stored in the jar"));
            }
            Event::TokensStored(count) => {
                self.note(&format!("QUIC: {count} new address token(s) stored in the jar"));
            }
            Event::Warning(text) => self.note(&format!("Warning: {text}")),
            Event::Closed => self.note("Connection closed"),
        }
    }

    fn secured(&mut self, facts: &Handshake) {
        self.note(&format!(
            "TLS: {} / {} / {}",
            facts.version.map_or("?", |version| version.name()),
            facts.cipher.unwrap_or("?"),
            facts.group.unwrap_or("no group"),
        ));
        let alpn = match &facts.alpn {
            Some(alpn) => format!("ALPN {}", String::from_utf8_lossy(alpn)),
            None => "no ALPN".to_owned(),
        };
        let resumed = if facts.resumed { "session resumed" } else { "full handshake" };
        self.note(&format!("TLS: {resumed}, {alpn}"));
        if let Some(authority) = &facts.authority {
            self.note(&format!("TLS: certificate verified by \"{authority}\""));
        }
        match facts.early_data {
            EarlyData::Accepted => self.note("TLS: early data accepted"),
            EarlyData::Refused => self.note(&format!(
                "TLS: early data refused ({}); the request was sent again after the handshake",
                facts.early_data_reason
            )),
            EarlyData::NotOffered | EarlyData::Pending => {}
        }
    }

    fn note(&mut self, text: &str) {
        self.line("* ", text.as_bytes());
    }

    fn head(&mut self, prefix: &str, head: &[u8]) {
        let text = head.strip_suffix(b"\r\n").unwrap_or(head);
        for line in text.split(|byte| *byte == b'\n') {
            self.line(prefix, line.strip_suffix(b"\r").unwrap_or(line));
        }
    }

    fn line(&mut self, prefix: &str, text: &[u8]) {
        let line = format!("{prefix}{}\n", printable_bytes(text));
        let _ = self.0.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_from_a_server_are_escaped() {
        let mut verbose = Verbose(Vec::new());
        verbose.event(&Event::ResponseHead(b"HTTP/1.1 200 OK\r\nA: \xc2\x9b2J\x9b\x1b\tb\r\n\r\n"));
        verbose.event(&Event::TryingTcp("\u{9b}2J\n::error::"));
        assert_eq!(
            String::from_utf8(verbose.0).unwrap(),
            "< HTTP/1.1 200 OK\n< A: \\u{9b}2J\\x9b\\u{1b}\\tb\n< \n* Trying TCP: \\u{9b}2J\\n::error::\n"
        );
    }

    #[test]
    fn heads_are_written_line_by_line_with_their_empty_line() {
        let mut verbose = Verbose(Vec::new());
        verbose.event(&Event::ResponseHead(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"));
        verbose.event(&Event::Closed);
        assert_eq!(
            String::from_utf8(verbose.0).unwrap(),
            "< HTTP/1.1 200 OK\n< A: b\n< \n* Connection closed\n"
        );
    }
}
