use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use firstflight_client::TcpInfo;
use firstflight_tls::{EarlyData, Progress, Session, TlsConnection, TlsError};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpFastOpenConnect;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::failure::Failure;
use crate::response::{Answer, Answered};
use crate::tally::Finished;
use crate::{ErrorKind, Exchange, Transport};

/// What all connections of a thread use in turn, so that none of them keeps buffers of its own.
pub(crate) struct Shared {
    pub(crate) exchange: Exchange,
    pub(crate) request: Vec<u8>,
    pub(crate) fast_open: bool,
    /// Whether tickets are wanted, so that a connection is not closed before they came.
    pub(crate) wants_tickets: bool,
    pub(crate) cipher_text: Box<[u8]>,
    pub(crate) plain_text: Box<[u8]>,
}

/// Room for a record and what usually comes with it.
pub(crate) const BUFFER: usize = 32 * 1024;

/// One connection, from the connect call to the server's close.
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    machine: TlsConnection,
    /// When it should have started; its times count from here.
    intended: Instant,
    /// How much of the request the TLS machine has taken.
    requested: usize,
    response: Answer,
    tickets: Vec<Session>,
    has_tickets: bool,
    said_goodbye: bool,
    setup: Option<Duration>,
    first_byte: Option<Duration>,
    answered: Option<(Duration, Answered)>,
    fast_open: bool,
}

/// What a step of a connection came to.
pub(crate) enum Step {
    /// It waits for the peer; with `writable`, also for room in the socket.
    Wait { writable: bool },
    /// The response is whole, and the server has not closed yet.
    Answered { writable: bool },
    /// It is over.
    Done,
}

impl Connection {
    /// Dials, and sends the first flight where the socket takes it at once (on loopback it does,
    /// and with Fast Open it is what makes the SYN leave).
    pub(crate) fn begin(
        mut machine: TlsConnection,
        address: &SockAddr,
        intended: Instant,
        shared: &Shared,
    ) -> Result<(Self, Step), Failure> {
        let may_write = matches!(machine.handshake()?, Progress::Done(()));
        let socket = dial(address, shared.fast_open)?;
        let mut connection = Self {
            socket,
            machine,
            intended,
            requested: 0,
            response: Answer::expect(&shared.exchange, Transport::Tcp),
            tickets: Vec::new(),
            has_tickets: false,
            said_goodbye: false,
            setup: None,
            first_byte: None,
            answered: None,
            fast_open: false,
        };
        if may_write {
            connection.request(shared)?;
        }
        let writable = connection.send()?;
        Ok((connection, Step::Wait { writable }))
    }

    /// The socket is ready.
    pub(crate) fn ready(&mut self, readable: bool, shared: &mut Shared) -> Result<Step, Failure> {
        if !readable {
            return self.send_rest();
        }
        let ended = match (&self.socket).read(&mut shared.cipher_text) {
            Ok(0) => {
                self.machine.feed_eof();
                true
            }
            Ok(count) => {
                self.machine.feed(&shared.cipher_text[..count]);
                false
            }
            Err(error) if is_wait(&error) => return self.send_rest(),
            // What counts was here before: a server may reset instead of closing.
            Err(_) if self.answered.is_some() => return Ok(Step::Done),
            Err(error) => return Err(error.into()),
        };
        let closed = match self.take(shared) {
            Ok(closed) => closed || ended,
            Err(failure) => return self.fail(failure),
        };
        if closed && self.answered.is_none() {
            return self.fail(Failure::truncated());
        }
        if self.answered.is_some() {
            self.say_goodbye(closed, shared);
        }
        match self.send() {
            _ if closed => Ok(Step::Done),
            Ok(writable) => Ok(self.wait(writable)),
            Err(_) if self.answered.is_some() => Ok(Step::Done),
            Err(failure) => Err(failure),
        }
    }

    /// What it was, once it is done, and the tickets that came: an error page's too.
    pub(crate) fn finish(mut self) -> (Result<Finished, Failure>, Vec<Session>) {
        self.take_tickets();
        let tickets = std::mem::take(&mut self.tickets);
        (self.finished(), tickets)
    }

    fn finished(&self) -> Result<Finished, Failure> {
        let (Some(setup), Some(first_byte), Some((total, answered))) =
            (self.setup, self.first_byte, self.answered)
        else {
            return Err(Failure::truncated());
        };
        if let Some(status @ 400..) = answered.status {
            return Err(Failure::new(ErrorKind::HttpStatus, format!("status {status}")));
        }
        let facts = self.machine.facts();
        Ok(Finished {
            version: facts.version,
            group: facts.group.unwrap_or("none"),
            resumed: facts.resumed,
            early_accepted: match facts.early_data {
                EarlyData::Accepted => Some(true),
                EarlyData::Refused => Some(false),
                EarlyData::NotOffered | EarlyData::Pending => None,
            },
            fast_open: self.fast_open,
            bytes: answered.bytes,
            setup,
            first_byte,
            total,
        })
    }

    /// Whether the response is whole.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// Carries TLS on with what was fed. Whether the peer has closed its direction.
    fn take(&mut self, shared: &mut Shared) -> Result<bool, Failure> {
        if self.requested < shared.request.len() {
            match self.machine.handshake()? {
                Progress::Done(()) => {
                    self.note_setup();
                    self.request(shared)?;
                }
                Progress::NeedsInput => return Ok(false),
                Progress::Closed => return Ok(true),
            }
        }
        loop {
            let read = self.machine.read(&mut shared.plain_text);
            self.note_setup();
            match read {
                Ok(Progress::Done(count)) => self.answered_by(&shared.plain_text[..count])?,
                Ok(Progress::NeedsInput) => {
                    self.note_whole(false);
                    return Ok(false);
                }
                Ok(Progress::Closed) => {
                    self.note_whole(true);
                    return Ok(true);
                }
                // Without close_notify: whether that cut the response, its length knows.
                Err(TlsError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.note_whole(false);
                    return Ok(true);
                }
                Err(_) if self.answered.is_some() => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn answered_by(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.first_byte.get_or_insert_with(|| self.intended.elapsed());
        self.response.feed(bytes)?;
        self.note_whole(false);
        Ok(())
    }

    fn note_setup(&mut self) {
        if self.setup.is_none() && self.machine.is_complete() {
            self.setup = Some(self.intended.elapsed());
        }
    }

    fn note_whole(&mut self, ended: bool) {
        if self.answered.is_none()
            && let Some(answered) = self.response.whole(ended)
        {
            self.answered = Some((self.intended.elapsed(), answered));
        }
    }

    /// Hands the rest of the request to TLS, as far as it takes it.
    fn request(&mut self, shared: &Shared) -> Result<(), Failure> {
        while self.requested < shared.request.len() {
            match self.machine.write(&shared.request[self.requested..])? {
                Progress::Done(count) => self.requested += count,
                Progress::NeedsInput => return Ok(()),
                Progress::Closed => return Err(Failure::truncated()),
            }
        }
        Ok(())
    }

    /// Says close_notify, which goes out with what else waits. Not before the tickets came that
    /// are still wanted: the TLS library takes none any more afterwards.
    fn say_goodbye(&mut self, closed: bool, shared: &Shared) {
        if shared.wants_tickets {
            self.take_tickets();
        }
        if !self.said_goodbye && (closed || self.has_tickets || !shared.wants_tickets) {
            self.said_goodbye = true;
            // The response is here; a connection that will not be closed politely is no error.
            let _ = self.machine.close();
        }
    }

    fn take_tickets(&mut self) {
        let mut came = self.machine.take_sessions();
        self.has_tickets |= !came.is_empty();
        self.tickets.append(&mut came);
    }

    /// Writes what waits. Whether some of it has to wait for room.
    fn send(&mut self) -> Result<bool, Failure> {
        while !self.machine.outgoing().is_empty() {
            match (&self.socket).write(self.machine.outgoing()) {
                Ok(count) => self.machine.sent(count),
                Err(error) if is_wait(&error) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// There was nothing to read.
    fn send_rest(&mut self) -> Result<Step, Failure> {
        match self.send() {
            Ok(writable) => Ok(self.wait(writable)),
            Err(_) if self.answered.is_some() => Ok(Step::Done),
            Err(failure) => Err(failure),
        }
    }

    fn wait(&self, writable: bool) -> Step {
        match self.answered {
            Some(_) => Step::Answered { writable },
            None => Step::Wait { writable },
        }
    }

    /// The peer is owed the alert, if there is one.
    fn fail(&mut self, failure: Failure) -> Result<Step, Failure> {
        let _ = self.send();
        Err(failure)
    }

    /// Asks the kernel whether the server took data in the SYN.
    pub(crate) fn look_at_fast_open(&mut self) {
        self.fast_open = TcpInfo::of(&self.socket).is_some_and(|facts| facts.syn_data);
    }
}

fn dial(address: &SockAddr, fast_open: bool) -> Result<Socket, Failure> {
    let domain = Domain::from(i32::from(address.family()));
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if fast_open {
        // Refused by old kernels and some sandboxes: an ordinary connection is the fallback, and
        // the result counts how often it was.
        let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
    }
    match socket.connect(address) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Nothing can be read or written just now; `EINPROGRESS` is a first write's word for it under
/// Fast Open, when the SYN left without it.
fn is_wait(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || error.raw_os_error() == Some(nix::libc::EINPROGRESS)
}
