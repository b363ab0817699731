//! The capabilities of a server under test, and why others are missing.

use std::fmt;

use firstflight_tls::Version;

use crate::{
    CertificateKind, Group, HandshakeKind, HttpVersion, RequestedConnection, ResponseSize,
    Transport, Workload,
};

/// A capability of a server that connections may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Responds to PING with PONG, directly on TLS.
    PingPong,
    /// Supports a TLS version.
    Tls(Version),
    /// Resumes sessions of a TLS version.
    Resumption(Version),
    /// Accepts early data over TCP (RFC 8446 section 2.3).
    EarlyData,
    /// Accepts data in the SYN (RFC 7413).
    FastOpen,
    /// Supports HTTP/2.
    Http2,
    /// Supports HTTP/3 over QUIC.
    Http3,
    /// Resumes sessions over QUIC.
    QuicResumption,
    /// Accepts early data over QUIC (RFC 9001 section 4.6).
    QuicEarlyData,
    /// Refuses early data over QUIC if the ticket age is wrong (RFC 8446 section 8.3).
    QuicTicketAgeCheck,
    /// Issues address tokens (RFC 9000 section 8.1.3).
    AddressTokens,
    /// Serves the page of a size.
    ResponseSize(ResponseSize),
    /// Supports a group for the key exchange.
    Group(Group),
    /// Presents a certificate with this kind of key.
    Certificate(CertificateKind),
    /// Compresses its certificate for clients that offer it (RFC 8879).
    CertificateCompression,
    /// Serves several connections at the same time. Without this capability its samples are taken
    /// one by one.
    ConcurrentConnections,
    /// Logs each executed request, so that replays can be counted.
    RequestLog,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingPong => f.write_str("ping-pong"),
            Self::Tls(version) => write!(f, "{version}"),
            Self::Resumption(version) => write!(f, "resumption in {version}"),
            Self::EarlyData => f.write_str("early data"),
            Self::FastOpen => f.write_str("TCP Fast Open"),
            Self::Http2 => f.write_str("HTTP/2"),
            Self::Http3 => f.write_str("HTTP/3"),
            Self::QuicResumption => f.write_str("resumption over QUIC"),
            Self::QuicEarlyData => f.write_str("early data over QUIC"),
            Self::QuicTicketAgeCheck => f.write_str("refusal by ticket age over QUIC"),
            Self::AddressTokens => f.write_str("address tokens"),
            Self::ResponseSize(size) => write!(f, "responses of {size}"),
            Self::Group(group) => write!(f, "{group}"),
            Self::Certificate(certificate) => write!(f, "{certificate} certificates"),
            Self::CertificateCompression => f.write_str("certificate compression"),
            Self::ConcurrentConnections => f.write_str("concurrent connections"),
            Self::RequestLog => f.write_str("counting of replays"),
        }
    }
}

/// The capabilities that a connection needs.
fn needed(requested: &RequestedConnection) -> Vec<Capability> {
    let mut needed =
        vec![Capability::Group(requested.group), Capability::Certificate(requested.certificate)];
    match requested.workload {
        Workload::PingPong => {
            needed.push(Capability::PingPong);
            needed.extend(requested.over_quic().then_some(Capability::Http3));
        }
        Workload::Get => {
            needed.push(Capability::ResponseSize(requested.size));
            needed.extend(match requested.http {
                HttpVersion::One => None,
                HttpVersion::Two => Some(Capability::Http2),
                HttpVersion::Three => Some(Capability::Http3),
            });
        }
    }
    let (resumption, early_data) = match requested.transport {
        Transport::Tcp => {
            needed.insert(0, Capability::Tls(requested.version));
            (Capability::Resumption(requested.version), Capability::EarlyData)
        }
        Transport::Quic => (Capability::QuicResumption, Capability::QuicEarlyData),
    };
    needed.extend((requested.kind != HandshakeKind::Full).then_some(resumption));
    needed.extend(requested.kind.is_early().then_some(early_data));
    let refused = requested.kind == HandshakeKind::Refused && requested.over_quic();
    needed.extend(refused.then_some(Capability::QuicTicketAgeCheck));
    needed.extend(requested.tfo.then_some(Capability::FastOpen));
    needed.extend(requested.token.then_some(Capability::AddressTokens));
    needed.extend(requested.compression.then_some(Capability::CertificateCompression));
    needed
}

/// A missing capability, and the reason.
pub type MissingCapability = (Capability, &'static str);

/// What a server can do: everything except what is listed as missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    missing: Vec<MissingCapability>,
}

impl Capabilities {
    /// All capabilities except these.
    pub fn without(missing: &[MissingCapability]) -> Self {
        Self { missing: missing.to_vec() }
    }

    /// Whether the server has a capability.
    pub fn supports(&self, capability: Capability) -> bool {
        self.missing_reason(capability).is_none()
    }

    /// Says why a capability is missing. Returns `None` if the server has it.
    pub fn missing_reason(&self, capability: Capability) -> Option<&'static str> {
        self.missing.iter().find(|(missing, _)| *missing == capability).map(|(_, why)| *why)
    }

    /// Says why the server does not support a connection. Returns `None` if it does.
    pub fn unsupported_reason(&self, requested: &RequestedConnection) -> Option<&'static str> {
        self.first_missing(requested).map(|(_, why)| why)
    }

    /// The first capability that a connection needs and the server lacks.
    pub fn first_missing(&self, requested: &RequestedConnection) -> Option<MissingCapability> {
        let find = |capability| Some((capability, self.missing_reason(capability)?));
        needed(requested).into_iter().find_map(find)
    }

    /// All missing capabilities, with the reasons.
    pub fn missing(&self) -> &[MissingCapability] {
        &self.missing
    }

    /// Sets the result of a probe, which overrides what `known` says. `known` only supplies the
    /// reason.
    pub(super) fn set_probed(&mut self, capability: Capability, supports: bool, known: &Self) {
        self.missing.retain(|(missing, _)| *missing != capability);
        if !supports {
            self.missing.push((
                capability,
                known.missing_reason(capability).unwrap_or(probe_reason(capability)),
            ));
        }
    }
}

/// The reason for a capability that only a probe has found missing.
fn probe_reason(capability: Capability) -> &'static str {
    match capability {
        Capability::Group(_) => "its TLS library does not support it, as a probe showed",
        Capability::Certificate(_) => "it did not present it when it was probed",
        _ => "it did not support it when it was probed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTED: RequestedConnection = RequestedConnection {
        kind: HandshakeKind::ZeroRtt,
        tfo: true,
        http: HttpVersion::Two,
        size: ResponseSize::TenKib,
        group: Group::P256,
        certificate: CertificateKind::Rsa2048,
        ..RequestedConnection::smallest_get(Transport::Tcp)
    };

    #[test]
    fn each_capability_that_a_connection_needs_can_be_missing() {
        assert_eq!(Capabilities::default().unsupported_reason(&REQUESTED), None);
        for capability in needed(&REQUESTED) {
            assert_eq!(
                Capabilities::without(&[(capability, "because")]).unsupported_reason(&REQUESTED),
                Some("because")
            );
        }
        assert_eq!(needed(&REQUESTED).len(), 8);
        let compressed =
            RequestedConnection { kind: HandshakeKind::Full, compression: true, ..REQUESTED };
        assert!(needed(&compressed).contains(&Capability::CertificateCompression));
        let over_quic = RequestedConnection {
            transport: Transport::Quic,
            tfo: false,
            token: true,
            http: HttpVersion::Three,
            ..REQUESTED
        };
        let tcp_only =
            [Capability::EarlyData, Capability::Resumption(Version::Tls13), Capability::FastOpen];
        assert!(tcp_only.iter().all(|capability| !needed(&over_quic).contains(capability)));
        for capability in needed(&over_quic) {
            assert_eq!(
                Capabilities::without(&[(capability, "because")]).unsupported_reason(&over_quic),
                Some("because")
            );
        }
        assert_eq!(needed(&over_quic).len(), 7);
        let refused = RequestedConnection { kind: HandshakeKind::Refused, ..over_quic };
        assert!(needed(&refused).contains(&Capability::QuicTicketAgeCheck));
    }

    #[test]
    fn capabilities_that_a_connection_does_not_need_may_be_missing() {
        let capabilities = Capabilities::without(&[
            (Capability::PingPong, "no"),
            (Capability::ResponseSize(ResponseSize::OneMib), "no"),
            (Capability::Group(Group::X25519), "no"),
            (Capability::Certificate(CertificateKind::EcdsaP256), "no"),
            (Capability::Resumption(Version::Tls12), "no"),
            (Capability::RequestLog, "no"),
        ]);
        assert_eq!(capabilities.unsupported_reason(&REQUESTED), None);
        let ping = RequestedConnection { workload: Workload::PingPong, ..REQUESTED };
        assert_eq!(capabilities.unsupported_reason(&ping), Some("no"));
        let without_http = Capabilities::without(&[(Capability::Http2, "no")]);
        assert_eq!(without_http.unsupported_reason(&ping), None, "PING is no HTTP");
        let full =
            RequestedConnection { kind: HandshakeKind::Full, version: Version::Tls12, ..REQUESTED };
        assert_eq!(capabilities.unsupported_reason(&full), None);
    }

    #[test]
    fn a_probe_overrides_what_is_known_and_keeps_its_reason() {
        let known = Capabilities::without(&[(Capability::EarlyData, "its library has none")]);
        let mut probed = known.clone();
        probed.set_probed(Capability::EarlyData, true, &known);
        assert!(probed.supports(Capability::EarlyData));
        probed.set_probed(Capability::EarlyData, false, &known);
        probed.set_probed(Capability::Http2, false, &known);
        assert_eq!(probed.missing_reason(Capability::EarlyData), Some("its library has none"));
        assert_eq!(probed.missing_reason(Capability::Http2), Some(probe_reason(Capability::Http2)));
    }
}
