//! The workloads by which servers are compared.

use firstflight_bench::{LoadHandshake, Transport};
use firstflight_samples::HttpVersion;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// A workload by which servers are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell {
    /// A connection with one request for a file of 1 KiB.
    Connection(Transport, LoadHandshake),
    /// Requests on persistent connections.
    KeepAlive(HttpVersion, Content),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content {
    /// A file of this name.
    File(&'static str),
    /// A file of this name from an upstream, over persistent connections.
    Proxied(&'static str),
}

/// The files of each server, with their sizes.
pub(crate) const FILES: [(&str, u64); 3] = [("1k", 1 << 10), ("1m", 1 << 20), ("100m", 100 << 20)];

/// Limits the connections that request a large file, so that a server need not hold all of it in
/// memory for many connections.
const MAX_CONNECTIONS: [(&str, usize); 2] = [("1m", 8), ("100m", 2)];

impl Cell {
    pub(crate) fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for transport in [Transport::Tcp, Transport::Quic] {
            for kind in [LoadHandshake::Full, LoadHandshake::Resumed, LoadHandshake::ZeroRtt] {
                cells.push(Self::Connection(transport, kind));
            }
        }
        for http in [HttpVersion::One, HttpVersion::Two, HttpVersion::Three] {
            cells.extend(
                ["1k", "1m", "100m"].map(|name| Self::KeepAlive(http, Content::File(name))),
            );
            cells.extend(["1k", "1m"].map(|name| Self::KeepAlive(http, Content::Proxied(name))));
        }
        cells
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Connection(transport, kind) => format!("{}, {}", transport.name(), kind.name()),
            Self::KeepAlive(http, content) => {
                format!("kept HTTP/{}, {}", http.name(), content.name())
            }
        }
    }

    /// The name of the cell of full handshakes over the same transport, which comes before.
    pub(crate) fn full_handshake(&self) -> Option<String> {
        match self {
            Self::Connection(_, LoadHandshake::Full) | Self::KeepAlive(..) => None,
            Self::Connection(transport, _) => {
                Some(Self::Connection(*transport, LoadHandshake::Full).name())
            }
        }
    }

    pub(crate) fn http(&self) -> HttpVersion {
        match self {
            Self::Connection(Transport::Tcp, _) => HttpVersion::One,
            Self::Connection(Transport::Quic, _) => HttpVersion::Three,
            Self::KeepAlive(http, _) => *http,
        }
    }

    pub(crate) fn content(&self) -> Content {
        match self {
            Self::Connection(..) => Content::File("1k"),
            Self::KeepAlive(_, content) => *content,
        }
    }
}

/// The cells in a random order. Over each transport, full handshakes precede the other handshakes,
/// which need their cost.
pub(crate) fn shuffled(cells: &[Cell], random: &mut StdRng) -> Vec<Cell> {
    let mut cells = cells.to_vec();
    cells.shuffle(random);
    for full in
        [Transport::Tcp, Transport::Quic].map(|over| Cell::Connection(over, LoadHandshake::Full))
    {
        let depends = |cell: &Cell| *cell == full || cell.full_handshake() == Some(full.name());
        let first = cells.iter().position(depends);
        let position = cells.iter().position(|cell| *cell == full);
        if let Some((first, position)) = first.zip(position) {
            cells.swap(first, position);
        }
    }
    cells
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

    pub(crate) fn bytes(self) -> u64 {
        let (Self::File(name) | Self::Proxied(name)) = self;
        FILES.iter().find(|(file, _)| *file == name).map_or(0, |(_, bytes)| *bytes)
    }

    pub(crate) fn connections(self, requested: usize) -> usize {
        let (Self::File(name) | Self::Proxied(name)) = self;
        let large = MAX_CONNECTIONS.iter().find(|(large, _)| *large == name);
        large.map_or(requested, |(_, limit)| requested.min(*limit))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

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

    #[test]
    fn rounds_differ_in_order_and_full_handshakes_precede_cells_that_need_their_cost() {
        let (all, mut random) = (Cell::all(), StdRng::seed_from_u64(1));
        let rounds = [(); 20].map(|()| shuffled(&all, &mut random));
        for round in &rounds {
            let position = |name: &str| round.iter().position(|cell| cell.name() == name).unwrap();
            for cell in round.iter().filter(|cell| cell.full_handshake().is_some()) {
                assert!(
                    position(&cell.full_handshake().unwrap()) < position(&cell.name()),
                    "{round:?}"
                );
            }
            assert_eq!(round.len(), all.len());
        }
        assert!(rounds.windows(2).all(|two| two[0] != two[1]));
        let again = shuffled(&all, &mut StdRng::seed_from_u64(1));
        assert_eq!(again, rounds[0], "the seed decides");
    }

    #[test]
    fn each_content_has_a_size() {
        assert!(Cell::all().iter().all(|cell| cell.content().bytes() >= 1024));
    }
}
