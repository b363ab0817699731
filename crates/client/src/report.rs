use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_tls::{EarlyData, Handshake};

use crate::{ClientError, Head, QuicStats, Request, TcpInfo};

/// What a transfer came to, also one that failed: whatever was reached is filled in. Where a
/// transfer took several requests, this is about the last one, and the counters are about all.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The URL as it was given.
    pub url: String,
    /// The URL that answered in the end.
    pub url_effective: String,
    /// The scheme of that one.
    pub scheme: &'static str,
    /// The method of the last request.
    pub method: String,
    /// The head of the response.
    pub head: Option<Head>,
    /// Where a redirection would have led.
    pub redirect_url: Option<String>,
    /// The instants of the phases.
    pub marks: PhaseInstants,
    /// Seconds spent before the last request started, if redirections were followed.
    pub redirect_time: f64,
    /// The far end.
    pub peer: Option<SocketAddr>,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// What TLS negotiated.
    pub facts: Option<Handshake>,
    /// Bytes written as early data, over QUIC with the settings of HTTP/3.
    pub early_bytes: usize,
    /// What the kernel says about the connection, over TCP.
    pub tcp: Option<TcpInfo>,
    /// What QUIC says about it, over QUIC.
    pub quic: Option<QuicStats>,
    /// Bytes of body received.
    pub size_download: u64,
    /// Bytes of body sent.
    pub size_upload: u64,
    /// Bytes of heads received.
    pub size_header: u64,
    /// Bytes of heads sent.
    pub size_request: u64,
    /// Connections made.
    pub num_connects: u32,
    /// Redirections followed.
    pub num_redirects: u32,
    /// Requests sent once more: after a 425, or on a fresh connection without early data.
    pub retries: u32,
    /// New sessions that came in.
    pub sessions: usize,
    /// New address tokens that came in.
    pub tokens: usize,
    /// Where the body was written, if a file.
    pub file_name: Option<String>,
    /// What went wrong.
    pub error: Option<ClientError>,
}

impl Report {
    pub(crate) fn new(request: &Request) -> Self {
        Self {
            url: request.target.given().to_owned(),
            url_effective: request.target.to_string(),
            scheme: request.target.scheme().name(),
            method: request.method.to_string(),
            head: None,
            redirect_url: None,
            marks: PhaseInstants::new(std::time::Instant::now()),
            redirect_time: 0.0,
            peer: None,
            local: None,
            facts: None,
            early_bytes: 0,
            tcp: None,
            quic: None,
            size_download: 0,
            size_upload: 0,
            size_header: 0,
            size_request: 0,
            num_connects: 0,
            num_redirects: 0,
            retries: 0,
            sessions: 0,
            tokens: 0,
            file_name: None,
            error: None,
        }
    }

    /// The times as curl names them.
    pub fn timings(&self) -> Timings {
        Timings::from(&self.marks)
    }

    /// The status of the response; 0 without one.
    pub fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |head| head.status.as_u16())
    }

    /// curl's exit code; 0 for success.
    pub fn exit_code(&self) -> u8 {
        self.error.as_ref().map_or(0, ClientError::exit_code)
    }

    /// What became of early data: `none`, `accepted` or `refused`.
    pub fn early_data(&self) -> &'static str {
        match self.facts.as_ref().map(|facts| facts.early_data) {
            Some(EarlyData::Accepted) => "accepted",
            Some(EarlyData::Refused) => "refused",
            _ => "none",
        }
    }

    /// Round trips as the client itself sees them: the time from the moment of dialling (the SYN,
    /// with TCP Fast Open the first write right after it, or QUIC's first datagram) to the first
    /// byte of the response, divided by the least round-trip time that the kernel, or QUIC,
    /// measured on the connection. The server's own time is in it, so it is an upper bound; the
    /// packets are the judge. `None` without a response or a measured round trip.
    pub fn round_trips(&self) -> Option<f64> {
        let min_rtt = match (self.quic, self.tcp) {
            (Some(quic), _) => quic.min_rtt,
            (None, tcp) => tcp?.min_rtt,
        };
        let elapsed = self.marks.first_byte?.checked_duration_since(self.marks.dialled?)?;
        (min_rtt > Duration::ZERO).then(|| elapsed.as_secs_f64() / min_rtt.as_secs_f64())
    }
}

/// The instants at which the phases of a transfer ended; `None`: not reached.
#[derive(Clone, Copy, Debug)]
pub struct PhaseInstants {
    /// The transfer started.
    pub start: Instant,
    /// The name was resolved.
    pub resolved: Option<Instant>,
    /// Connecting started: the SYN left, or was left to the first write (TCP Fast Open, QUIC).
    pub dialled: Option<Instant>,
    /// TCP was connected; with TCP Fast Open and a cookie, this is the moment of dialling. Over
    /// QUIC the handshake was complete.
    pub connected: Option<Instant>,
    /// The TLS handshake was complete. With early data this comes after the request was sent.
    pub secured: Option<Instant>,
    /// The request was handed to the kernel.
    pub sent: Option<Instant>,
    /// The first byte of the response was there.
    pub first_byte: Option<Instant>,
    /// All was done.
    pub end: Option<Instant>,
}

impl PhaseInstants {
    /// Nothing but the start.
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            resolved: None,
            dialled: None,
            connected: None,
            secured: None,
            sent: None,
            first_byte: None,
            end: None,
        }
    }
}

/// Seconds since the start of a transfer, named as curl names them; 0 where a phase was not
/// reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Until the name was resolved.
    pub namelookup: f64,
    /// Until TCP was connected, or QUIC's handshake complete.
    pub connect: f64,
    /// Until the TLS handshake was complete, also with early data.
    pub appconnect: f64,
    /// Until the request was about to leave; before `appconnect` if it was early.
    pub pretransfer: f64,
    /// Until the first byte of the response.
    pub starttransfer: f64,
    /// Until the end.
    pub total: f64,
}

impl From<&PhaseInstants> for Timings {
    fn from(marks: &PhaseInstants) -> Self {
        let since = |mark: Option<Instant>| {
            mark.map_or(0.0, |mark| mark.saturating_duration_since(marks.start).as_secs_f64())
        };
        Self {
            namelookup: since(marks.resolved),
            connect: since(marks.connected),
            appconnect: since(marks.secured),
            pretransfer: since(marks.sent),
            starttransfer: since(marks.first_byte),
            total: since(marks.end),
        }
    }
}
