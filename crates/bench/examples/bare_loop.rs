//! A baseline for `firstflight_bench`: a minimal epoll loop on BoringSSL that drives TLS 1.3
//! connections. One thread, no timeouts, no histogram; prints one line of JSON.
//!
//!     bare_loop ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS
//!
//! Each connection requests `/` with `Connection: close` and reads until the server closes. The
//! server's certificate is not verified. `scripts/load-client` compares the two.
#![allow(unsafe_code, reason = "boring has no early data for clients, and no safe set_session")]

mod wire;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use boring::ssl::{
    ErrorCode, Ssl, SslContext, SslMethod, SslSession, SslSessionCacheMode, SslStream,
    SslVerifyMode, SslVersion,
};
use foreign_types::ForeignTypeRef;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use socket2::{Domain, Socket, Type};

use wire::Wire;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, kind, connections, seconds] = arguments.as_slice() else {
        return Err("usage: bare_loop ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS".into());
    };
    let mut client = Client::new(address.parse()?, kind)?;
    if kind != "full" {
        // A few full handshakes for tickets. Afterwards each connection receives its own.
        client.drive(connections.parse::<usize>()?, Duration::from_millis(100), false)?;
    }
    let (before, start) = (cpu_micros(), Instant::now());
    let counts =
        client.drive(connections.parse()?, Duration::from_secs_f64(seconds.parse()?), true)?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_micros() - before);
    println!(
        "{{\"kind\":\"{kind}\",\"completed\":{},\"resumed\":{},\"early\":{},\"failed\":{},\
         \"seconds\":{seconds:.3},\"rate\":{:.1},\"client_us\":{:.2}}}",
        counts.completed,
        counts.resumed,
        counts.early,
        counts.failed,
        counts.completed as f64 / seconds,
        cpu as f64 / counts.completed.max(1) as f64,
    );
    Ok(())
}

#[derive(Default)]
struct Counts {
    completed: u64,
    resumed: u64,
    early: u64,
    failed: u64,
}

struct Client {
    address: SocketAddr,
    context: SslContext,
    tickets: bool,
    early_data: bool,
    request: Vec<u8>,
    open: Vec<Option<Connection>>,
}

struct Connection {
    stream: SslStream<Wire>,
    requested: bool,
    responded: bool,
}

static TICKETS: Mutex<VecDeque<SslSession>> = Mutex::new(VecDeque::new());

impl Client {
    fn new(address: SocketAddr, kind: &str) -> Result<Self, Failed> {
        let mut context = SslContext::builder(SslMethod::tls())?;
        context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
        context.set_curves_list("X25519")?;
        context.set_alpn_protos(b"\x08http/1.1")?;
        context.set_verify(SslVerifyMode::NONE);
        if kind != "full" {
            context.set_session_cache_mode(
                SslSessionCacheMode::CLIENT | SslSessionCacheMode::NO_INTERNAL,
            );
            context.set_new_session_callback(|_, session| {
                let mut tickets = TICKETS.lock().unwrap();
                tickets.push_back(session);
                if tickets.len() > 1024 {
                    tickets.pop_front();
                }
            });
        }
        Ok(Self {
            address,
            context: context.build(),
            tickets: kind != "full",
            early_data: kind == "0-RTT",
            request: format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
                .into_bytes(),
            open: Vec::new(),
        })
    }

    /// Keeps `max_open` connections open for this time.
    fn drive(
        &mut self,
        max_open: usize,
        time: Duration,
        use_tickets: bool,
    ) -> Result<Counts, Failed> {
        let end = Instant::now() + time;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut counts = Counts::default();
        let mut buffer = vec![0; 32 * 1024];
        let mut events = [EpollEvent::empty(); 256];
        self.open = (0..max_open).map(|_| None).collect();
        for slot in 0..max_open {
            self.start_connection(slot, use_tickets, &epoll)?;
        }
        while self.open.iter().any(Option::is_some) {
            let count = epoll.wait(&mut events, EpollTimeout::from(1000u16))?;
            for event in &events[..count] {
                let slot = event.data() as usize;
                let Some(connection) = &mut self.open[slot] else { continue };
                match connection.step(&self.request, &mut buffer) {
                    Ok(false) => continue,
                    Ok(true) => {
                        let ssl = connection.stream.ssl();
                        counts.completed += 1;
                        counts.resumed += u64::from(ssl.session_reused());
                        // SAFETY: the pointer is valid while the stream is; the call only reads.
                        let early = unsafe { boring_sys::SSL_early_data_accepted(ssl.as_ptr()) };
                        counts.early += u64::from(early == 1);
                    }
                    Err(_) => counts.failed += 1,
                }
                self.open[slot] = None;
                if Instant::now() < end {
                    self.start_connection(slot, use_tickets, &epoll)?;
                }
            }
        }
        Ok(counts)
    }

    fn start_connection(
        &mut self,
        slot: usize,
        use_ticket: bool,
        epoll: &Epoll,
    ) -> Result<(), Failed> {
        let socket =
            Socket::new(Domain::for_address(self.address), Type::STREAM.nonblocking(), None)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&self.address.into()) {
            Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => Err(error)?,
            _ => {}
        }
        let mut ssl = Ssl::new(&self.context)?;
        let ticket = (self.tickets && use_ticket).then(|| TICKETS.lock().unwrap().pop_back());
        if let Some(ticket) = ticket.flatten() {
            // SAFETY: the session comes from a handshake of the same context.
            unsafe { ssl.set_session(&ticket)? };
            // SAFETY: the connection is valid.
            unsafe { boring_sys::SSL_set_early_data_enabled(ssl.as_ptr(), self.early_data.into()) };
        }
        // SAFETY: the connection is valid and its handshake has not started.
        unsafe { boring_sys::SSL_set_connect_state(ssl.as_ptr()) };
        let stream = SslStream::new(ssl, Wire::new(TcpStream::from(OwnedFd::from(socket))))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
        let mut connection = Connection { stream, requested: false, responded: false };
        epoll.add(&connection.stream.get_ref().socket, event)?;
        // On loopback the connection is established immediately.
        connection.step(&self.request, &mut [0])?;
        self.open[slot] = Some(connection);
        Ok(())
    }
}

impl Connection {
    /// Processes input and sends the output. Returns whether the server has closed after its response.
    fn step(&mut self, request: &[u8], buffer: &mut [u8]) -> Result<bool, Failed> {
        let done = self.advance(request, buffer);
        let sent = self.stream.get_mut().send();
        let done = done?;
        if !done {
            sent?;
        }
        Ok(done)
    }

    fn advance(&mut self, request: &[u8], buffer: &mut [u8]) -> Result<bool, Failed> {
        if !self.requested {
            match self.stream.do_handshake() {
                Ok(()) => {}
                Err(error) if error.code() == ErrorCode::WANT_READ => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            self.stream.write_all(request)?;
            self.requested = true;
        }
        loop {
            match self.stream.read(buffer) {
                Ok(0) if self.responded => return Ok(true),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => self.responded = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// CPU time of this process so far.
fn cpu_micros() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("our own usage");
    (usage.user_time() + usage.system_time()).num_microseconds()
}
