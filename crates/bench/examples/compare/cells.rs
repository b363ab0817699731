//! Work that servers are compared by.

use firstflight_bench::{LoadHandshake, Transport};
use firstflight_samples::HttpVersion;

/// Work that servers are compared by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell {
    /// A connection with one request for a file of 1 KiB.
    Connection(Transport, LoadHandshake),
    /// A request on a connection that is kept.
    Kept(HttpVersion, Content),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content {
    /// A file of this name.
    File(&'static str),
    /// From an upstream, over connections that are kept.
    Proxied(&'static str),
}

/// Fewer at a time, since a server need not have all of a large file in memory for each.
const LARGE: [(&str, usize); 2] = [("1m", 8), ("100m", 2)];

impl Cell {
    pub(crate) fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for transport in [Transport::Tcp, Transport::Quic] {
            for kind in [LoadHandshake::Full, LoadHandshake::Resumed, LoadHandshake::ZeroRtt] {
                cells.push(Self::Connection(transport, kind));
            }
        }
        for http in [HttpVersion::One, HttpVersion::Two, HttpVersion::Three] {
            cells.extend(["1k", "1m", "100m"].map(|name| Self::Kept(http, Content::File(name))));
            cells.extend(["1k", "1m"].map(|name| Self::Kept(http, Content::Proxied(name))));
        }
        cells
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Connection(transport, kind) => format!("{}, {}", transport.name(), kind.name()),
            Self::Kept(http, content) => format!("kept HTTP/{}, {}", http.name(), content.name()),
        }
    }

    /// The cell of full handshakes over the same transport, which comes before.
    pub(crate) fn full_handshake(&self) -> Option<String> {
        match self {
            Self::Connection(_, LoadHandshake::Full) | Self::Kept(..) => None,
            Self::Connection(transport, _) => {
                Some(Self::Connection(*transport, LoadHandshake::Full).name())
            }
        }
    }

    pub(crate) fn http(&self) -> HttpVersion {
        match self {
            Self::Connection(Transport::Tcp, _) => HttpVersion::One,
            Self::Connection(Transport::Quic, _) => HttpVersion::Three,
            Self::Kept(http, _) => *http,
        }
    }

    pub(crate) fn content(&self) -> Content {
        match self {
            Self::Connection(..) => Content::File("1k"),
            Self::Kept(_, content) => *content,
        }
    }
}

impl Content {
    pub(crate) fn path(self) -> String {
        match self {
            Self::File(name) => format!("/{name}"),
            Self::Proxied(name) => format!("/proxied/{name}"),
        }
    }

    fn name(self) -> String {
        let size = |name: &str| name.replace('k', " KiB").replace('m', " MiB");
        match self {
            Self::File(name) => size(name),
            Self::Proxied(name) => format!("proxied {}", size(name)),
        }
    }

    pub(crate) fn connections(self, wanted: usize) -> usize {
        let (Self::File(name) | Self::Proxied(name)) = self;
        let large = LARGE.iter().find(|(large, _)| *large == name);
        large.map_or(wanted, |(_, limit)| wanted.min(*limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_different_names() {
        let names: std::collections::BTreeSet<String> =
            Cell::all().iter().map(Cell::name).collect();
        assert_eq!(names.len(), Cell::all().len());
        assert!(names.contains("TCP, 0-RTT") && names.contains("kept HTTP/2, proxied 1 MiB"));
    }

    #[test]
    fn large_files_have_fewer_connections() {
        assert_eq!(Content::File("1k").connections(64), 64);
        assert_eq!(Content::Proxied("1m").connections(64), 8);
        assert_eq!(Content::File("100m").connections(1), 1);
    }
}
