//! The attack over UDP: the datagrams of a captured first flight, from ports of the attacker's own.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use super::{Attempt, Ending, MAX_BYTES, MAX_RACERS, MAX_TRY, readable, wait_for};
use crate::{Attacker, LinkError};

/// What to resend over UDP, and how.
#[derive(Debug, Clone, Copy)]
pub struct ResendDatagrams<'a> {
    /// Any address of the server.
    pub server: SocketAddr,
    /// The UDP payloads of the captured first flight, in the order in which they were sent.
    pub flight: &'a [Vec<u8>],
    /// How often. Each try has a port of its own, so to the server it is another client.
    pub tries: usize,
    /// How many tries send together, datagram by datagram, so that they race (at most 256).
    pub concurrent: usize,
    /// How long a server may be silent before it counts as having no more to say. Long enough for
    /// it to have executed the request.
    pub quiet: Duration,
}

impl Attacker {
    /// Resends a first flight over UDP and returns what became of each try: how many bytes came
    /// back, and that the server then was silent, for nobody closes a datagram.
    ///
    /// # Errors
    /// If the tries cannot be started; what a server does is a result, not an error.
    pub fn resend_datagrams(
        &self,
        resend: &ResendDatagrams<'_>,
    ) -> Result<Vec<Attempt>, LinkError> {
        let racers = resend.concurrent.clamp(1, MAX_RACERS);
        self.namespace().run(|| {
            let mut attempts = Vec::with_capacity(resend.tries);
            while attempts.len() < resend.tries {
                let size = racers.min(resend.tries - attempts.len());
                attempts.append(&mut round(resend, size)?);
            }
            Ok(attempts)
        })?
    }
}

/// One round of tries: all have their port, then all send, then all are listened to at once.
fn round(resend: &ResendDatagrams<'_>, size: usize) -> Result<Vec<Attempt>, LinkError> {
    let mut tries: Vec<Try> = (0..size).map(|_| Try::open(resend)).collect();
    for datagram in resend.flight {
        tries.iter_mut().for_each(|each| each.send(datagram));
    }
    let sent = Instant::now();
    tries.iter_mut().for_each(|each| each.deadline = sent + resend.quiet);
    loop {
        let now = Instant::now();
        tries.iter_mut().for_each(|each| each.advance(now, resend.quiet));
        let open =
            tries.iter().filter_map(|each| Some((each.socket.as_ref().ok()?, each.deadline)));
        let (mut descriptors, deadlines): (Vec<PollFd<'_>>, Vec<Instant>) =
            open.map(|(socket, deadline)| (readable(socket.as_fd()), deadline)).unzip();
        match deadlines.into_iter().min() {
            Some(first) => wait_for(&mut descriptors, first, now)?,
            None => return Ok(tries.iter().map(Try::attempt).collect()),
        }
    }
}

struct Try {
    /// The socket while the try goes on, then how it ended.
    socket: Result<UdpSocket, Ending>,
    bytes_received: u64,
    /// When the server counts as quiet.
    deadline: Instant,
    /// Ends a try whose server trickles.
    limit: Instant,
}

impl Try {
    fn open(resend: &ResendDatagrams<'_>) -> Self {
        let socket = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(resend.server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let now = Instant::now();
        Self {
            socket: socket().map_err(|error| Ending::Failed(error.kind())),
            bytes_received: 0,
            deadline: now + resend.quiet,
            limit: now + MAX_TRY,
        }
    }

    fn send(&mut self, datagram: &[u8]) {
        let Ok(socket) = &self.socket else { return };
        if let Err(error) = socket.send(datagram) {
            self.socket = Err(Ending::Failed(error.kind()));
        }
    }

    /// Reads what there is, and ends the try when the server has been quiet.
    fn advance(&mut self, now: Instant, quiet: Duration) {
        let Ok(socket) = &self.socket else { return };
        let ending = loop {
            match socket.recv(&mut [0; 65_535]) {
                Ok(count) => {
                    self.bytes_received += count as u64;
                    self.deadline = now + quiet;
                    if self.bytes_received > MAX_BYTES || now > self.limit {
                        break Some(Ending::Endless);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock if now < self.deadline => break None,
                    ErrorKind::WouldBlock => break Some(Ending::Silent),
                    kind => break Some(Ending::Failed(kind)),
                },
            }
        };
        if let Some(ending) = ending {
            self.socket = Err(ending);
        }
    }

    fn attempt(&self) -> Attempt {
        let ending = *self.socket.as_ref().err().unwrap_or(&Ending::Silent);
        Attempt { bytes_received: self.bytes_received, ending }
    }
}
