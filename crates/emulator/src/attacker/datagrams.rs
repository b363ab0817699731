//! The attack over UDP: resends the datagrams of a captured first flight from new ports.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use super::{
    Attempt, ConnectionEnd, MAX_ATTEMPT_DURATION, MAX_BYTES, MAX_CONCURRENT, readable, wait_for,
};
use crate::{Attacker, LinkError};

/// What to resend over UDP, and how.
#[derive(Debug, Clone, Copy)]
pub struct ResendDatagrams<'a> {
    /// Any address of the server.
    pub server: SocketAddr,
    /// The UDP payloads of the captured first flight, in their order.
    pub flight: &'a [Vec<u8>],
    /// The number of attempts. Each uses a new port, so the server sees a new client.
    pub attempts: usize,
    /// How many attempts send at the same time, datagram by datagram, so that they race (at most
    /// 256).
    pub concurrent: usize,
    /// How long a server may be silent before its response counts as complete; must be long enough
    /// for executing the request.
    pub idle_timeout: Duration,
}

impl Attacker {
    /// Resends a first flight over UDP and returns the number of bytes received by each attempt.
    /// Attempts usually end as silent, because UDP has no close.
    ///
    /// # Errors
    /// If the attempts cannot be started. What a server does is a result, not an error.
    pub fn resend_datagrams(
        &self,
        resend: &ResendDatagrams<'_>,
    ) -> Result<Vec<Attempt>, LinkError> {
        let concurrent = resend.concurrent.clamp(1, MAX_CONCURRENT);
        self.namespace().run(|| {
            let mut attempts = Vec::with_capacity(resend.attempts);
            while attempts.len() < resend.attempts {
                let size = concurrent.min(resend.attempts - attempts.len());
                attempts.append(&mut round(resend, size)?);
            }
            Ok(attempts)
        })?
    }
}

/// One round of attempts: all open their port, then all send, then all are read.
fn round(resend: &ResendDatagrams<'_>, size: usize) -> Result<Vec<Attempt>, LinkError> {
    let mut attempts: Vec<AttemptState> = (0..size).map(|_| AttemptState::open(resend)).collect();
    for datagram in resend.flight {
        attempts.iter_mut().for_each(|attempt| attempt.send(datagram));
    }
    let sent = Instant::now();
    attempts.iter_mut().for_each(|attempt| attempt.deadline = sent + resend.idle_timeout);
    loop {
        let now = Instant::now();
        attempts.iter_mut().for_each(|attempt| attempt.advance(now, resend.idle_timeout));
        let open = attempts
            .iter()
            .filter_map(|attempt| Some((attempt.socket.as_ref().ok()?, attempt.deadline)));
        let (mut descriptors, deadlines): (Vec<PollFd<'_>>, Vec<Instant>) =
            open.map(|(socket, deadline)| (readable(socket.as_fd()), deadline)).unzip();
        match deadlines.into_iter().min() {
            Some(earliest) => wait_for(&mut descriptors, earliest, now)?,
            None => return Ok(attempts.iter().map(AttemptState::attempt).collect()),
        }
    }
}

struct AttemptState {
    /// The socket during the attempt, and how the attempt ended afterwards.
    socket: Result<UdpSocket, ConnectionEnd>,
    bytes_received: u64,
    /// When the server counts as quiet.
    deadline: Instant,
    /// Ends an attempt whose server sends slowly forever.
    limit: Instant,
}

impl AttemptState {
    fn open(resend: &ResendDatagrams<'_>) -> Self {
        let socket = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(resend.server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let now = Instant::now();
        Self {
            socket: socket().map_err(|error| ConnectionEnd::Failed(error.kind())),
            bytes_received: 0,
            deadline: now + resend.idle_timeout,
            limit: now + MAX_ATTEMPT_DURATION,
        }
    }

    fn send(&mut self, datagram: &[u8]) {
        let Ok(socket) = &self.socket else { return };
        if let Err(error) = socket.send(datagram) {
            self.socket = Err(ConnectionEnd::Failed(error.kind()));
        }
    }

    /// Reads what is available, and ends the attempt when the server has been quiet.
    fn advance(&mut self, now: Instant, idle_timeout: Duration) {
        let Ok(socket) = &self.socket else { return };
        let end = loop {
            match socket.recv(&mut [0; 65_535]) {
                Ok(count) => {
                    self.bytes_received += count as u64;
                    self.deadline = now + idle_timeout;
                    if self.bytes_received > MAX_BYTES || now > self.limit {
                        break Some(ConnectionEnd::Endless);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock if now < self.deadline => break None,
                    ErrorKind::WouldBlock => break Some(ConnectionEnd::Silent),
                    kind => break Some(ConnectionEnd::Failed(kind)),
                },
            }
        };
        if let Some(end) = end {
            self.socket = Err(end);
        }
    }

    fn attempt(&self) -> Attempt {
        let end = *self.socket.as_ref().err().unwrap_or(&ConnectionEnd::Silent);
        Attempt { bytes_received: self.bytes_received, end }
    }
}
