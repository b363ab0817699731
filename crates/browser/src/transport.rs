//! Carries messages to a browser: over pipes, or over a WebSocket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, HandshakeError, Message, WebSocket};

use crate::Environment;

/// Carries messages to and from a browser.
pub(crate) trait Transport: Send {
    /// Sends a message.
    ///
    /// # Errors
    /// `WouldBlock` if the browser has not read the whole message after the timeout.
    fn send(&mut self, message: &str, timeout: Duration) -> io::Result<()>;

    /// Receives the next message. Returns `None` after the timeout.
    ///
    /// # Errors
    /// If no further message can come.
    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>>;
}

/// A pair of pipes, with a zero byte after each message (`--remote-debugging-pipe`).
pub(crate) struct Pipes {
    commands: ChildStdin,
    messages: Receiver<Vec<u8>>,
}

impl Pipes {
    /// Starts a thread that reads messages. It ends with the browser.
    pub(crate) fn new(commands: ChildStdin, responses: Box<dyn Read + Send>) -> io::Result<Self> {
        ioctl_fionbio(&commands, true)?;
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
    fn send(&mut self, message: &str, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let bytes = [message.as_bytes(), &[0]].concat();
        let mut remaining = &bytes[..];
        while !remaining.is_empty() {
            match self.commands.write(remaining) {
                Ok(written) => remaining = &remaining[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    await_writable(&self.commands, deadline)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        match self.messages.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Waits until a pipe can be written to.
///
/// # Errors
/// `WouldBlock` at the deadline.
fn await_writable(pipe: &ChildStdin, deadline: Instant) -> io::Result<()> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    let remaining = Timespec::try_from(remaining).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(pipe, PollFlags::OUT)], Some(&remaining)) {
        Ok(0) => Err(ErrorKind::WouldBlock.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads the next message. Returns `None` at the end of the stream, also after an incomplete message.
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
        let timeout = timeout.max(MIN_TIMEOUT);
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let config = WebSocketConfig::default()
            .max_frame_size(Some(MAX_MESSAGE_BYTES))
            .max_message_size(Some(MAX_MESSAGE_BYTES));
        let url = format!("ws://{address}{path}");
        match tungstenite::client::client_with_config(url, stream, Some(config)) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(HandshakeError::Failure(error)) => Err(to_io_error(error)),
            Err(HandshakeError::Interrupted(_)) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Transport for Socket {
    fn send(&mut self, message: &str, timeout: Duration) -> io::Result<()> {
        self.0.get_ref().set_write_timeout(Some(timeout.max(MIN_TIMEOUT)))?;
        self.0.send(Message::text(message)).map_err(to_io_error)
    }

    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + timeout;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            self.0.get_ref().set_read_timeout(Some(remaining.max(MIN_TIMEOUT)))?;
            match self.0.read().map_err(to_io_error) {
                Ok(Message::Text(text)) => return Ok(Some(text.as_bytes().to_vec())),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {
                    if Instant::now() >= deadline {
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

fn to_io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(ErrorKind::ConnectionAborted, other),
    }
}

/// Sockets do not accept a timeout of zero.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// Larger than any screenshot.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn piped(program: &str, argument: &str) -> Child {
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    /// More than the capacity of a pipe.
    const MESSAGE_BYTES: usize = 1 << 20;

    #[test]
    fn a_message_that_is_longer_than_the_pipe_arrives_whole() {
        let mut echo = piped("cat", "-");
        let (commands, responses) = (echo.stdin.take().unwrap(), echo.stdout.take().unwrap());
        let mut pipes = Pipes::new(commands, Box::new(responses)).unwrap();
        let message = "x".repeat(MESSAGE_BYTES);
        let timeout = Duration::from_secs(60);
        pipes.send(&message, timeout).unwrap();
        assert_eq!(pipes.receive(timeout).unwrap().unwrap(), message.as_bytes());
        drop(pipes);
        echo.wait().unwrap();
    }

    #[test]
    fn a_browser_that_reads_no_commands_does_not_block() {
        let mut silent = piped("sleep", "4711");
        let commands = silent.stdin.take().unwrap();
        let mut pipes = Pipes::new(commands, Box::new(io::empty())).unwrap();
        let sent = pipes.send(&"x".repeat(MESSAGE_BYTES), Duration::from_millis(10));
        silent.kill().unwrap();
        silent.wait().unwrap();
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::WouldBlock);
    }

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
