//! The axes of the matrix: the values of a cell on them, and which axes vary in a record.

use crate::{Cell, Record};

/// One axis of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The experiment.
    Experiment,
    /// The client.
    Client,
    /// The server under test.
    Server,
    /// `ping-pong` or `get`.
    Workload,
    /// The network.
    Profile,
    /// The network's round-trip time in milliseconds.
    Rtt,
    /// What TLS runs over: TCP or QUIC.
    Transport,
    /// TLS version.
    Tls,
    /// Full, resumed, 0-RTT or refused.
    Kind,
    /// TCP Fast Open.
    Tfo,
    /// Whether a QUIC client sends an address token from an earlier connection.
    Token,
    /// HTTP version.
    Http,
    /// Key-share group.
    Group,
    /// Cipher suite.
    Cipher,
    /// The server's certificate.
    Certificate,
    /// Length of the response.
    Size,
}

impl Axis {
    /// All axes, from the outermost to the innermost.
    pub const ALL: [Self; 16] = [
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
        Self::Cipher,
        Self::Certificate,
        Self::Size,
    ];

    /// The name of the axis in conditions and CSV columns.
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
            Self::Cipher => "cipher",
            Self::Certificate => "certificate",
            Self::Size => "size",
        }
    }

    /// The axis with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|axis| axis.name() == name)
    }

    /// The value of a cell on the axis, as text.
    pub fn value(self, cell: &Cell) -> String {
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
            Self::Cipher => cell.cipher.clone(),
            Self::Certificate => cell.certificate.clone(),
            Self::Size => size(cell.response_bytes),
        }
    }

    /// Whether a cell has this value on the axis.
    pub fn matches(self, cell: &Cell, value: &str) -> bool {
        self.value(cell).eq_ignore_ascii_case(value)
    }

    /// Parses a value as users write it (`0rtt`, `10kib`, `20ms`) into the form of [`Axis::value`].
    ///
    /// # Errors
    /// A sentence with the allowed values.
    pub fn parse_value(self, value: &str) -> Result<String, String> {
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

/// The name of this project's client, which is left out of the names of cells.
pub(crate) const OWN_CLIENT: &str = "firstflight";

/// The experiment that times clients as the published blueprint does.
pub(crate) const CLIENT_TIMING: &str = "s-client";

/// Whether a cell belongs to an experiment that compares clients. These cells have their own table
/// and are in no matrix.
pub(crate) fn compares_clients(cell: &Cell) -> bool {
    ["clients", CLIENT_TIMING].contains(&cell.experiment.as_str())
}

/// The experiment name of connections to a remote server, over a network that is not emulated.
pub const REMOTE_EXPERIMENT: &str = "remote";

/// Whether two cells have the same values on all axes except these.
pub fn same_except(one: &Cell, other: &Cell, axes: &[Axis]) -> bool {
    // A profile implies its round-trip time, and QUIC implies HTTP/3.
    let excepts_either = |pair: [Axis; 2]| axes.iter().any(|axis| pair.contains(axis));
    let network = excepts_either([Axis::Profile, Axis::Rtt]);
    // The round-trip time to a remote server and the size of its page are measured, and differ from
    // run to run.
    let remote = [one, other].iter().all(|cell| cell.experiment == REMOTE_EXPERIMENT);
    let transport = excepts_either([Axis::Transport, Axis::Http]);
    // Full handshakes and connections over TCP have no token.
    let one_is_full = axes.contains(&Axis::Kind) && (one.kind == "full" || other.kind == "full");
    let tokens_may_differ = one_is_full || (transport && one.over_quic() != other.over_quic());
    Axis::ALL.into_iter().all(|axis| {
        axes.contains(&axis)
            || match axis {
                Axis::Profile => network,
                Axis::Rtt => network || remote,
                Axis::Size => remote,
                Axis::Transport | Axis::Http => transport,
                Axis::Token => tokens_may_differ,
                _ => false,
            }
            || axis.value(one) == axis.value(other)
    })
}

/// The axes on which the cells differ.
pub fn varying<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<Axis> {
    let mut cells = cells.into_iter();
    let Some(first) = cells.next() else { return Vec::new() };
    let mut varying = [false; Axis::ALL.len()];
    for cell in cells {
        for (axis, varies) in Axis::ALL.into_iter().zip(&mut varying) {
            *varies |= axis.value(cell) != axis.value(first);
        }
    }
    Axis::ALL.into_iter().zip(varying).filter(|(_, varies)| *varies).map(|(axis, _)| axis).collect()
}

/// The distinct values of a record's cells on an axis, in the order of the cells.
pub fn axis_values(record: &Record, axis: Axis) -> Vec<String> {
    let mut values = Vec::new();
    for cell in record.cells.iter().filter(|cell| !cell.control) {
        let value = axis.value(cell);
        if !value.is_empty() && !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// The name of a cell: its values on the axes that vary in the record.
pub fn cell_name(record: &Record, cell: &Cell) -> String {
    describe_cell(&varying(&record.cells), cell)
}

/// The names of all cells, in the record's order.
pub fn cell_names(record: &Record) -> Vec<String> {
    let varying = varying(&record.cells);
    record.cells.iter().map(|cell| describe_cell(&varying, cell)).collect()
}

fn describe_cell(varying: &[Axis], cell: &Cell) -> String {
    let shown = |axis: Axis| varying.contains(&axis) && !axis.value(cell).is_empty();
    let mut words = vec![cell.server.clone()];
    if shown(Axis::Client) && cell.client != OWN_CLIENT {
        words.push(format!("by {}", cell.client));
    }
    if shown(Axis::Experiment) && cell.experiment != cell.workload {
        words.push(cell.experiment.clone());
    }
    words.push(cell.workload.clone());
    words.extend(
        [Axis::Http].into_iter().filter(|a| shown(*a)).map(|a| format!("HTTP/{}", a.value(cell))),
    );
    words.extend(
        [Axis::Size, Axis::Group, Axis::Cipher, Axis::Certificate]
            .into_iter()
            .filter(|axis| shown(*axis) && (*axis != Axis::Size || cell.workload != "ping-pong"))
            .map(|axis| axis.value(cell)),
    );
    let path = path(cell);
    let control = if cell.control { " (A/A)" } else { "" };
    format!("{} at {path}, {} {}{control}", words.join(" "), protocol(cell), kind(cell))
}

/// The security protocol of a cell: `TLS 1.3`, or `QUIC`, which includes TLS 1.3.
pub fn protocol(cell: &Cell) -> String {
    match version(cell).as_str() {
        QUIC => QUIC.to_owned(),
        version => format!("TLS {version}"),
    }
}

/// The protocol version for a column: `1.2`, `1.3`, `QUIC`.
pub(crate) fn version(cell: &Cell) -> String {
    named_version(&cell.transport, &cell.tls)
}

/// The protocol version of a transport and a TLS version.
pub(crate) fn named_version(transport: &str, tls: &str) -> String {
    if transport == "quic" { QUIC.to_owned() } else { tls.to_owned() }
}

pub(crate) const QUIC: &str = "QUIC";

/// A cell's kind with TCP Fast Open or an address token: `0-RTT + TFO`, `0-RTT + token`.
pub fn kind(cell: &Cell) -> String {
    kind_with_options(&cell.kind, cell.tfo, cell.token)
}

/// A kind with TCP Fast Open or an address token.
pub(crate) fn kind_with_options(kind: &str, tfo: bool, token: bool) -> String {
    let tfo = if tfo { " + TFO" } else { "" };
    let token = if token { " + token" } else { "" };
    format!("{kind}{tfo}{token}")
}

/// A cell's network: `20 ms`, or `cable (28 ms)`.
pub fn path(cell: &Cell) -> String {
    network(&cell.profile, cell.rtt_ms)
}

/// A network by its profile's name and round-trip time.
pub(crate) fn network(profile: &str, rtt_ms: f64) -> String {
    let rtt = format!("{rtt_ms} ms");
    match profile.is_empty()
        || [&*rtt_ms.to_string(), &*rtt, &*format!("{rtt_ms}ms")].contains(&profile)
    {
        true => rtt,
        false => format!("{profile} ({rtt})"),
    }
}

/// A length as text: `1 KiB`, `1 MiB`, `300 B`.
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

/// The order of kinds in tables.
pub(crate) fn kind_order(kind: &str) -> usize {
    ["full", "resumed", "0-RTT", "refused"].iter().position(|name| *name == kind).unwrap_or(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_remote_page_does_not_identify_a_cell() {
        let pages = |experiment: &str| {
            [1_000, 1_001].map(|response_bytes| Cell {
                experiment: experiment.to_owned(),
                response_bytes,
                ..Cell::default()
            })
        };
        let [before, after] = pages(REMOTE_EXPERIMENT);
        assert!(same_except(&before, &after, &[]));
        let [small, large] = pages("matrix");
        assert!(!same_except(&small, &large, &[]));
    }
}
