//! Experiments: which cells are measured, on which networks, how often, and what for.

use std::time::Duration;

use firstflight_emulator::{CellSpec, LossSpec, Profile, ReorderSpec};
use firstflight_samples::ConnectionAxes;
use firstflight_tls::Version;

use crate::{
    Certificate, Client, Group, Http, Kind, LabError, ServerKind, Size, Transport, Workload,
};

/// The values of each axis; a cell is one of each.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Servers under test, side by side.
    pub servers: Vec<ServerKind>,
    /// Who connects.
    pub clients: Vec<Client>,
    /// What is asked of them.
    pub workloads: Vec<Workload>,
    /// What TLS runs over. A GET's follows from its HTTP version, and is left out if it is not
    /// among these.
    pub transports: Vec<Transport>,
    /// TLS versions.
    pub versions: Vec<Version>,
    /// Handshake kinds.
    pub kinds: Vec<Kind>,
    /// Without and with TCP Fast Open.
    pub tfo: Vec<bool>,
    /// Without and with an address token. Over TCP, and on a first visit, there is none.
    pub tokens: Vec<bool>,
    /// HTTP versions of a GET.
    pub http: Vec<Http>,
    /// Key-share groups.
    pub groups: Vec<Group>,
    /// Certificates of the servers.
    pub certificates: Vec<Certificate>,
    /// Sizes of a GET's answer.
    pub sizes: Vec<Size>,
}

impl Axes {
    /// Those of a connection.
    pub(crate) fn connections(&self) -> ConnectionAxes {
        let axes = self.clone();
        ConnectionAxes {
            workloads: axes.workloads,
            transports: axes.transports,
            versions: axes.versions,
            kinds: axes.kinds,
            tfo: axes.tfo,
            tokens: axes.tokens,
            http: axes.http,
            groups: axes.groups,
            certificates: axes.certificates,
            sizes: axes.sizes,
        }
    }

    /// One cell of ours: a full handshake of TLS 1.3 and a GET of 1 KiB over HTTP/1.1 at our
    /// server, with X25519 and an ECDSA certificate, without TCP Fast Open.
    pub fn one() -> Self {
        Self {
            servers: vec![ServerKind::Firstflight],
            clients: vec![Client::Firstflight],
            workloads: vec![Workload::Get],
            transports: Transport::ALL.to_vec(),
            versions: vec![Version::Tls13],
            kinds: vec![Kind::Full],
            tfo: vec![false],
            tokens: vec![false],
            http: vec![Http::One],
            groups: vec![Group::X25519],
            certificates: vec![Certificate::EcdsaP256],
            sizes: vec![Size::OneKib],
        }
    }
}

/// Cells that are measured for one purpose.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name in cells.
    pub name: String,
    /// In words.
    pub title: String,
    /// On which networks.
    pub profiles: Vec<Profile>,
    /// Which cells on each of them.
    pub axes: Axes,
    /// Samples a cell.
    pub samples: usize,
    /// Whether some of its cells are measured twice, as A/A control.
    pub control: bool,
}

/// The experiments that come with their axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BuiltIn {
    /// The ping-pong matrix: every TLS version, kind and TCP Fast Open, and QUIC, at five
    /// round-trip times, at our server.
    PingPong,
    /// A GET of 1 KiB over HTTP/1.1 and HTTP/3 at several servers and round-trip times.
    Get,
    /// curl's: a page of 10 KiB over HTTP/2 and HTTP/3 at 18 and 260 ms.
    Curl,
    /// The production blueprint's: percentiles of 1,000 runs in a local network.
    Blueprint,
    /// Early data that the server is made to refuse.
    Refused,
    /// Post-quantum key shares, with and without TCP Fast Open, and over QUIC.
    PostQuantum,
    /// Lost and overtaken packets, over TCP and over QUIC.
    Loss,
    /// curl's page over HTTP/3 by clients of other makes, at our server.
    ThirdParty,
}

firstflight_samples::names!(
    BuiltIn,
    "experiment",
    [
        PingPong = "ping-pong",
        Get = "get",
        Curl = "curl",
        Blueprint = "blueprint",
        Refused = "refused",
        PostQuantum = "post-quantum",
        Loss = "loss",
        ThirdParty = "third-party"
    ]
);

impl BuiltIn {
    /// What a lab measures if nothing else is requested.
    pub const DEFAULT: [Self; 4] = [Self::PingPong, Self::Get, Self::Curl, Self::Blueprint];

    /// The experiment, at these servers ([`BuiltIn::Get`], [`BuiltIn::Refused`] and
    /// [`BuiltIn::PostQuantum`]; the others are ours alone), with its own number of samples unless
    /// another is given.
    ///
    /// # Errors
    /// [`LabError::Link`] if a profile is unknown, which does not happen.
    pub fn experiment(
        self,
        servers: &[ServerKind],
        samples: Option<usize>,
    ) -> Result<Experiment, LabError> {
        let profiles = match self {
            Self::Loss => lossy(),
            _ => {
                self.profiles().iter().map(|name| Profile::parse(name)).collect::<Result<_, _>>()?
            }
        };
        Ok(Experiment {
            name: self.name().to_owned(),
            title: self.title().to_owned(),
            profiles,
            axes: self.axes(servers),
            samples: samples.unwrap_or(match self {
                Self::Blueprint => 1_000,
                // What a lost packet costs shows in one connection of ten or twenty.
                Self::Loss => 400,
                Self::ThirdParty => 50,
                _ => 100,
            }),
            control: true,
        })
    }

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Self::PingPong => "PING and PONG straight on TLS, every version and kind, and QUIC",
            Self::Get => "a GET of 1 KiB over HTTP/1.1 and HTTP/3",
            Self::Curl => "a page of 10 KiB over HTTP/2 and HTTP/3, as curl's bars have it",
            Self::Blueprint => "a GET of 1 KiB in a local network, 1,000 runs",
            Self::Refused => {
                "early data that the server refuses, for its ticket claims to be older"
            }
            Self::PostQuantum => {
                "post-quantum key shares; with a ticket the ClientHello does not fit into a SYN"
            }
            Self::Loss => "a page of 10 KiB where packets are lost or overtaken, TCP and QUIC",
            Self::ThirdParty => {
                "a page of 10 KiB over HTTP/3 by clients of other makes, every time from packets"
            }
        }
    }

    fn profiles(self) -> &'static [&'static str] {
        match self {
            Self::PingPong => &["200", "20", "2", "0.2", "0.02"],
            Self::Get => &["200", "20", "2", "0.2"],
            Self::Curl | Self::ThirdParty => &["curl-18", "curl-260"],
            Self::Blueprint => &["lan"],
            Self::Refused | Self::PostQuantum => &["20"],
            Self::Loss => &[],
        }
    }

    fn axes(self, servers: &[ServerKind]) -> Axes {
        let ours = Axes { kinds: EARLY.to_vec(), ..Axes::one() };
        let at = Axes { servers: servers.to_vec(), ..ours.clone() };
        let page = Axes { sizes: vec![Size::TenKib], ..ours.clone() };
        let (both, three) = (vec![false, true], Http::Three);
        match self {
            Self::PingPong => Axes {
                workloads: vec![Workload::PingPong],
                versions: Version::ALL.to_vec(),
                tfo: both,
                ..ours
            },
            Self::Get => Axes {
                versions: vec![Version::Tls12, Version::Tls13],
                tfo: both,
                http: vec![Http::One, three],
                ..at
            },
            Self::Curl => Axes { http: vec![Http::Two, three], tokens: both, ..page },
            Self::Blueprint => Axes { http: vec![Http::One, three], ..ours },
            Self::Refused => Axes {
                kinds: vec![Kind::Full, Kind::ZeroRtt, Kind::Refused],
                tfo: both,
                http: vec![Http::One, three],
                ..at
            },
            Self::PostQuantum => Axes {
                groups: vec![Group::X25519, Group::X25519MlKem768],
                tfo: both,
                http: vec![Http::One, three],
                ..at
            },
            Self::Loss => Axes {
                kinds: vec![Kind::Full, Kind::ZeroRtt],
                http: vec![Http::Two, three],
                tokens: vec![true],
                ..page
            },
            Self::ThirdParty => Axes {
                clients: vec![Client::Ngtcp2, Client::Aioquic],
                http: vec![three],
                tokens: both,
                ..page
            },
        }
    }
}

/// The kinds of an experiment that has no reason for others.
const EARLY: [Kind; 3] = [Kind::Full, Kind::Resumed, Kind::ZeroRtt];

/// A path without fault and the same with faults of one kind each.
fn lossy() -> Vec<Profile> {
    let with = |name: &str, fault: Option<CellSpec>| {
        let mut profile = Profile::plain(LOSSY_RTT);
        let each_way = |cells: &mut Vec<CellSpec>| cells.extend(fault.clone());
        each_way(&mut profile.up);
        each_way(&mut profile.down);
        Profile { name: format!("{}{name}", profile.name), ..profile }
    };
    let loss = |probability| Some(CellSpec::Loss(LossSpec { probability }));
    vec![
        with("", None),
        with(", 1 % lost", loss(0.01)),
        with(", 2 % lost", loss(0.02)),
        with(", 5 % lost", loss(0.05)),
        with(
            ", 5 % overtaken",
            // Two milliseconds are several packets of a flight, and less than any timer.
            Some(CellSpec::Reorder(ReorderSpec {
                probability: 0.05,
                by: Duration::from_millis(2),
            })),
        ),
    ]
}

const LOSSY_RTT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use firstflight_samples::{RequestedConnection, combinations};

    use super::*;

    #[test]
    fn every_built_in_experiment_has_cells_over_quic() {
        for built_in in BuiltIn::ALL {
            let experiment = built_in.experiment(&[ServerKind::Firstflight], Some(1)).unwrap();
            let found = combinations(&experiment.axes.connections());
            assert!(found.iter().any(RequestedConnection::over_quic), "{built_in}");
            assert!(found.iter().all(|asked| asked.over_quic() || asked.http != Http::Three));
        }
    }
}
