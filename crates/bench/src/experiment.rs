//! Experiments: which cells are measured, on which networks, how often, and what for.

use firstflight_link::Profile;
use firstflight_tls::Version;

use crate::axes::names;
use crate::{BenchError, Certificate, Group, Http, Kind, ServerKind, Size, Workload};

/// The values of each axis; a cell is one of each.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Servers under test, side by side.
    pub servers: Vec<ServerKind>,
    /// What is asked of them.
    pub workloads: Vec<Workload>,
    /// TLS versions.
    pub versions: Vec<Version>,
    /// Handshake kinds.
    pub kinds: Vec<Kind>,
    /// Without and with TCP Fast Open.
    pub tfo: Vec<bool>,
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
    /// One cell: a full handshake of TLS 1.3 and a GET of 1 KiB over HTTP/1.1 at our server, with
    /// X25519 and an ECDSA certificate, without TCP Fast Open.
    pub fn one() -> Self {
        Self {
            servers: vec![ServerKind::Firstflight],
            workloads: vec![Workload::Get],
            versions: vec![Version::Tls13],
            kinds: vec![Kind::Full],
            tfo: vec![false],
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
    /// The ping-pong matrix: every TLS version, kind and TCP Fast Open at five round-trip times,
    /// at our server.
    PingPong,
    /// A GET of 1 KiB at several servers and round-trip times.
    Get,
    /// curl's: a page of 10 KiB over HTTP/2 at 18 and 260 ms.
    Curl,
    /// The production blueprint's: percentiles of 1,000 runs in a local network.
    Blueprint,
    /// Early data that the server is made to refuse.
    Refused,
    /// Post-quantum key shares, with and without TCP Fast Open.
    PostQuantum,
}

names!(
    BuiltIn,
    "experiment",
    [
        PingPong = "ping-pong",
        Get = "get",
        Curl = "curl",
        Blueprint = "blueprint",
        Refused = "refused",
        PostQuantum = "post-quantum"
    ]
);

impl BuiltIn {
    /// What a lab measures if nothing else is asked for.
    pub const DEFAULT: [Self; 4] = [Self::PingPong, Self::Get, Self::Curl, Self::Blueprint];

    /// The experiment, at these servers (those of [`BuiltIn::PingPong`] and [`BuiltIn::Curl`] is
    /// always ours alone), with its own number of samples unless another is given.
    ///
    /// # Errors
    /// [`BenchError::Link`] if a profile is unknown, which does not happen.
    pub fn experiment(
        self,
        servers: &[ServerKind],
        samples: Option<usize>,
    ) -> Result<Experiment, BenchError> {
        let profiles = self.profiles().iter().map(|name| Profile::parse(name));
        Ok(Experiment {
            name: self.name().to_owned(),
            title: self.title().to_owned(),
            profiles: profiles.collect::<Result<_, _>>()?,
            axes: self.axes(servers),
            samples: samples.unwrap_or(match self {
                Self::Blueprint => 1_000,
                _ => 100,
            }),
            control: true,
        })
    }

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Self::PingPong => "PING and PONG straight on TLS, every version and kind",
            Self::Get => "a GET of 1 KiB over HTTP/1.1",
            Self::Curl => "a page of 10 KiB over HTTP/2, as curl's bars have it",
            Self::Blueprint => "a GET of 1 KiB in a local network, 1,000 runs",
            Self::Refused => {
                "early data that the server refuses, for its ticket claims to be older"
            }
            Self::PostQuantum => {
                "post-quantum key shares; with a ticket the ClientHello does not fit into a SYN"
            }
        }
    }

    fn profiles(self) -> &'static [&'static str] {
        match self {
            Self::PingPong => &["200", "20", "2", "0.2", "0.02"],
            Self::Get => &["200", "20", "2", "0.2"],
            Self::Curl => &["curl-18", "curl-260"],
            Self::Blueprint => &["lan"],
            Self::Refused | Self::PostQuantum => &["20"],
        }
    }

    fn axes(self, servers: &[ServerKind]) -> Axes {
        let every_kind = vec![Kind::Full, Kind::Resumed, Kind::ZeroRtt];
        let both = vec![false, true];
        let at = Axes { servers: servers.to_vec(), kinds: every_kind.clone(), ..Axes::one() };
        match self {
            Self::PingPong => Axes {
                workloads: vec![Workload::PingPong],
                versions: Version::ALL.to_vec(),
                kinds: every_kind,
                tfo: both,
                ..Axes::one()
            },
            Self::Get => Axes { versions: vec![Version::Tls12, Version::Tls13], tfo: both, ..at },
            Self::Curl => Axes {
                servers: vec![ServerKind::Firstflight],
                http: vec![Http::Two],
                sizes: vec![Size::TenKib],
                ..at
            },
            Self::Blueprint => Axes { servers: vec![ServerKind::Firstflight], ..at },
            Self::Refused => {
                Axes { kinds: vec![Kind::Full, Kind::ZeroRtt, Kind::Refused], tfo: both, ..at }
            }
            Self::PostQuantum => {
                Axes { groups: vec![Group::X25519, Group::X25519MlKem768], tfo: both, ..at }
            }
        }
    }
}
