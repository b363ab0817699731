//! Which connections the axes of an experiment name, and which of them cannot be.

use firstflight_tls::Version;

use crate::{Certificate, Group, Http, Kind, RequestedConnection, Size, Transport, Workload};

/// The values of each axis of a connection; a cell has one of each.
#[derive(Clone, Debug)]
pub struct ConnectionAxes {
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

impl ConnectionAxes {
    /// One cell: a full handshake of TLS 1.3 and a GET of 1 KiB over HTTP/1.1, with X25519 and an
    /// ECDSA certificate, without TCP Fast Open.
    pub fn one() -> Self {
        Self {
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

/// Every combination of the axes. What bears on a GET alone
/// is not varied for ping-pong, nor what bears on one transport alone for the other.
pub fn combinations(axes: &ConnectionAxes) -> Vec<RequestedConnection> {
    let mut all: Vec<RequestedConnection> = Vec::new();
    let first = (axes.http.first(), axes.sizes.first());
    let (Some(&http), Some(&size)) = first else { return all };
    let Some((&group, &certificate)) = axes.groups.first().zip(axes.certificates.first()) else {
        return all;
    };
    for &workload in &axes.workloads {
        let one = RequestedConnection {
            workload,
            transport: Transport::Tcp,
            version: Version::Tls13,
            kind: Kind::Full,
            tfo: false,
            token: false,
            http,
            size,
            group,
            certificate,
        };
        let mut some = vec![one];
        vary(&mut some, &axes.transports, |asked, transport| asked.transport = transport);
        vary(&mut some, &axes.versions, |asked, version| asked.version = version);
        vary(&mut some, &axes.kinds, |asked, kind| asked.kind = kind);
        vary(&mut some, &axes.tfo, |asked, tfo| asked.tfo = tfo);
        vary(&mut some, &axes.tokens, |asked, token| asked.token = token);
        vary(&mut some, &axes.groups, |asked, group| asked.group = group);
        vary(&mut some, &axes.certificates, |asked, one| asked.certificate = one);
        if workload == Workload::Get {
            vary(&mut some, &axes.http, |asked, http| asked.http = http);
            vary(&mut some, &axes.sizes, |asked, size| asked.size = size);
            some.retain(|asked| asked.http.transport() == asked.transport);
        }
        some.retain(|asked| !(asked.over_quic() && asked.tfo));
        for asked in &mut some {
            asked.token &= asked.over_quic() && asked.kind != Kind::Full;
        }
        all.append(&mut some);
    }
    let mut once: Vec<RequestedConnection> = Vec::new();
    for asked in all {
        if !once.contains(&asked) {
            once.push(asked);
        }
    }
    once
}

/// Each of these with each value of an axis.
fn vary<T: Copy>(
    some: &mut Vec<RequestedConnection>,
    values: &[T],
    set: fn(&mut RequestedConnection, T),
) {
    let with = |asked: &RequestedConnection, value: T| {
        let mut asked = *asked;
        set(&mut asked, value);
        asked
    };
    *some = some.iter().flat_map(|asked| values.iter().map(|&v| with(asked, v))).collect();
}

/// Why the protocols have no such connection.
pub fn impossible(asked: &RequestedConnection) -> Option<&'static str> {
    let old = asked.version != Version::Tls13;
    if old && asked.over_quic() {
        return Some("QUIC before TLS 1.3: QUIC has TLS 1.3 inside (RFC 9001 section 4.2)");
    }
    if old && asked.kind.is_early() {
        return Some("0-RTT before TLS 1.3: early data is TLS 1.3's (RFC 8446 section 2.3)");
    }
    if old && asked.group == Group::X25519MlKem768 {
        return Some("X25519MLKEM768 before TLS 1.3: post-quantum groups are TLS 1.3's alone");
    }
    let before_12 = matches!(asked.version, Version::Tls10 | Version::Tls11);
    if before_12 && asked.workload == Workload::Get && asked.http == Http::Two {
        return Some("HTTP/2 before TLS 1.2: RFC 9113 section 9.2 needs TLS 1.2");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bears_on_one_transport_alone_does_not_multiply_the_other() {
        let axes = ConnectionAxes {
            versions: vec![Version::Tls13],
            kinds: vec![Kind::Full, Kind::ZeroRtt],
            tfo: vec![false, true],
            tokens: vec![false, true],
            http: vec![Http::Two, Http::Three],
            ..ConnectionAxes::one()
        };
        let of = |transport| {
            let mut found = combinations(&axes);
            found.retain(|asked| asked.transport == transport);
            found.iter().map(|asked| (asked.kind, asked.tfo, asked.token)).collect::<Vec<_>>()
        };
        let (full, early) = (Kind::Full, Kind::ZeroRtt);
        assert_eq!(
            of(Transport::Tcp),
            [
                (full, false, false),
                (full, true, false),
                (early, false, false),
                (early, true, false)
            ]
        );
        // On a first visit there is no token.
        assert_eq!(
            of(Transport::Quic),
            [(full, false, false), (early, false, false), (early, false, true)]
        );
        let fast_open_only = ConnectionAxes { tfo: vec![true], http: vec![Http::Three], ..axes };
        assert_eq!(combinations(&fast_open_only), [], "QUIC has no TCP Fast Open");
    }
}
