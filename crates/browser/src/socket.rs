//! Messages over a WebSocket (RFC 6455), as Firefox's remote agent has them.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, HandshakeError, Message, WebSocket};

use crate::Place;
use crate::line::Wire;

/// A WebSocket to a browser.
pub(crate) struct Socket(WebSocket<TcpStream>);

impl Socket {
    /// Connects, and asks for the WebSocket at `path`.
    pub(crate) fn open(
        place: &dyn Place,
        address: SocketAddr,
        path: &str,
        patience: Duration,
    ) -> io::Result<Self> {
        let stream = place.connect(address)?;
        stream.set_nodelay(true)?;
        let patience = patience.max(MIN_READ_TIMEOUT);
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let config = WebSocketConfig::default()
            .max_frame_size(MAX_MESSAGE_BYTES)
            .max_message_size(MAX_MESSAGE_BYTES);
        let url = format!("ws://{address}{path}");
        match tungstenite::client::client_with_config(url, stream, Some(config)) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(HandshakeError::Failure(error)) => Err(failure(error)),
            Err(HandshakeError::Interrupted(_)) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Wire for Socket {
    fn send(&mut self, message: &str) -> io::Result<()> {
        self.0.send(Message::text(message)).map_err(failure)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // A timeout of nothing would be none.
            self.0.get_ref().set_read_timeout(Some(left.max(MIN_READ_TIMEOUT)))?;
            match self.0.read().map_err(failure) {
                Ok(Message::Text(text)) => return Ok(Some(text.as_bytes().to_vec())),
                Ok(_) => {}
                Err(error) if is_over(&error) => {
                    if Instant::now() >= end {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_over(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn failure(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(ErrorKind::ConnectionAborted, other),
    }
}

const MIN_READ_TIMEOUT: Duration = Duration::from_millis(1);

/// More than any picture of a page.
const MAX_MESSAGE_BYTES: Option<usize> = Some(256 << 20);
