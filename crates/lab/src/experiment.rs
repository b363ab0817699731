//! Experiments: which cells are measured, on which networks, how often, and why.

use std::time::Duration;

use firstflight_emulator::{CellSpec, LossSpec, Profile, RateSpec, ReorderSpec};
use firstflight_samples::{ConnectionAxes, RequestedConnection, combinations};
use firstflight_tls::Version;

use crate::{
    CertificateKind, ClientKind, Group, HandshakeKind, HttpVersion, LabError, ResponseSize,
    ServerKind, Workload,
};

/// The values of each axis. A cell has one value of each.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Servers under test.
    pub servers: Vec<ServerKind>,
    /// Client implementations.
    pub clients: Vec<ClientKind>,
    /// The axes of the connections that the clients make.
    pub connections: ConnectionAxes,
}

impl Axes {
    /// A single cell with this project's client and server, and [`ConnectionAxes::baseline`].
    pub fn baseline() -> Self {
        Self {
            servers: vec![ServerKind::Firstflight],
            clients: vec![ClientKind::Firstflight],
            connections: ConnectionAxes::baseline(),
        }
    }

    /// Every combination of the connection axes.
    pub fn connections(&self) -> Vec<RequestedConnection> {
        combinations(&self.connections)
    }
}

/// A set of cells that are measured for one purpose.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The name in the record.
    pub name: String,
    /// A description for reports.
    pub title: String,
    /// The networks.
    pub profiles: Vec<Profile>,
    /// The cells on each network.
    pub axes: Axes,
    /// Samples of each cell.
    pub samples: usize,
    /// Whether to measure some of the cells twice, as A/A control.
    pub control: bool,
}

/// The experiments with predefined axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BuiltInExperiment {
    /// The ping-pong matrix: every TLS version, kind and TCP Fast Open, and QUIC, at five
    /// round-trip times, at our server.
    PingPong,
    /// A GET of 1 KiB over HTTP/1.1 and HTTP/3 at several servers and round-trip times.
    Get,
    /// A page of 10 KiB over HTTP/2 and HTTP/3 at 18 and 260 ms, as curl has measured it.
    Curl,
    /// Percentiles of 1,000 runs in a local network.
    Blueprint,
    /// A GET of 1 KiB on the access networks that the walk-through of 2019 ranked, and on newer
    /// networks.
    Access,
    /// An image of 1 MiB at the walk-through's round-trip time and at rates from 1 to 20 Mbit/s.
    Image,
    /// Early data that the server refuses because of the ticket's age.
    Refused,
    /// Post-quantum key shares, with and without TCP Fast Open, and over QUIC.
    PostQuantum,
    /// Certificates and chains, without and with compression, over TCP and over QUIC.
    Certificates,
    /// Lost and reordered packets, over TCP and over QUIC.
    Loss,
    /// A page of 10 KiB over HTTP/3, requested by third-party clients at this project's server.
    ThirdParty,
    /// A few GETs by this project's client and by every other that is installed.
    Clients,
    /// The blueprint's 1,000 runs of `openssl s_client` in a local network, and as many by this
    /// project's client.
    SClient,
}

firstflight_samples::axis_values!(
    BuiltInExperiment,
    "experiment",
    [
        PingPong = "ping-pong",
        Get = "get",
        Curl = "curl",
        Blueprint = "blueprint",
        Access = "access",
        Image = "image",
        Refused = "refused",
        PostQuantum = "post-quantum",
        Certificates = "certificates",
        Loss = "loss",
        ThirdParty = "third-party",
        Clients = "clients",
        SClient = "s-client"
    ]
);

impl BuiltInExperiment {
    /// The experiments of a run for which none is named.
    pub const DEFAULT: [Self; 7] = [
        Self::PingPong,
        Self::Get,
        Self::Curl,
        Self::Blueprint,
        Self::Access,
        Self::Image,
        Self::Clients,
    ];

    /// Returns the experiment with `samples` samples of each cell, or its default number.
    ///
    /// `servers` applies to [`Self::Get`], [`Self::Refused`] and [`Self::PostQuantum`]. The other
    /// experiments measure this project's server only.
    ///
    /// # Errors
    /// [`LabError::Link`] if a profile is unknown, which does not happen for built-in experiments.
    pub fn experiment(
        self,
        servers: &[ServerKind],
        samples: Option<usize>,
    ) -> Result<Experiment, LabError> {
        let profiles = match self {
            Self::Loss => lossy_networks(),
            Self::Image => walk_through_at_rates()?,
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
                Self::Blueprint | Self::SClient => 1_000,
                // A lost packet affects only one connection in ten or twenty.
                Self::Loss => 400,
                Self::ThirdParty => 50,
                Self::Certificates => 30,
                // Taken one at a time, while other networks are measured: this many fit into that
                // time.
                Self::Access => 8,
                Self::Image => 3,
                // Each sample starts a process while other networks are measured.
                Self::Clients => 6,
                _ => 100,
            }),
            // A control of six samples says little.
            control: self != Self::Clients,
        })
    }

    /// A description for reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::PingPong => {
                "PING and PONG directly on TLS, every version and handshake, and QUIC"
            }
            Self::Get => "a GET of 1 KiB over HTTP/1.1 and HTTP/3",
            Self::Curl => "a page of 10 KiB over HTTP/2 and HTTP/3, as curl has measured it",
            Self::Blueprint => "a GET of 1 KiB in a local network, 1,000 runs",
            Self::Access => "a GET of 1 KiB on access networks, from fibre to satellites",
            Self::Image => "an image of 1 MiB at 112 ms and rates from 1 to 20 Mbit/s",
            Self::Refused => "early data that the server refuses because of the ticket's age",
            Self::PostQuantum => {
                "post-quantum key shares; with a ticket the ClientHello does not fit into a SYN"
            }
            Self::Certificates => {
                "full handshakes with each certificate, without and with its compression"
            }
            Self::Loss => "a page of 10 KiB on networks that lose or reorder packets, TCP and QUIC",
            Self::ThirdParty => {
                "a page of 10 KiB over HTTP/3 by third-party clients, all times from packets"
            }
            Self::Clients => "a GET of 1 KiB by third-party clients, all times from packets",
            Self::SClient => "1,000 GETs by openssl s_client in a local network, and by our client",
        }
    }

    fn profiles(self) -> &'static [&'static str] {
        match self {
            Self::PingPong => &["200", "20", "2", "0.2", "0.02"],
            Self::Get => &["200", "20", "2", "0.2"],
            Self::Curl | Self::ThirdParty => &["curl-18", "curl-260"],
            Self::Blueprint | Self::SClient => &["lan"],
            Self::Refused | Self::PostQuantum | Self::Clients => &["20"],
            // Without and with a limited rate.
            Self::Certificates => &["20", "cable"],
            Self::Access => {
                &["fibre", "fibre+wifi", "adsl", "adsl+wifi", "4g", "5g", "3g", "2g", "geo", "leo"]
            }
            Self::Loss | Self::Image => &[],
        }
    }

    fn axes(self, servers: &[ServerKind]) -> Axes {
        let mut axes = Axes { connections: self.connections(), ..Axes::baseline() };
        match self {
            Self::Get | Self::Refused | Self::PostQuantum => axes.servers = servers.to_vec(),
            Self::ThirdParty => axes.clients = vec![ClientKind::Ngtcp2, ClientKind::Aioquic],
            Self::Clients => axes.clients = ClientKind::ALL.to_vec(),
            Self::SClient => axes.clients = vec![ClientKind::Firstflight, ClientKind::OpenSsl],
            Self::PingPong
            | Self::Curl
            | Self::Blueprint
            | Self::Access
            | Self::Image
            | Self::Certificates
            | Self::Loss => {}
        }
        axes
    }

    fn connections(self) -> ConnectionAxes {
        let get = ConnectionAxes { kinds: DEFAULT_KINDS.to_vec(), ..ConnectionAxes::baseline() };
        let page = ConnectionAxes { sizes: vec![ResponseSize::TenKib], ..get.clone() };
        let (both, http_1_and_3) = (vec![false, true], vec![HttpVersion::One, HttpVersion::Three]);
        let http_2_and_3 = vec![HttpVersion::Two, HttpVersion::Three];
        match self {
            Self::PingPong => ConnectionAxes {
                workloads: vec![Workload::PingPong],
                versions: Version::ALL.to_vec(),
                tfo: both,
                ..get
            },
            Self::Get => ConnectionAxes {
                versions: vec![Version::Tls12, Version::Tls13],
                tfo: both,
                http: http_1_and_3,
                ..get
            },
            Self::Curl => ConnectionAxes { http: http_2_and_3, tokens: both, ..page },
            Self::Blueprint | Self::Clients => ConnectionAxes { http: http_1_and_3, ..get },
            Self::Access | Self::SClient => get,
            Self::Image => ConnectionAxes {
                kinds: vec![HandshakeKind::Resumed, HandshakeKind::ZeroRtt],
                sizes: vec![ResponseSize::OneMib],
                ..get
            },
            Self::Refused => ConnectionAxes {
                kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt, HandshakeKind::Refused],
                tfo: both,
                http: http_1_and_3,
                ..get
            },
            Self::PostQuantum => ConnectionAxes {
                groups: vec![Group::X25519, Group::X25519MlKem768],
                tfo: both,
                http: http_1_and_3,
                ..get
            },
            Self::Certificates => ConnectionAxes {
                kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
                http: http_1_and_3,
                certificates: vec![
                    CertificateKind::EcdsaP256,
                    CertificateKind::Rsa2048,
                    CertificateKind::Rsa4096Chain,
                ],
                compressions: both,
                ..get
            },
            Self::Loss => ConnectionAxes {
                kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
                http: http_2_and_3,
                tokens: vec![true],
                ..page
            },
            Self::ThirdParty => {
                ConnectionAxes { http: vec![HttpVersion::Three], tokens: both, ..page }
            }
        }
    }
}

/// The handshakes of most experiments.
const DEFAULT_KINDS: [HandshakeKind; 3] =
    [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt];

/// A network without loss, and the same network with different rates of loss and reordering.
fn lossy_networks() -> Vec<Profile> {
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
            ", 5 % reordered",
            // In two milliseconds several packets of a flight pass, and no timer expires.
            Some(CellSpec::Reorder(ReorderSpec {
                probability: 0.05,
                by: Duration::from_millis(2),
            })),
        ),
    ]
}

/// The walk-through's path at different rates, equal in both directions. Its own rate is unknown.
fn walk_through_at_rates() -> Result<Vec<Profile>, LabError> {
    let path = Profile::parse("walkthrough")?;
    let at = |mbits: f64| {
        let mut profile = path.clone();
        let queue_bytes = RateSpec::default_queue_bytes(mbits, profile.rtt());
        let rate = CellSpec::Rate(RateSpec { mbits, queue_bytes, burst_bytes: 0 });
        profile.up.push(rate.clone());
        profile.down.push(rate);
        Profile { name: format!("{}, {mbits} Mbit/s", path.name), ..profile }
    };
    Ok(IMAGE_RATES_MBPS.map(at).to_vec())
}

/// From the lowest to the highest rate that is plausible for the walk-through's network.
const IMAGE_RATES_MBPS: [f64; 6] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0];

const LOSSY_RTT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_experiments_include_quic_unless_they_repeat_a_measurement_over_tcp() {
        for built_in in BuiltInExperiment::ALL {
            let experiment = built_in.experiment(&[ServerKind::Firstflight], Some(1)).unwrap();
            let found = experiment.axes.connections();
            // These are compared with figures for TCP.
            let tcp_only =
                [BuiltInExperiment::Access, BuiltInExperiment::Image, BuiltInExperiment::SClient];
            assert_eq!(
                found.iter().any(RequestedConnection::over_quic),
                !tcp_only.contains(&built_in),
                "{built_in}"
            );
            assert!(
                found
                    .iter()
                    .all(|requested| requested.over_quic() || requested.http != HttpVersion::Three)
            );
        }
    }
}
