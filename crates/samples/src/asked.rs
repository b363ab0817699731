//! What a connection is asked to be, and what the protocols make of that.

use firstflight_tls::Version;

use crate::{Certificate, Group, Http, Kind, Size, Transport, Workload};

/// What a connection of some cell asks of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestedConnection {
    /// PING or GET.
    pub workload: Workload,
    /// What TLS runs over.
    pub transport: Transport,
    /// TLS version.
    pub version: Version,
    /// Full, resumed or 0-RTT.
    pub kind: Kind,
    /// With TCP Fast Open.
    pub tfo: bool,
    /// With an address token from an earlier connection; QUIC only.
    pub token: bool,
    /// HTTP version; bears on a GET alone.
    pub http: Http,
    /// How much; bears on a GET alone.
    pub size: Size,
    /// The group of the key exchange.
    pub group: Group,
    /// The kind of the server's certificate.
    pub certificate: Certificate,
}

impl RequestedConnection {
    /// Whether it runs over QUIC.
    pub fn over_quic(&self) -> bool {
        self.transport == Transport::Quic
    }
}

/// Round trips until the first byte of the response that the protocols need, connection set-up
/// included (RFC 8446 section 2, RFC 5246 section 7.3, RFC 7413 section 2, RFC 9001 section 4).
pub fn round_trips(asked: &RequestedConnection) -> u32 {
    if asked.over_quic() {
        // The ClientHello is in the first packet: there is nothing to set up before it.
        return if asked.kind == Kind::ZeroRtt { 1 } else { 2 };
    }
    let handshake = match (asked.version, asked.kind) {
        (Version::Tls13, Kind::ZeroRtt) => 0,
        (Version::Tls13, _) | (_, Kind::Resumed) => 1,
        (_, _) => 2,
    };
    // With a post-quantum share the ClientHello of a full handshake just fits into a SYN; with a
    // ticket it does not, and its rest comes a round trip later (RFC 7413 section 4.2).
    let fits = asked.group != Group::X25519MlKem768 || asked.kind == Kind::Full;
    let saved = asked.tfo && fits;
    1 + u32::from(!saved) + handshake
}

/// A TLS version as tables have it: `1.0` to `1.3`.
pub fn version_number(version: Version) -> &'static str {
    version.name().trim_start_matches("TLSv")
}
