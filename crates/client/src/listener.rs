use std::io;
use std::net::SocketAddr;

use firstflight_tls::Handshake;
use http::{HeaderMap, StatusCode, Version};

/// Hears what happens in a transfer while it happens.
pub trait Listener {
    /// Something happened.
    fn event(&mut self, event: &Event<'_>) {
        let _ = event;
    }

    /// The head of a response is here (of each, where one leads to another).
    ///
    /// # Errors
    /// When it cannot be written; the transfer then ends.
    fn head(&mut self, head: &Head) -> io::Result<()> {
        let _ = head;
        Ok(())
    }

    /// The next bytes of the body.
    ///
    /// # Errors
    /// As above.
    fn body(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Keeps the body and drops the rest.
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
    /// The head as text with its empty line: as it came for HTTP/1.1 (with any informational
    /// heads before it), written in the same form for HTTP/2 and HTTP/3.
    pub raw: Vec<u8>,
}

/// What happened.
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
    /// TCP is connected, or left to the first write.
    Connected {
        /// The name or address that was requested.
        host: &'a str,
        /// The far end.
        peer: SocketAddr,
        /// Our end.
        local: Option<SocketAddr>,
        /// Whether TCP Fast Open was requested.
        fast_open: bool,
    },
    /// QUIC is connected: the handshake is complete.
    QuicConnected {
        /// The name or address that was requested.
        host: &'a str,
        /// The far end.
        peer: SocketAddr,
        /// Our end.
        local: Option<SocketAddr>,
        /// Whether an address token was sent along.
        token: bool,
    },
    /// TCP is tried beside QUIC, or instead.
    TryingTcp(&'a str),
    /// A session from the jar is offered.
    Resuming {
        /// Whether the request goes as early data.
        early_data: bool,
    },
    /// The TLS handshake is complete.
    Secured(&'a Handshake),
    /// The request's head left.
    RequestHead(&'a [u8]),
    /// The response's head came.
    ResponseHead(&'a [u8]),
    /// The request is sent once more.
    Retrying(&'a str),
    /// A redirection is followed.
    Redirected(&'a str),
    /// New sessions were put into the jar.
    SessionsKept(usize),
    /// New address tokens were put into the jar.
    TokensKept(usize),
    /// Something is odd, and it goes on.
    Warning(&'a str),
    /// The connection was closed.
    Closed,
}
