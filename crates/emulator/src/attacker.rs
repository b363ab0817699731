//! The attacker: resends a captured first flight, byte for byte, over new connections.
//!
//! It is next to the server, without delay, and cannot complete a handshake, because it has no
//! keys.

mod datagrams;

pub use datagrams::ResendDatagrams;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::{LinkError, Namespace};

/// What to resend over TCP, and how.
#[derive(Debug, Clone, Copy)]
pub struct Resend<'a> {
    /// Any address of the server.
    pub server: SocketAddr,
    /// The TCP payload of the captured first flight.
    pub flight: &'a [u8],
    /// The number of attempts.
    pub attempts: usize,
    /// How many attempts connect first and then send at the same time, so that they race (at most
    /// 256).
    pub concurrent: usize,
    /// How long a server may be silent before its response counts as complete; must be long enough
    /// for executing the request. Limits each step of an attempt; connecting has one second more, so
    /// that a lost SYN is resent.
    pub idle_timeout: Duration,
}

/// The result of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The length of the server's response in bytes.
    pub bytes_received: u64,
    /// How the connection ended.
    pub end: ConnectionEnd,
}

/// How the connection of an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionEnd {
    /// The server closed the connection in an orderly way.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The server became silent, even after the attacker closed its side.
    Silent,
    /// The server continued to send beyond 64 MiB or a minute.
    Endless,
    /// The connection could not be opened, or failed in another way.
    Failed(ErrorKind),
}

/// The position next to the server from which the attacks are run.
#[derive(Debug)]
pub struct Attacker {
    namespace: Namespace,
}

impl Attacker {
    pub(crate) fn new(namespace: Namespace) -> Self {
        Self { namespace }
    }

    /// The attacker's namespace, for other kinds of attacks.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Resends a first flight over TCP and returns the result of each attempt.
    ///
    /// Each attempt sends the flight, reads until the server is quiet, closes its side (some
    /// servers only then execute pending requests), and reads again. An attempt whose server
    /// neither closes nor becomes silent ends after a minute.
    ///
    /// # Errors
    /// If the attempts cannot be started. What a server does is a result, not an error.
    pub fn resend(&self, resend: &Resend<'_>) -> Result<Vec<Attempt>, LinkError> {
        let concurrent = resend.concurrent.clamp(1, MAX_CONCURRENT);
        self.namespace.run(|| {
            let mut attempts = Vec::with_capacity(resend.attempts);
            while attempts.len() < resend.attempts {
                let size = concurrent.min(resend.attempts - attempts.len());
                attempts.append(&mut round(resend, size)?);
            }
            Ok(attempts)
        })?
    }
}

/// One round of attempts: all connect, then all send, then all are read.
fn round(resend: &Resend<'_>, size: usize) -> Result<Vec<Attempt>, LinkError> {
    let limit = resend.idle_timeout + SYN_TIMEOUT;
    let connect = |_| TcpStream::connect_timeout(&resend.server, limit);
    let streams: Vec<_> = (0..size).map(connect).collect();
    let mut attempts: Vec<_> =
        streams.into_iter().map(|stream| AttemptState::send(stream, resend)).collect();
    loop {
        let now = Instant::now();
        attempts.iter_mut().for_each(|attempt| attempt.advance(now, resend.idle_timeout));
        if !wait(&attempts, now)? {
            return Ok(attempts.iter().map(AttemptState::attempt).collect());
        }
    }
}

/// Waits until an attempt can continue. Returns false if all have ended.
fn wait(attempts: &[AttemptState], now: Instant) -> Result<bool, LinkError> {
    let open = attempts.iter().filter_map(|attempt| match &attempt.state {
        State::Open { stream, deadline, .. } => Some((stream, *deadline)),
        State::Ended(_) => None,
    });
    let (mut descriptors, deadlines): (Vec<_>, Vec<_>) =
        open.map(|(stream, deadline)| (readable(stream.as_fd()), deadline)).unzip();
    let Some(earliest) = deadlines.into_iter().min() else {
        return Ok(false);
    };
    wait_for(&mut descriptors, earliest, now).map(|()| true)
}

fn readable(socket: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(socket, PollFlags::POLLIN)
}

/// Waits until a descriptor is readable, or until the deadline.
fn wait_for(
    descriptors: &mut [PollFd<'_>],
    deadline: Instant,
    now: Instant,
) -> Result<(), LinkError> {
    let limit = TimeSpec::from_duration(deadline.saturating_duration_since(now));
    match ppoll(descriptors, Some(limit), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(LinkError::system("listen to the attacked server", errno)),
    }
}

struct AttemptState {
    bytes_received: u64,
    /// Ends an attempt whose server sends slowly forever.
    limit: Instant,
    state: State,
}

enum State {
    Open {
        stream: TcpStream,
        /// When the server counts as quiet.
        deadline: Instant,
        half_closed: bool,
    },
    Ended(ConnectionEnd),
}

impl AttemptState {
    fn send(stream: io::Result<TcpStream>, resend: &Resend<'_>) -> Self {
        let sent = stream.and_then(|mut stream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(resend.idle_timeout))?;
            stream.write_all(resend.flight)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let state = match sent {
            Ok(stream) => {
                let deadline = Instant::now() + resend.idle_timeout;
                State::Open { stream, deadline, half_closed: false }
            }
            Err(error) => State::Ended(connection_end(error.kind())),
        };
        Self { bytes_received: 0, limit: Instant::now() + MAX_ATTEMPT_DURATION, state }
    }

    /// Reads what is available, and closes the attacker's side or ends the attempt when the server
    /// has been quiet.
    fn advance(&mut self, now: Instant, idle_timeout: Duration) {
        let State::Open { stream, deadline, half_closed } = &mut self.state else {
            return;
        };
        let ended = loop {
            match stream.read(&mut [0; 16_384]) {
                Ok(0) => break Some(ConnectionEnd::Closed),
                Ok(count) => {
                    self.bytes_received += count as u64;
                    *deadline = now + idle_timeout;
                    if self.bytes_received > MAX_BYTES || now > self.limit {
                        break Some(ConnectionEnd::Endless);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock if now < *deadline => break None,
                    ErrorKind::WouldBlock if *half_closed => break Some(ConnectionEnd::Silent),
                    ErrorKind::WouldBlock => {
                        (*half_closed, *deadline) = (true, now + idle_timeout);
                        // If the server has reset the connection, the next read fails.
                        let _ = stream.shutdown(Shutdown::Write);
                        break None;
                    }
                    kind => break Some(connection_end(kind)),
                },
            }
        };
        if let Some(end) = ended {
            self.state = State::Ended(end);
        }
    }

    fn attempt(&self) -> Attempt {
        let end = match self.state {
            State::Ended(end) => end,
            State::Open { .. } => ConnectionEnd::Silent,
        };
        Attempt { bytes_received: self.bytes_received, end }
    }
}

fn connection_end(kind: ErrorKind) -> ConnectionEnd {
    match kind {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ConnectionEnd::Reset,
        kind => ConnectionEnd::Failed(kind),
    }
}

/// Concurrent connections of one round; below the usual limit of descriptors.
const MAX_CONCURRENT: usize = 256;
/// More than any response to a first flight.
const MAX_BYTES: u64 = 64 << 20;
const MAX_ATTEMPT_DURATION: Duration = Duration::from_secs(60);
/// When the kernel resends a SYN (RFC 6298 section 2.1).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
