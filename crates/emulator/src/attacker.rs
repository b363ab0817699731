//! The attacker: resends a captured first flight, byte for byte, over connections of its own.
//!
//! It stands beside the server, without delay, and cannot finish a handshake: it has no keys.

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
    /// How often.
    pub tries: usize,
    /// How many tries connect first and then send together, so that they race (at most 256).
    pub concurrent: usize,
    /// How long a server may be silent before it counts as having no more to say. Long enough for
    /// it to have executed the request; bounds each step of a try.
    pub quiet: Duration,
}

/// What became of one try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// How many bytes the server answered.
    pub bytes_received: u64,
    /// How it ended.
    pub ending: Ending,
}

/// How a try ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The server closed the connection in an orderly way.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The server fell silent, also after the attacker had closed its side.
    Silent,
    /// The server kept talking beyond 64 MiB or a minute.
    Endless,
    /// There was no connection, or it failed in another way.
    Failed(ErrorKind),
}

/// A place beside the server from which it is attacked.
#[derive(Debug)]
pub struct Attacker {
    namespace: Namespace,
}

impl Attacker {
    pub(crate) fn new(namespace: Namespace) -> Self {
        Self { namespace }
    }

    /// The attacker's namespace, for attacks of another kind.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Resends a first flight over TCP and returns what became of each try.
    ///
    /// Each try sends the flight, listens until the server is quiet, closes its side (some servers
    /// only then execute what they hold), and listens once more. A try whose server neither closes
    /// nor falls silent ends after a minute.
    ///
    /// # Errors
    /// If the tries cannot be started; what a server does is a result, not an error.
    pub fn resend(&self, resend: &Resend<'_>) -> Result<Vec<Attempt>, LinkError> {
        let racers = resend.concurrent.clamp(1, MAX_RACERS);
        self.namespace.run(|| {
            let mut attempts = Vec::with_capacity(resend.tries);
            while attempts.len() < resend.tries {
                let size = racers.min(resend.tries - attempts.len());
                attempts.append(&mut round(resend, size)?);
            }
            Ok(attempts)
        })?
    }
}

/// One round of tries: all connect, then all send, then all are listened to at once.
fn round(resend: &Resend<'_>, size: usize) -> Result<Vec<Attempt>, LinkError> {
    let connect = |_| TcpStream::connect_timeout(&resend.server, resend.quiet);
    let streams: Vec<_> = (0..size).map(connect).collect();
    let mut tries: Vec<_> = streams.into_iter().map(|stream| Try::send(stream, resend)).collect();
    loop {
        let now = Instant::now();
        tries.iter_mut().for_each(|each| each.advance(now, resend.quiet));
        if !wait(&tries, now)? {
            return Ok(tries.iter().map(Try::attempt).collect());
        }
    }
}

/// Waits until a try can go on; false if none is open any more.
fn wait(tries: &[Try], now: Instant) -> Result<bool, LinkError> {
    let open = tries.iter().filter_map(|each| match &each.state {
        State::Open { stream, deadline, .. } => Some((stream, *deadline)),
        State::Ended(_) => None,
    });
    let (mut descriptors, deadlines): (Vec<_>, Vec<_>) =
        open.map(|(stream, deadline)| (readable(stream.as_fd()), deadline)).unzip();
    let Some(first) = deadlines.into_iter().min() else {
        return Ok(false);
    };
    wait_for(&mut descriptors, first, now).map(|()| true)
}

fn readable(socket: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(socket, PollFlags::POLLIN)
}

/// Waits until one of the descriptors has something, or until `first`.
fn wait_for(descriptors: &mut [PollFd<'_>], first: Instant, now: Instant) -> Result<(), LinkError> {
    let limit = TimeSpec::from_duration(first.saturating_duration_since(now));
    match ppoll(descriptors, Some(limit), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(LinkError::system("listen to the attacked server", errno)),
    }
}

struct Try {
    bytes_received: u64,
    /// Ends a try whose server trickles.
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
    Ended(Ending),
}

impl Try {
    fn send(stream: io::Result<TcpStream>, resend: &Resend<'_>) -> Self {
        let sent = stream.and_then(|mut stream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(resend.quiet))?;
            stream.write_all(resend.flight)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let state = match sent {
            Ok(stream) => {
                let deadline = Instant::now() + resend.quiet;
                State::Open { stream, deadline, half_closed: false }
            }
            Err(error) => State::Ended(ending(error.kind())),
        };
        Self { bytes_received: 0, limit: Instant::now() + MAX_TRY, state }
    }

    /// Reads what there is, and closes our side or gives up when the server has been quiet.
    fn advance(&mut self, now: Instant, quiet: Duration) {
        let State::Open { stream, deadline, half_closed } = &mut self.state else {
            return;
        };
        let ended = loop {
            match stream.read(&mut [0; 16_384]) {
                Ok(0) => break Some(Ending::Closed),
                Ok(count) => {
                    self.bytes_received += count as u64;
                    *deadline = now + quiet;
                    if self.bytes_received > MAX_BYTES || now > self.limit {
                        break Some(Ending::Endless);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock if now < *deadline => break None,
                    ErrorKind::WouldBlock if *half_closed => break Some(Ending::Silent),
                    ErrorKind::WouldBlock => {
                        (*half_closed, *deadline) = (true, now + quiet);
                        // If the server has reset it meanwhile, the next read says so.
                        let _ = stream.shutdown(Shutdown::Write);
                        break None;
                    }
                    kind => break Some(ending(kind)),
                },
            }
        };
        if let Some(ending) = ended {
            self.state = State::Ended(ending);
        }
    }

    fn attempt(&self) -> Attempt {
        let ending = match self.state {
            State::Ended(ending) => ending,
            State::Open { .. } => Ending::Silent,
        };
        Attempt { bytes_received: self.bytes_received, ending }
    }
}

fn ending(kind: ErrorKind) -> Ending {
    match kind {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ending::Reset,
        kind => Ending::Failed(kind),
    }
}

/// Open connections of one round; below the usual limit on descriptors.
const MAX_RACERS: usize = 256;
/// No response that a server gives to a first flight is longer.
const MAX_BYTES: u64 = 64 << 20;
const MAX_TRY: Duration = Duration::from_secs(60);
