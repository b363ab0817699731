//! Carries messages to a browser: over pipes, or over a WebSocket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, HandshakeError, Message, WebSocket};

use crate::Environment;

/// Carries messages to and from a browser.
pub(crate) trait Transport: Send {
    /// Sends a message.
    fn send(&mut self, message: &str) -> io::Result<()>;

    /// Receives the next message. Returns `None` after the timeout.
    ///
    /// # Errors
    /// If no further message can come.
    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>>;
}

/// A pair of pipes, with a zero byte after each message (`--remote-debugging-pipe`).
pub(crate) struct Pipes {
    commands: Box<dyn Write + Send>,
    messages: Receiver<Vec<u8>>,
}

impl Pipes {
    /// Starts a thread that reads messages. It ends with the browser.
    pub(crate) fn new(
        commands: Box<dyn Write + Send>,
        responses: Box<dyn Read + Send>,
    ) -> io::Result<Self> {
        let (sender, messages) = channel();
        thread::Builder::new().name("chromium responses".to_owned()).spawn(move || {
            let mut responses = BufReader::new(responses);
            while let Ok(Some(message)) = read_message(&mut responses) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { commands, messages })
    }
}

impl Transport for Pipes {
    fn send(&mut self, message: &str) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(message.len() + 1);
        bytes.extend_from_slice(message.as_bytes());
        bytes.push(0);
        self.commands.write_all(&bytes)
    }

    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        match self.messages.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Reads the next message. Returns `None` at the end, also after an incomplete message.
fn read_message(responses: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    responses.take(MAX_MESSAGE_BYTES as u64).read_until(0, &mut message)?;
    Ok((message.pop() == Some(0)).then_some(message))
}

/// A WebSocket (RFC 6455), as in Firefox's remote agent.
pub(crate) struct Socket(WebSocket<TcpStream>);

impl Socket {
    /// Connects to the WebSocket at `path`.
    pub(crate) fn open(
        environment: &dyn Environment,
        address: SocketAddr,
        path: &str,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stream = environment.connect(address)?;
        stream.set_nodelay(true)?;
        let timeout = timeout.max(MIN_READ_TIMEOUT);
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let config = WebSocketConfig::default()
            .max_frame_size(Some(MAX_MESSAGE_BYTES))
            .max_message_size(Some(MAX_MESSAGE_BYTES));
        let url = format!("ws://{address}{path}");
        match tungstenite::client::client_with_config(url, stream, Some(config)) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(HandshakeError::Failure(error)) => Err(failure(error)),
            Err(HandshakeError::Interrupted(_)) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Transport for Socket {
    fn send(&mut self, message: &str) -> io::Result<()> {
        self.0.send(Message::text(message)).map_err(failure)
    }

    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // A zero timeout would mean no timeout.
            self.0.get_ref().set_read_timeout(Some(left.max(MIN_READ_TIMEOUT)))?;
            match self.0.read().map_err(failure) {
                Ok(Message::Text(text)) => return Ok(Some(text.as_bytes().to_vec())),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {
                    if Instant::now() >= end {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn failure(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(ErrorKind::ConnectionAborted, other),
    }
}

const MIN_READ_TIMEOUT: Duration = Duration::from_millis(1);

/// Larger than any screenshot.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_a_zero_byte() {
        let mut bytes = &b"{\"id\":1}\0\0{}\0{\"cut"[..];
        let mut all = Vec::new();
        while let Some(message) = read_message(&mut bytes).unwrap() {
            all.push(String::from_utf8(message).unwrap());
        }
        assert_eq!(all, ["{\"id\":1}", "", "{}"]);
    }
}
