use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use firstflight_client::TcpInfo;
use firstflight_tls::{EarlyData, Progress, Session, TlsConnection, TlsError};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpFastOpenConnect;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::counts::Finished;
use crate::error::Failure;
use crate::response::{ResponseReader, ResponseSummary};
use crate::{ErrorKind, Exchange, Transport};

/// What the connections of a thread share. They use the buffers one after the other.
pub(crate) struct Shared {
    pub(crate) exchange: Exchange,
    pub(crate) request: Vec<u8>,
    pub(crate) fast_open: bool,
    /// Whether to wait for tickets before closing a connection.
    pub(crate) wants_tickets: bool,
    pub(crate) cipher_text: Box<[u8]>,
    pub(crate) plain_text: Box<[u8]>,
}

/// Room for a TLS record and what usually comes with it.
pub(crate) const BUFFER_BYTES: usize = 32 * 1024;

/// One connection, from the connect call to the close of the server.
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    tls: TlsConnection,
    /// The scheduled start, from which all times count.
    intended: Instant,
    /// Bytes of the request that TLS has taken.
    request_written: usize,
    response: ResponseReader,
    tickets: Vec<Session>,
    has_tickets: bool,
    close_sent: bool,
    setup: Option<Duration>,
    first_byte: Option<Duration>,
    completed: Option<(Duration, ResponseSummary)>,
    fast_open: bool,
}

/// The state of a connection after an event.
pub(crate) enum Step {
    /// Waits for the peer; with `writable`, also for room in the socket.
    Wait { writable: bool },
    /// The response is complete, and the server has not closed yet.
    Complete { writable: bool },
    /// The connection has ended.
    Done,
}

impl Connection {
    /// Connects, and sends the first flight if the socket accepts it immediately: on loopback it
    /// does, and with Fast Open the first write sends the SYN.
    pub(crate) fn start(
        mut tls: TlsConnection,
        address: &SockAddr,
        intended: Instant,
        shared: &Shared,
    ) -> Result<(Self, Step), Failure> {
        let may_write = matches!(tls.handshake()?, Progress::Done(()));
        let socket = connect(address, shared.fast_open)?;
        let mut connection = Self {
            socket,
            tls,
            intended,
            request_written: 0,
            response: ResponseReader::new(&shared.exchange, Transport::Tcp),
            tickets: Vec::new(),
            has_tickets: false,
            close_sent: false,
            setup: None,
            first_byte: None,
            completed: None,
            fast_open: false,
        };
        if may_write {
            connection.write_request(shared)?;
        }
        let writable = connection.send()?;
        Ok((connection, Step::Wait { writable }))
    }

    /// Handles a socket that is ready.
    pub(crate) fn handle_ready(
        &mut self,
        readable: bool,
        shared: &mut Shared,
    ) -> Result<Step, Failure> {
        if !readable {
            return self.send_rest();
        }
        let ended = match (&self.socket).read(&mut shared.cipher_text) {
            Ok(0) => {
                self.tls.feed_eof();
                true
            }
            Ok(count) => {
                self.tls.feed(&shared.cipher_text[..count]);
                false
            }
            Err(error) if would_block(&error) => return self.send_rest(),
            // The response is complete; the server may reset instead of closing.
            Err(_) if self.completed.is_some() => return Ok(Step::Done),
            Err(error) => return Err(error.into()),
        };
        let closed = match self.process_input(shared) {
            Ok(closed) => closed || ended,
            Err(failure) => return self.fail(failure),
        };
        if closed && self.completed.is_none() {
            return self.fail(Failure::truncated());
        }
        if self.completed.is_some() {
            self.send_close(closed, shared);
        }
        match self.send() {
            _ if closed => Ok(Step::Done),
            Ok(writable) => Ok(self.waiting_step(writable)),
            Err(_) if self.completed.is_some() => Ok(Step::Done),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the outcome of the connection and its tickets, also after an error page.
    pub(crate) fn finish(mut self) -> (Result<Finished, Failure>, Vec<Session>) {
        self.take_tickets();
        let tickets = std::mem::take(&mut self.tickets);
        (self.finished(), tickets)
    }

    fn finished(&self) -> Result<Finished, Failure> {
        let (Some(setup), Some(first_byte), Some((total, response))) =
            (self.setup, self.first_byte, self.completed)
        else {
            return Err(Failure::truncated());
        };
        if let Some(status @ 400..) = response.status {
            return Err(Failure::new(ErrorKind::HttpStatus, format!("status {status}")));
        }
        let facts = self.tls.facts();
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
            status: response.status,
            bytes: response.bytes,
            setup,
            first_byte,
            total,
        })
    }

    /// Whether the response is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.completed.is_some()
    }

    /// Processes the bytes that TLS was fed. Returns whether the peer has closed its direction.
    fn process_input(&mut self, shared: &mut Shared) -> Result<bool, Failure> {
        if self.request_written < shared.request.len() {
            match self.tls.handshake()? {
                Progress::Done(()) => {
                    self.record_setup();
                    self.write_request(shared)?;
                }
                Progress::NeedsInput => return Ok(false),
                Progress::Closed => return Ok(true),
            }
        }
        loop {
            let read = self.tls.read(&mut shared.plain_text);
            self.record_setup();
            match read {
                Ok(Progress::Done(count)) => self.feed_response(&shared.plain_text[..count])?,
                Ok(Progress::NeedsInput) => {
                    self.check_complete(false);
                    return Ok(false);
                }
                Ok(Progress::Closed) => {
                    self.check_complete(true);
                    return Ok(true);
                }
                // No close_notify: the length of the response shows whether it was truncated.
                Err(TlsError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.check_complete(false);
                    return Ok(true);
                }
                Err(_) if self.completed.is_some() => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn feed_response(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.first_byte.get_or_insert_with(|| self.intended.elapsed());
        self.response.feed(bytes)?;
        self.check_complete(false);
        Ok(())
    }

    fn record_setup(&mut self) {
        if self.setup.is_none() && self.tls.is_complete() {
            self.setup = Some(self.intended.elapsed());
        }
    }

    fn check_complete(&mut self, ended: bool) {
        if self.completed.is_none()
            && let Some(response) = self.response.complete(ended)
        {
            self.completed = Some((self.intended.elapsed(), response));
        }
    }

    /// Writes the rest of the request to TLS, as far as TLS accepts it.
    fn write_request(&mut self, shared: &Shared) -> Result<(), Failure> {
        while self.request_written < shared.request.len() {
            match self.tls.write(&shared.request[self.request_written..])? {
                Progress::Done(count) => self.request_written += count,
                Progress::NeedsInput => return Ok(()),
                Progress::Closed => return Err(Failure::truncated()),
            }
        }
        Ok(())
    }

    /// Queues close_notify. If tickets are wanted, waits until they have arrived, because BoringSSL
    /// processes none after close_notify.
    fn send_close(&mut self, closed: bool, shared: &Shared) {
        if shared.wants_tickets {
            self.take_tickets();
        }
        if !self.close_sent && (closed || self.has_tickets || !shared.wants_tickets) {
            self.close_sent = true;
            // The response is complete, so a failure to close is no error.
            let _ = self.tls.close();
        }
    }

    fn take_tickets(&mut self) {
        let mut sessions = self.tls.take_sessions();
        self.has_tickets |= !sessions.is_empty();
        self.tickets.append(&mut sessions);
    }

    /// Writes what TLS has queued. Returns whether some of it waits for room in the socket.
    fn send(&mut self) -> Result<bool, Failure> {
        while !self.tls.outgoing().is_empty() {
            match (&self.socket).write(self.tls.outgoing()) {
                Ok(count) => self.tls.sent(count),
                Err(error) if would_block(&error) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Sends what is queued, without new input.
    fn send_rest(&mut self) -> Result<Step, Failure> {
        match self.send() {
            Ok(writable) => Ok(self.waiting_step(writable)),
            Err(_) if self.completed.is_some() => Ok(Step::Done),
            Err(failure) => Err(failure),
        }
    }

    fn waiting_step(&self, writable: bool) -> Step {
        match self.completed {
            Some(_) => Step::Complete { writable },
            None => Step::Wait { writable },
        }
    }

    /// Sends the alert, if there is one, and fails.
    fn fail(&mut self, failure: Failure) -> Result<Step, Failure> {
        let _ = self.send();
        Err(failure)
    }

    /// Reads from the kernel whether the server accepted data in the SYN.
    pub(crate) fn read_fast_open(&mut self) {
        self.fast_open = TcpInfo::of(&self.socket).is_some_and(|facts| facts.syn_data);
    }
}

fn connect(address: &SockAddr, fast_open: bool) -> Result<Socket, Failure> {
    let domain = Domain::from(i32::from(address.family()));
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if fast_open {
        // Old kernels and some sandboxes refuse this. The connection is then an ordinary one, and the
        // result counts how often Fast Open was used.
        let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
    }
    match socket.connect(address) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether the operation would block. The first write under Fast Open reports `EINPROGRESS` if the
/// SYN left without data.
fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || error.raw_os_error() == Some(nix::libc::EINPROGRESS)
}
