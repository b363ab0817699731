//! Servers that respond late, never, or incorrectly, over TCP and QUIC.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::Shared;
use super::http::Response;
use crate::FastOpen;
use crate::driver::{Link, Received};

/// How a server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It sends nothing.
    Silent,
    /// It sends a byte, or a datagram, every nine seconds.
    Slow,
    /// It sends corrupted bytes.
    Garbage,
    /// It sends endless data without meaning.
    Endless,
    /// It resets the connection, over QUIC the stream.
    Reset,
    /// It ends its direction after half of what it has to send.
    HalfClosed,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 6] =
        [Self::Silent, Self::Slow, Self::Garbage, Self::Endless, Self::Reset, Self::HalfClosed];
}

/// Where a server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultyPart {
    /// From its first bytes on.
    Handshake,
    /// In its HTTP responses.
    Response,
    /// On connections with TCP Fast Open.
    FastOpen,
}

/// A link to a server that fails from its first bytes on.
pub(super) struct FaultyLink {
    link: Box<dyn Link>,
    shared: Rc<Shared>,
    fault: Fault,
    datagrams: bool,
    /// Undelivered pieces, and when the next one is delivered.
    pieces: VecDeque<Vec<u8>>,
    next_at: Duration,
    /// Whether anything was delivered.
    halved: bool,
}

impl FaultyLink {
    pub(super) fn new(
        link: Box<dyn Link>,
        shared: Rc<Shared>,
        fault: Fault,
        datagrams: bool,
    ) -> Self {
        let next_at = shared.clock.get() + interval(fault);
        Self { link, shared, fault, datagrams, pieces: VecDeque::new(), next_at, halved: false }
    }

    /// Advances the clock to the next piece, or to `until` if that is earlier. Returns whether a
    /// piece is due.
    fn piece_until(&mut self, until: Duration) -> bool {
        let in_time = self.next_at <= until;
        let at = if in_time { self.next_at } else { until };
        self.shared.clock.set(at.max(self.shared.clock.get()));
        if in_time {
            self.next_at = self.shared.clock.get() + interval(self.fault);
        }
        in_time
    }
}

impl Link for FaultyLink {
    fn now(&self) -> Duration {
        self.link.now()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.link.send(bytes)
    }

    fn receive(&mut self, until: Duration) -> io::Result<Received> {
        let fault = self.fault;
        match fault {
            Fault::Silent => {
                self.shared.clock.set(until.max(self.now()));
                Ok(Received::Nothing)
            }
            // Before there are keys, a reset can only be a refused datagram.
            Fault::Reset if self.datagrams => Err(io::ErrorKind::ConnectionRefused.into()),
            Fault::Reset => Ok(Received::End),
            Fault::Endless if self.piece_until(until) => {
                Ok(Received::Bytes(match self.datagrams {
                    true => vec![0x40; 1200],
                    // Records that change nothing (RFC 8446 appendix D.4).
                    false => [&[20, 3, 3, 0x3e, 0x80][..], &[1; 16_000]].concat().repeat(2),
                }))
            }
            Fault::Endless => Ok(Received::Nothing),
            Fault::Slow => {
                if self.pieces.is_empty()
                    && let Received::Bytes(bytes) = self.link.receive(self.now())?
                {
                    match self.datagrams {
                        true => self.pieces.push_back(bytes),
                        false => self.pieces.extend(bytes.into_iter().map(|byte| vec![byte])),
                    }
                }
                if self.pieces.is_empty() {
                    self.shared.clock.set(until.max(self.now()));
                    return Ok(Received::Nothing);
                }
                let piece = self.piece_until(until).then(|| self.pieces.pop_front()).flatten();
                Ok(piece.map_or(Received::Nothing, Received::Bytes))
            }
            Fault::HalfClosed if self.halved && !self.datagrams => Ok(Received::End),
            Fault::HalfClosed | Fault::Garbage => Ok(match self.link.receive(until)? {
                Received::Bytes(mut bytes) => {
                    self.halved = true;
                    match fault {
                        Fault::HalfClosed => bytes.truncate(bytes.len() / 2),
                        // The header of a datagram stays.
                        _ => {
                            let from = if self.datagrams { 20 } else { 0 };
                            bytes.iter_mut().skip(from).for_each(|byte| *byte = !*byte);
                        }
                    }
                    Received::Bytes(bytes)
                }
                other => other,
            }),
        }
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.link.local_address()
    }

    fn fast_open(&self) -> Option<FastOpen> {
        self.link.fast_open()
    }
}

/// A part of a response.
pub(super) struct Piece {
    pub(super) stream: u64,
    pub(super) data: Vec<u8>,
    pub(super) continuation: Continuation,
}

/// What follows a part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// Over QUIC the end of the stream; over TCP the next response.
    Complete,
    /// More of it.
    More,
    /// Over QUIC the end of the stream, over TCP that of the connection.
    End,
    /// A reset.
    Reset,
}

/// The responses of a connection, changed by its fault.
pub(super) struct Responses {
    fault: Option<Fault>,
    http3: bool,
    waiting: VecDeque<Piece>,
    next_at: Duration,
}

impl Responses {
    /// Creates responses with or without a fault.
    pub(super) fn new(fault: Option<Fault>, http3: bool) -> Self {
        Self { fault, http3, waiting: VecDeque::new(), next_at: Duration::ZERO }
    }

    /// Returns the part of a response that is sent at once.
    pub(super) fn respond(
        &mut self,
        stream: u64,
        Response { mut data, after }: Response,
        now: Duration,
    ) -> Option<Piece> {
        let Some(fault) = self.fault else {
            let whole = Piece { stream, data, continuation: Continuation::Complete };
            if after.is_zero() {
                return Some(whole);
            }
            self.next_at = now + after;
            self.waiting.push_back(whole);
            return None;
        };
        self.next_at = now + interval(fault);
        let continuation = match fault {
            Fault::Silent => return None,
            Fault::Slow => {
                let last = data.len().saturating_sub(1);
                self.waiting.extend(data.into_iter().enumerate().map(|(number, byte)| Piece {
                    stream,
                    data: vec![byte],
                    continuation: if number == last {
                        Continuation::Complete
                    } else {
                        Continuation::More
                    },
                }));
                return None;
            }
            Fault::Endless => {
                // 103 (Early Hints)
                let data: &[u8] = match self.http3 {
                    true => &[1, 3, 0, 0, 0xc0 | 24],
                    false => b"HTTP/1.1 103 Early Hints\r\n\r\n",
                };
                self.waiting.push_back(Piece {
                    stream,
                    data: data.to_vec(),
                    continuation: Continuation::More,
                });
                return None;
            }
            Fault::Garbage => {
                data.fill(0xff);
                Continuation::Complete
            }
            Fault::Reset => {
                data.clear();
                Continuation::Reset
            }
            Fault::HalfClosed => {
                data.truncate(data.len() / 2);
                Continuation::End
            }
        };
        Some(Piece { stream, data, continuation })
    }

    /// When the next waiting piece leaves.
    pub(super) fn next_at(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(self.next_at)
    }

    /// Takes the next waiting piece.
    pub(super) fn take(&mut self) -> Option<Piece> {
        let piece = self.waiting.pop_front()?;
        self.next_at += self.fault.map_or(Duration::ZERO, interval);
        if self.fault == Some(Fault::Endless) {
            self.waiting.push_back(Piece { data: piece.data.clone(), ..piece });
        }
        Some(piece)
    }
}

/// Time between pieces; shorter than a limit of ten seconds.
fn interval(fault: Fault) -> Duration {
    match fault {
        Fault::Slow => Duration::from_secs(9),
        _ => Duration::from_millis(10),
    }
}
