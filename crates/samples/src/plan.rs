//! The combinations of an experiment's axes, and the order in which samples are taken.

use firstflight_tls::Version;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::{
    CertificateKind, CipherSuite, Group, HandshakeKind, HttpVersion, RequestedConnection,
    ResponseSize, Transport, Workload,
};

/// The values of each axis of a connection. A cell has one value of each.
#[derive(Clone, Debug)]
pub struct ConnectionAxes {
    /// What is requested.
    pub workloads: Vec<Workload>,
    /// What TLS runs over. A GET's transport follows from its HTTP version; the GET is left out if
    /// that transport is not in this list.
    pub transports: Vec<Transport>,
    /// TLS versions.
    pub versions: Vec<Version>,
    /// Handshake kinds.
    pub kinds: Vec<HandshakeKind>,
    /// Without and with TCP Fast Open.
    pub tfo: Vec<bool>,
    /// Without and with an address token. TCP and full handshakes have none.
    pub tokens: Vec<bool>,
    /// HTTP versions of a GET.
    pub http: Vec<HttpVersion>,
    /// Key-share groups.
    pub groups: Vec<Group>,
    /// Cipher suites of TLS 1.3.
    pub ciphers: Vec<CipherSuite>,
    /// Certificates of the servers.
    pub certificates: Vec<CertificateKind>,
    /// Without and with compression of the certificate. Only full handshakes of TLS 1.3 vary.
    pub compressions: Vec<bool>,
    /// Sizes of the response to a GET.
    pub sizes: Vec<ResponseSize>,
}

impl ConnectionAxes {
    /// A single cell: a full handshake of TLS 1.3 and a GET of 1 KiB over HTTP/1.1, with X25519 and
    /// an ECDSA certificate, without TCP Fast Open.
    pub fn baseline() -> Self {
        Self {
            workloads: vec![Workload::Get],
            transports: Transport::ALL.to_vec(),
            versions: vec![Version::Tls13],
            kinds: vec![HandshakeKind::Full],
            tfo: vec![false],
            tokens: vec![false],
            http: vec![HttpVersion::One],
            groups: vec![Group::X25519],
            ciphers: vec![CipherSuite::Negotiated],
            certificates: vec![CertificateKind::EcdsaP256],
            compressions: vec![false],
            sizes: vec![ResponseSize::OneKib],
        }
    }
}

/// Returns every combination of the axes once. Axes that matter only for a GET are not varied for
/// ping-pong, nor are axes of one transport or version for the other.
pub fn combinations(axes: &ConnectionAxes) -> Vec<RequestedConnection> {
    let mut all: Vec<RequestedConnection> = Vec::new();
    let first = (axes.http.first(), axes.sizes.first());
    let (Some(&http), Some(&size)) = first else { return all };
    let Some((&group, &certificate)) = axes.groups.first().zip(axes.certificates.first()) else {
        return all;
    };
    for &workload in &axes.workloads {
        let template = RequestedConnection {
            workload,
            http,
            size,
            group,
            certificate,
            ..RequestedConnection::smallest_get(Transport::Tcp)
        };
        let mut connections = vec![template];
        vary(&mut connections, &axes.transports, |requested, transport| {
            requested.transport = transport
        });
        vary(&mut connections, &axes.versions, |requested, version| requested.version = version);
        vary(&mut connections, &axes.kinds, |requested, kind| requested.kind = kind);
        vary(&mut connections, &axes.tfo, |requested, tfo| requested.tfo = tfo);
        vary(&mut connections, &axes.tokens, |requested, token| requested.token = token);
        vary(&mut connections, &axes.groups, |requested, group| requested.group = group);
        vary(&mut connections, &axes.ciphers, |requested, cipher| requested.cipher = cipher);
        vary(&mut connections, &axes.certificates, |requested, certificate| {
            requested.certificate = certificate
        });
        vary(&mut connections, &axes.compressions, |requested, compression| {
            requested.compression = compression
        });
        if workload == Workload::Get {
            vary(&mut connections, &axes.http, |requested, http| requested.http = http);
            vary(&mut connections, &axes.sizes, |requested, size| requested.size = size);
            connections.retain(|requested| requested.http.transport() == requested.transport);
        }
        connections.retain(|requested| !(requested.over_quic() && requested.tfo));
        for requested in &mut connections {
            if requested.version != Version::Tls13 {
                requested.cipher = CipherSuite::Negotiated;
            }
            let full = requested.kind == HandshakeKind::Full;
            requested.token &= requested.over_quic() && !full;
            requested.compression &= full && requested.version == Version::Tls13;
        }
        all.append(&mut connections);
    }
    let mut distinct: Vec<RequestedConnection> = Vec::new();
    for requested in all {
        if !distinct.contains(&requested) {
            distinct.push(requested);
        }
    }
    distinct
}

/// Combines each connection with each value of an axis.
fn vary<T: Copy>(
    connections: &mut Vec<RequestedConnection>,
    values: &[T],
    set: fn(&mut RequestedConnection, T),
) {
    let with = |requested: &RequestedConnection, value: T| {
        let mut requested = *requested;
        set(&mut requested, value);
        requested
    };
    *connections = connections
        .iter()
        .flat_map(|requested| values.iter().map(|&v| with(requested, v)))
        .collect();
}

/// Says why the protocols do not allow a connection. Returns `None` if they do.
pub fn why_impossible(requested: &RequestedConnection) -> Option<&'static str> {
    let before_13 = requested.version != Version::Tls13;
    if before_13 && requested.over_quic() {
        return Some("QUIC before TLS 1.3: QUIC requires TLS 1.3 (RFC 9001 section 4.2)");
    }
    if before_13 && requested.kind.is_early() {
        return Some(
            "0-RTT before TLS 1.3: earlier versions have no early data (RFC 8446 section 2.3)",
        );
    }
    if before_13 && requested.group == Group::X25519MlKem768 {
        return Some("X25519MLKEM768 before TLS 1.3: post-quantum groups require TLS 1.3");
    }
    let before_12 = matches!(requested.version, Version::Tls10 | Version::Tls11);
    if before_12 && requested.workload == Workload::Get && requested.http == HttpVersion::Two {
        return Some("HTTP/2 before TLS 1.2: HTTP/2 requires TLS 1.2 (RFC 9113 section 9.2)");
    }
    None
}

/// A sample to take: a cell and a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The index of the cell in the plan.
    pub cell: usize,
    /// The number of the block. Each block holds every cell of a path once.
    pub block: usize,
}

/// A cell with fewer samples gets no confidence interval, and therefore no A/A control.
pub const MIN_CONTROL_SAMPLES: usize = 6;

/// Returns the order of samples in randomised blocks. Each block holds one sample of every cell
/// that has samples left, in random order, so that drift affects all cells alike.
pub fn blocks(cells: &[usize], samples: &dyn Fn(usize) -> usize, seed: u64) -> Vec<Slot> {
    let mut rng = StdRng::seed_from_u64(seed);
    let max_samples = cells.iter().map(|cell| samples(*cell)).max().unwrap_or(0);
    let mut order = Vec::new();
    for block in 0..max_samples {
        let present = cells.iter().filter(|cell| samples(**cell) > block);
        let mut slots: Vec<Slot> = present.map(|&cell| Slot { cell, block }).collect();
        slots.shuffle(&mut rng);
        order.append(&mut slots);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_do_not_multiply_versions_before_13() {
        let axes = ConnectionAxes {
            versions: vec![Version::Tls12, Version::Tls13],
            ciphers: CipherSuite::ALL.to_vec(),
            ..ConnectionAxes::baseline()
        };
        let count = |version| combinations(&axes).iter().filter(|r| r.version == version).count();
        assert_eq!((count(Version::Tls12), count(Version::Tls13)), (1, CipherSuite::ALL.len()));
    }

    #[test]
    fn certificate_compression_varies_full_handshakes_only() {
        let axes = ConnectionAxes {
            versions: vec![Version::Tls12, Version::Tls13],
            kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
            compressions: vec![false, true],
            ..ConnectionAxes::baseline()
        };
        let found = combinations(&axes);
        assert_eq!(found.len(), 2 + 3);
        let compressed: Vec<_> = found.iter().filter(|requested| requested.compression).collect();
        let [only] = &compressed[..] else { panic!("{compressed:?}") };
        assert_eq!((only.version, only.kind), (Version::Tls13, HandshakeKind::Full));
    }

    #[test]
    fn axes_of_one_transport_do_not_multiply_the_other() {
        let axes = ConnectionAxes {
            versions: vec![Version::Tls13],
            kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
            tfo: vec![false, true],
            tokens: vec![false, true],
            http: vec![HttpVersion::Two, HttpVersion::Three],
            ..ConnectionAxes::baseline()
        };
        let kinds = |transport| {
            let mut found = combinations(&axes);
            found.retain(|requested| requested.transport == transport);
            found
                .iter()
                .map(|requested| (requested.kind, requested.tfo, requested.token))
                .collect::<Vec<_>>()
        };
        let (full, early) = (HandshakeKind::Full, HandshakeKind::ZeroRtt);
        assert_eq!(
            kinds(Transport::Tcp),
            [
                (full, false, false),
                (full, true, false),
                (early, false, false),
                (early, true, false)
            ]
        );
        // A full handshake has no token.
        assert_eq!(
            kinds(Transport::Quic),
            [(full, false, false), (early, false, false), (early, false, true)]
        );
        let fast_open_only =
            ConnectionAxes { tfo: vec![true], http: vec![HttpVersion::Three], ..axes };
        assert_eq!(combinations(&fast_open_only), [], "QUIC has no TCP Fast Open");
    }
}
