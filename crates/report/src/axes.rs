//! The axes of the matrix: what a cell's place in it is called, and which axes vary in a record.

use crate::{Cell, Record};

/// One axis of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Which experiment.
    Experiment,
    /// The client.
    Client,
    /// The server under test.
    Server,
    /// `ping-pong` or `get`.
    Workload,
    /// The network.
    Profile,
    /// Its round-trip time in milliseconds.
    Rtt,
    /// What TLS runs over: TCP or QUIC.
    Transport,
    /// TLS version.
    Tls,
    /// Full, resumed, 0-RTT or refused.
    Kind,
    /// TCP Fast Open.
    Tfo,
    /// An address token from an earlier connection; QUIC's.
    Token,
    /// HTTP version.
    Http,
    /// Key-share group.
    Group,
    /// The server's certificate.
    Certificate,
    /// Length of the response.
    Size,
}

impl Axis {
    /// All of them, from the outermost inwards.
    pub const ALL: [Self; 15] = [
        Self::Experiment,
        Self::Client,
        Self::Server,
        Self::Workload,
        Self::Profile,
        Self::Rtt,
        Self::Transport,
        Self::Tls,
        Self::Kind,
        Self::Tfo,
        Self::Token,
        Self::Http,
        Self::Group,
        Self::Certificate,
        Self::Size,
    ];

    /// The name in conditions and columns.
    pub fn name(self) -> &'static str {
        match self {
            Self::Experiment => "experiment",
            Self::Client => "client",
            Self::Server => "server",
            Self::Workload => "workload",
            Self::Profile => "profile",
            Self::Rtt => "rtt",
            Self::Transport => "transport",
            Self::Tls => "tls",
            Self::Kind => "kind",
            Self::Tfo => "tfo",
            Self::Token => "token",
            Self::Http => "http",
            Self::Group => "group",
            Self::Certificate => "certificate",
            Self::Size => "size",
        }
    }

    /// The axis of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|axis| axis.name() == name)
    }

    /// A cell's place on the axis, in words.
    pub fn of(self, cell: &Cell) -> String {
        match self {
            Self::Experiment => cell.experiment.clone(),
            Self::Client => cell.client.clone(),
            Self::Server => cell.server.clone(),
            Self::Workload => cell.workload.clone(),
            Self::Profile => cell.profile.clone(),
            Self::Rtt => cell.rtt_ms.to_string(),
            Self::Transport => cell.transport.clone(),
            Self::Tls => cell.tls.clone(),
            Self::Kind => cell.kind.clone(),
            Self::Tfo => if cell.tfo { "on" } else { "off" }.to_owned(),
            Self::Token => if cell.token { "on" } else { "off" }.to_owned(),
            Self::Http => cell.http.clone(),
            Self::Group => cell.group.clone(),
            Self::Certificate => cell.certificate.clone(),
            Self::Size => size(cell.response_bytes),
        }
    }

    /// Whether a cell is at this place.
    pub fn is(self, cell: &Cell, value: &str) -> bool {
        self.of(cell).eq_ignore_ascii_case(value)
    }

    /// A place as people write it (`0rtt`, `10kib`, `20ms`), in the form of [`Axis::of`].
    ///
    /// # Errors
    /// A sentence with what is allowed.
    pub fn read(self, value: &str) -> Result<String, String> {
        let lower = value.to_ascii_lowercase();
        match self {
            Self::Kind => match lower.as_str() {
                "full" | "resumed" | "refused" => Ok(lower),
                "0rtt" | "0-rtt" => Ok("0-RTT".to_owned()),
                _ => Err(format!(
                    "unknown kind {value:?}; allowed are full, resumed, 0rtt and refused"
                )),
            },
            Self::Tfo | Self::Token if lower != "on" && lower != "off" => {
                Err(format!("{} is on or off, not {value:?}", self.name()))
            }
            Self::Transport if lower != "tcp" && lower != "quic" => {
                Err(format!("transport is tcp or quic, not {value:?}"))
            }
            Self::Rtt => match lower.trim_end_matches("ms").trim().parse::<f64>() {
                Ok(ms) => Ok(ms.to_string()),
                Err(_) => Err(format!("rtt is in milliseconds, such as rtt=20, not {value:?}")),
            },
            Self::Size => read_size(&lower)
                .map(size)
                .ok_or_else(|| format!("size is in bytes, such as 1k, 10k or 1m, not {value:?}")),
            _ => Ok(value.to_owned()),
        }
    }
}

/// The experiment of connections to a server elsewhere, over a network that is not emulated.
pub const ELSEWHERE: &str = "remote";

/// Whether two cells are at the same place on all axes but these.
pub fn same_but_for(one: &Cell, other: &Cell, axes: &[Axis]) -> bool {
    // The profile and its round-trip time are one, and HTTP/3 is what runs over QUIC.
    let one_of = |those: [Axis; 2]| axes.iter().any(|axis| those.contains(axis));
    let network = one_of([Axis::Profile, Axis::Rtt]);
    // A path elsewhere has the round-trip time that a run finds: another one each time.
    let found = [one, other].iter().all(|cell| cell.experiment == ELSEWHERE);
    let carrier = one_of([Axis::Transport, Axis::Http]);
    // A first visitor has no token, and over TCP nobody has one.
    let first = axes.contains(&Axis::Kind) && (one.kind == "full" || other.kind == "full");
    let tokens_differ = first || (carrier && one.over_quic() != other.over_quic());
    Axis::ALL.into_iter().all(|axis| {
        axes.contains(&axis)
            || match axis {
                Axis::Profile => network,
                Axis::Rtt => network || found,
                Axis::Transport | Axis::Http => carrier,
                Axis::Token => tokens_differ,
                _ => false,
            }
            || axis.of(one) == axis.of(other)
    })
}

/// The axes on which some of these cells differ.
pub fn varying<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<Axis> {
    let mut cells = cells.into_iter();
    let Some(first) = cells.next() else { return Vec::new() };
    let mut varying = [false; Axis::ALL.len()];
    for cell in cells {
        for (axis, varies) in Axis::ALL.into_iter().zip(&mut varying) {
            *varies |= axis.of(cell) != axis.of(first);
        }
    }
    Axis::ALL.into_iter().zip(varying).filter(|(_, varies)| *varies).map(|(axis, _)| axis).collect()
}

/// The places of a record's cells on an axis, each once, in the order of the cells.
pub fn places(record: &Record, axis: Axis) -> Vec<String> {
    let mut places = Vec::new();
    for cell in record.cells.iter().filter(|cell| !cell.control) {
        let place = axis.of(cell);
        if !place.is_empty() && !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// A cell in words: what and where it is, without what never varies in the record.
pub fn name(record: &Record, cell: &Cell) -> String {
    worded(&varying(&record.cells), cell)
}

/// All cells in words, in their order.
pub fn names(record: &Record) -> Vec<String> {
    let varying = varying(&record.cells);
    record.cells.iter().map(|cell| worded(&varying, cell)).collect()
}

fn worded(varying: &[Axis], cell: &Cell) -> String {
    let shown = |axis: Axis| varying.contains(&axis) && !axis.of(cell).is_empty();
    let mut words = vec![cell.server.clone()];
    if shown(Axis::Client) {
        words.push(format!("by {}", cell.client));
    }
    if shown(Axis::Experiment) && cell.experiment != cell.workload {
        words.push(cell.experiment.clone());
    }
    words.push(cell.workload.clone());
    words.extend(
        [Axis::Http].into_iter().filter(|a| shown(*a)).map(|a| format!("HTTP/{}", a.of(cell))),
    );
    words.extend(
        [Axis::Size, Axis::Group, Axis::Certificate]
            .into_iter()
            .filter(|axis| shown(*axis) && (*axis != Axis::Size || cell.workload != "ping-pong"))
            .map(|axis| axis.of(cell)),
    );
    let path = path(cell);
    let control = if cell.control { " (A/A)" } else { "" };
    format!("{} at {path}, {} {}{control}", words.join(" "), protocol(cell), kind(cell))
}

/// What secures a cell's connections: `TLS 1.3`, or `QUIC`, which has TLS 1.3 inside.
pub fn protocol(cell: &Cell) -> String {
    match version(cell).as_str() {
        QUIC => QUIC.to_owned(),
        version => format!("TLS {version}"),
    }
}

/// The same in a column of versions: `1.2`, `1.3`, `QUIC`.
pub(crate) fn version(cell: &Cell) -> String {
    named_version(&cell.transport, &cell.tls)
}

/// The same of a transport and a TLS version.
pub(crate) fn named_version(transport: &str, tls: &str) -> String {
    if transport == "quic" { QUIC.to_owned() } else { tls.to_owned() }
}

pub(crate) const QUIC: &str = "QUIC";

/// A cell's kind with what the client brings to shorten it: `0-RTT + TFO`, `0-RTT + token`.
pub fn kind(cell: &Cell) -> String {
    with(&cell.kind, cell.tfo, cell.token)
}

/// A kind with TCP Fast Open or an address token.
pub(crate) fn with(kind: &str, tfo: bool, token: bool) -> String {
    let tfo = if tfo { " + TFO" } else { "" };
    let token = if token { " + token" } else { "" };
    format!("{kind}{tfo}{token}")
}

/// A cell's network in words: `20 ms`, or `cable (28 ms)`.
pub fn path(cell: &Cell) -> String {
    network(&cell.profile, cell.rtt_ms)
}

/// A network in words, by its profile's name and round-trip time.
pub(crate) fn network(profile: &str, rtt_ms: f64) -> String {
    let rtt = format!("{rtt_ms} ms");
    match profile.is_empty()
        || [&*rtt_ms.to_string(), &*rtt, &*format!("{rtt_ms}ms")].contains(&profile)
    {
        true => rtt,
        false => format!("{profile} ({rtt})"),
    }
}

/// A length in words: `1 KiB`, `1 MiB`, `300 B`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 B".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

fn read_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match text[digits..].trim() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        _ => return None,
    };
    number.checked_mul(factor)
}
