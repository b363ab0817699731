//! The connection that a sample requests: its axes, each with the names that tables and flags use,
//! and the round trips that the protocols need for it.

use firstflight_tls::Version;

/// The connection that the samples of a cell request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestedConnection {
    /// PING or GET.
    pub workload: Workload,
    /// What TLS runs over.
    pub transport: Transport,
    /// The TLS version.
    pub version: Version,
    /// The handshake: full, resumed, 0-RTT or refused 0-RTT.
    pub kind: HandshakeKind,
    /// Whether to use TCP Fast Open.
    pub tfo: bool,
    /// Whether to send an address token from an earlier connection; QUIC only.
    pub token: bool,
    /// The HTTP version; GET only.
    pub http: HttpVersion,
    /// The size of the response; GET only.
    pub size: ResponseSize,
    /// The group of the key exchange.
    pub group: Group,
    /// The cipher suite; TLS 1.3 only.
    pub cipher: CipherSuite,
    /// The kind of the server's certificate.
    pub certificate: CertificateKind,
    /// Whether the certificate is compressed (RFC 8879); otherwise the client does not offer
    /// compression. Full handshakes of TLS 1.3 only.
    pub compression: bool,
}

impl RequestedConnection {
    /// A full handshake of TLS 1.3 and a GET of 1 KiB, over HTTP/1.1 or HTTP/3, with X25519 and an
    /// ECDSA certificate.
    pub const fn smallest_get(transport: Transport) -> Self {
        Self {
            workload: Workload::Get,
            transport,
            version: Version::Tls13,
            kind: HandshakeKind::Full,
            tfo: false,
            token: false,
            http: match transport {
                Transport::Tcp => HttpVersion::One,
                Transport::Quic => HttpVersion::Three,
            },
            size: ResponseSize::OneKib,
            group: Group::X25519,
            cipher: CipherSuite::Negotiated,
            certificate: CertificateKind::EcdsaP256,
            compression: false,
        }
    }

    /// The certificate in tables and records, such as `rsa-4096-chain compressed`.
    pub fn certificate_name(&self) -> String {
        let compressed = if self.compression { " compressed" } else { "" };
        format!("{}{compressed}", self.certificate)
    }

    /// Whether the connection runs over QUIC.
    pub fn over_quic(&self) -> bool {
        self.transport == Transport::Quic
    }
}

/// Returns the round trips that the protocols need until the first byte of the response, including
/// connection set-up (RFC 8446 section 2, RFC 5246 section 7.3, RFC 7413 section 2, RFC 9001
/// section 4).
pub fn round_trips(requested: &RequestedConnection) -> u32 {
    if requested.over_quic() {
        // The ClientHello is in the first packet: QUIC has no other connection set-up. A long chain
        // exceeds three times the client's first datagram, so its end comes a round trip later
        // (RFC 9000 section 8.1), compressed or not: keys and signatures do not compress.
        return match (requested.kind, requested.certificate) {
            (HandshakeKind::ZeroRtt, _) => 1,
            (HandshakeKind::Full, CertificateKind::Rsa4096Chain) => 3,
            _ => 2,
        };
    }
    let handshake = match (requested.version, requested.kind) {
        (Version::Tls13, HandshakeKind::ZeroRtt) => 0,
        (Version::Tls13, _) | (_, HandshakeKind::Resumed) => 1,
        (_, _) => 2,
    };
    // With a post-quantum share the ClientHello of a full handshake just fits into a SYN. With a
    // ticket it does not, and the rest follows a round trip later (RFC 7413 section 4.2).
    let fits_into_syn =
        requested.group != Group::X25519MlKem768 || requested.kind == HandshakeKind::Full;
    let set_up = u32::from(!(requested.tfo && fits_into_syn));
    1 + set_up + handshake
}

/// A TLS version as it is printed in tables: `1.0` to `1.3`.
pub fn version_number(version: Version) -> &'static str {
    version.name().trim_start_matches("TLSv")
}

/// The kind of handshake that a connection requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HandshakeKind {
    /// A full handshake.
    Full,
    /// Resumed from a ticket.
    Resumed,
    /// Resumed, with the request as early data; TLS 1.3 only.
    ZeroRtt,
    /// Early data that the server is made to refuse; TLS 1.3 only. The request is sent again after
    /// the handshake (RFC 8446 section 4.2.10).
    Refused,
}

/// What the client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// PING, and PONG in return, directly on TLS.
    PingPong,
    /// An HTTP GET.
    Get,
}

/// What TLS runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// QUIC, which uses TLS 1.3 (RFC 9001).
    Quic,
}

/// The client implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientKind {
    /// This project's client.
    Firstflight,
    /// ngtcp2's `gtlsclient`. HTTP/3 only; all of its times come from packets.
    Ngtcp2,
    /// aioquic, with address tokens. HTTP/3 only; all of its times come from packets.
    Aioquic,
    /// curl. HTTP/1.1 only, without early data; all of its times come from packets.
    Curl,
    /// OpenSSL's `s_client`. HTTP/1.1 only; all of its times come from packets.
    OpenSsl,
    /// GnuTLS's `gnutls-cli`. HTTP/1.1 only; all of its times come from packets.
    GnuTls,
}

/// The HTTP version of a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HttpVersion {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
    /// HTTP/3 (RFC 9114).
    Three,
}

/// The group of the key exchange. The client offers no other group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// X25519 (RFC 7748).
    X25519,
    /// P-256.
    P256,
    /// X25519 with ML-KEM-768, post-quantum; TLS 1.3 only.
    X25519MlKem768,
}

/// The cipher suite that the client offers (RFC 8446 appendix B.4). TLS 1.3 only, where it does not
/// determine the key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CipherSuite {
    /// All suites; the server chooses one.
    Negotiated,
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

/// The server's certificate: the kind of its key, and its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CertificateKind {
    /// ECDSA on P-256.
    EcdsaP256,
    /// RSA of 2,048 bits.
    Rsa2048,
    /// Ed25519.
    Ed25519,
    /// RSA of 4,096 bits, with two intermediate certificates. The other kinds have none.
    Rsa4096Chain,
}

/// The length of the response to a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResponseSize {
    /// 1 KiB, which fits into a packet.
    OneKib,
    /// 10 KiB, a page that fits into the initial congestion window.
    TenKib,
    /// 1 MiB, a large image.
    OneMib,
}

impl ClientKind {
    /// The client's only transport; `None` if it supports both.
    pub fn transport(self) -> Option<Transport> {
        match self {
            Self::Firstflight => None,
            Self::Ngtcp2 | Self::Aioquic => Some(Transport::Quic),
            Self::Curl | Self::OpenSsl | Self::GnuTls => Some(Transport::Tcp),
        }
    }
}

impl HandshakeKind {
    /// Whether the request is sent as early data.
    pub fn is_early(self) -> bool {
        matches!(self, Self::ZeroRtt | Self::Refused)
    }
}

impl CipherSuite {
    /// The number (RFC 8446 appendix B.4) and name of the suite; `None` if the server chooses.
    pub fn iana(self) -> Option<(u16, &'static str)> {
        match self {
            Self::Negotiated => None,
            Self::Aes128Gcm => Some((0x1301, "TLS_AES_128_GCM_SHA256")),
            Self::Aes256Gcm => Some((0x1302, "TLS_AES_256_GCM_SHA384")),
            Self::ChaCha20Poly1305 => Some((0x1303, "TLS_CHACHA20_POLY1305_SHA256")),
        }
    }
}

impl HttpVersion {
    /// The protocol's name in ALPN (RFC 7301).
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
            Self::Three => b"h3",
        }
    }

    /// The transport below it.
    pub fn transport(self) -> Transport {
        match self {
            Self::One | Self::Two => Transport::Tcp,
            Self::Three => Transport::Quic,
        }
    }
}

impl ResponseSize {
    /// The path at which servers have content of this length.
    pub fn path(self) -> &'static str {
        match self {
            Self::OneKib => "/1k",
            Self::TenKib => "/10k",
            Self::OneMib => "/1m",
        }
    }

    /// The length in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::OneKib => 1 << 10,
            Self::TenKib => 10 << 10,
            Self::OneMib => 1 << 20,
        }
    }
}

/// Defines the names of an axis' values, and implements `Display` and `FromStr` with them.
#[macro_export]
macro_rules! axis_values {
    ($axis:ident, $what:literal, [$($value:ident = $name:literal),+]) => {
        impl $axis {
            /// All values, in the order of the tables.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name in tables, flags and records.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }

        impl ::std::fmt::Display for $axis {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $axis {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                // `0rtt` is easier to type than `0-RTT`.
                let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
                let matches = |value: &Self| plain(value.name()) == plain(text);
                let found = Self::ALL.into_iter().find(matches);
                found.ok_or_else(|| {
                    let allowed = [$($name),+].join(", ");
                    format!(concat!("unknown ", $what, " {:?}; allowed are {}"), text, allowed)
                })
            }
        }
    };
}

axis_values!(
    HandshakeKind,
    "kind",
    [Full = "full", Resumed = "resumed", ZeroRtt = "0-RTT", Refused = "refused"]
);
axis_values!(Workload, "workload", [PingPong = "ping-pong", Get = "get"]);
axis_values!(Transport, "transport", [Tcp = "tcp", Quic = "quic"]);
axis_values!(
    ClientKind,
    "client",
    [
        Firstflight = "firstflight",
        Ngtcp2 = "ngtcp2",
        Aioquic = "aioquic",
        Curl = "curl",
        OpenSsl = "openssl",
        GnuTls = "gnutls-cli"
    ]
);
axis_values!(HttpVersion, "HTTP version", [One = "1.1", Two = "2", Three = "3"]);
axis_values!(
    Group,
    "key-share group",
    [X25519 = "X25519", P256 = "P-256", X25519MlKem768 = "X25519MLKEM768"]
);
axis_values!(
    CipherSuite,
    "cipher",
    [
        Negotiated = "any",
        Aes128Gcm = "AES-128-GCM",
        Aes256Gcm = "AES-256-GCM",
        ChaCha20Poly1305 = "ChaCha20-Poly1305"
    ]
);
axis_values!(
    CertificateKind,
    "certificate",
    [
        EcdsaP256 = "ecdsa-p256",
        Rsa2048 = "rsa-2048",
        Ed25519 = "ed25519",
        Rsa4096Chain = "rsa-4096-chain"
    ]
);
axis_values!(ResponseSize, "response size", [OneKib = "1k", TenKib = "10k", OneMib = "1m"]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_are_those_of_the_tls_library() {
        let known = firstflight_tls::group_names();
        assert!(Group::ALL.iter().all(|group| known.contains(&group.name())), "{known:?}");
    }

    #[test]
    fn round_trips_are_as_the_protocols_require() {
        let expected = |version, kind, tfo| {
            round_trips(&RequestedConnection {
                version,
                kind,
                tfo,
                ..RequestedConnection::smallest_get(Transport::Tcp)
            })
        };
        let over_quic = |kind| {
            let get = RequestedConnection::smallest_get(Transport::Quic);
            round_trips(&RequestedConnection { kind, ..get })
        };
        for old in [Version::Tls10, Version::Tls11, Version::Tls12] {
            assert_eq!(expected(old, HandshakeKind::Full, false), 4);
            assert_eq!(expected(old, HandshakeKind::Resumed, false), 3);
            assert_eq!(expected(old, HandshakeKind::Full, true), 3);
            assert_eq!(expected(old, HandshakeKind::Resumed, true), 2);
        }
        assert_eq!(expected(Version::Tls13, HandshakeKind::Full, false), 3);
        assert_eq!(expected(Version::Tls13, HandshakeKind::Resumed, true), 2);
        assert_eq!(expected(Version::Tls13, HandshakeKind::ZeroRtt, false), 2);
        assert_eq!(expected(Version::Tls13, HandshakeKind::ZeroRtt, true), 1);
        assert_eq!(expected(Version::Tls13, HandshakeKind::Refused, false), 3);
        assert_eq!(HandshakeKind::ALL.map(over_quic), [2, 2, 1, 2]);
    }

    #[test]
    fn names_are_parsed_and_unknown_names_list_the_allowed_ones() {
        for group in Group::ALL {
            assert_eq!(group.name().to_lowercase().parse(), Ok(group));
        }
        assert_eq!("0-rtt".parse(), Ok(HandshakeKind::ZeroRtt));
        assert_eq!("0rtt".parse(), Ok(HandshakeKind::ZeroRtt));
        let error = "2k".parse::<ResponseSize>().unwrap_err();
        assert_eq!(error, "unknown response size \"2k\"; allowed are 1k, 10k, 1m");
    }
}
