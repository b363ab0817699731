use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_tls::{EarlyData, Handshake};

use crate::{ClientError, Head, QuicStats, Request, TcpInfo};

/// The result of a transfer. After a failure, it has everything up to the failure. After
/// several requests (redirections, retries), it describes the last one; counters are for all.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The requested URL.
    pub url: String,
    /// The URL of the last response.
    pub url_effective: String,
    /// The scheme of `url_effective`.
    pub scheme: &'static str,
    /// The method of the last request.
    pub method: String,
    /// The head of the response.
    pub head: Option<Head>,
    /// The target of a redirection that was not followed.
    pub redirect_url: Option<String>,
    /// The times of the phases.
    pub marks: PhaseInstants,
    /// Seconds spent before the last request started, if redirections were followed.
    pub redirect_time: f64,
    /// Address of the server.
    pub peer: Option<SocketAddr>,
    /// Local address.
    pub local: Option<SocketAddr>,
    /// What TLS negotiated.
    pub facts: Option<Handshake>,
    /// Bytes written as early data; over QUIC including the SETTINGS of HTTP/3.
    pub early_bytes: usize,
    /// The kernel's statistics of a TCP connection.
    pub tcp: Option<TcpInfo>,
    /// The statistics of a QUIC connection.
    pub quic: Option<QuicStats>,
    /// Bytes of body received.
    pub size_download: u64,
    /// Bytes of body sent.
    pub size_upload: u64,
    /// Bytes of heads received.
    pub size_header: u64,
    /// Bytes of heads sent.
    pub size_request: u64,
    /// Connections opened.
    pub num_connects: u32,
    /// Redirections followed.
    pub num_redirects: u32,
    /// Requests sent again: after a 425, or on a new connection without early data.
    pub retries: u32,
    /// New sessions received.
    pub sessions: usize,
    /// New address tokens received.
    pub tokens: usize,
    /// The file to which the body was written.
    pub file_name: Option<String>,
    /// The error, if the transfer failed.
    pub error: Option<ClientError>,
    /// Why the client offered no early data on the last connection, if it decided so itself.
    pub early_data_obstacle: Option<&'static str>,
}

impl Report {
    pub(crate) fn new(request: &Request) -> Self {
        Self {
            early_data_obstacle: None,
            url: request.target.as_str().to_owned(),
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

    /// Returns the times as curl defines them.
    pub fn timings(&self) -> Timings {
        Timings::from(&self.marks)
    }

    /// Returns the status of the response; 0 without one.
    pub fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |head| head.status.as_u16())
    }

    /// Returns curl's exit code; 0 for success.
    pub fn exit_code(&self) -> u8 {
        self.error.as_ref().map_or(0, ClientError::exit_code)
    }

    /// Returns the outcome of early data: `none`, `accepted` or `refused`.
    pub fn early_data(&self) -> &'static str {
        match self.facts.as_ref().map(|facts| facts.early_data) {
            Some(EarlyData::Accepted) => "accepted",
            Some(EarlyData::Refused) => "refused",
            _ => "none",
        }
    }

    /// Returns why early data was accepted or refused, or why none was offered: `not_requested`,
    /// `unsafe_method`, `no_session`, `sent_again`, `two_transports` (an unsafe method, and TCP is tried
    /// beside QUIC) or a name of [`EarlyDataReason`](firstflight_tls::EarlyDataReason). `None` without
    /// TLS.
    pub fn early_data_reason(&self) -> Option<&'static str> {
        let facts = self.facts.as_ref()?;
        let obstacle = self.early_data_obstacle.filter(|_| self.early_data() == "none");
        Some(obstacle.unwrap_or(facts.early_data_reason.name()))
    }

    /// Returns the round trips as the client sees them: the time from dialling (the SYN, the first
    /// write with TCP Fast Open, or QUIC's first datagram) to the first byte of the response, divided
    /// by the minimum round-trip time that the kernel, or QUIC, measured. This includes the server's
    /// processing time, so it is an upper bound; packets give the exact count. `None` without a
    /// response or a measured round trip.
    pub fn round_trips(&self) -> Option<f64> {
        let min_rtt = match (self.quic, self.tcp) {
            (Some(quic), _) => quic.min_rtt,
            (None, tcp) => tcp?.min_rtt,
        };
        let elapsed = self.marks.first_byte?.checked_duration_since(self.marks.dialled?)?;
        (min_rtt > Duration::ZERO).then(|| elapsed.as_secs_f64() / min_rtt.as_secs_f64())
    }
}

/// The times at which the phases of a transfer ended; `None` if not reached.
#[derive(Clone, Copy, Debug)]
pub struct PhaseInstants {
    /// The transfer started.
    pub start: Instant,
    /// The name was resolved.
    pub resolved: Option<Instant>,
    /// Connecting started: the SYN was sent, or deferred to the first write (TCP Fast Open, QUIC).
    pub dialled: Option<Instant>,
    /// TCP was connected; with TCP Fast Open and a cookie, the time of dialling. Over QUIC the
    /// handshake was complete.
    pub connected: Option<Instant>,
    /// The TLS handshake was complete. With early data this comes after the request was sent.
    pub secured: Option<Instant>,
    /// The request was handed to the kernel.
    pub sent: Option<Instant>,
    /// The first byte of the response was received.
    pub first_byte: Option<Instant>,
    /// The transfer ended.
    pub end: Option<Instant>,
}

impl PhaseInstants {
    /// Creates instants with only the start.
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

/// Seconds since the start of a transfer, with curl's names; 0 if a phase was not reached.
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
