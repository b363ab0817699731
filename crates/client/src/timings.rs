use std::time::Instant;

/// The instants at which the phases of a transfer ended; `None`: not reached.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
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

impl Marks {
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

impl From<&Marks> for Timings {
    fn from(marks: &Marks) -> Self {
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
