//! What cells differ in: the axes of the matrix, each with the names that tables and flags use.

/// How a connection is to come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
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

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// PING, answered by PONG, straight on TLS.
    PingPong,
    /// An HTTP GET.
    Get,
}

/// What TLS runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// QUIC, which has TLS 1.3 inside (RFC 9001).
    Quic,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Client {
    /// Ours.
    Firstflight,
    /// ngtcp2's `gtlsclient`. HTTP/3 alone; all of its times are the packets'.
    Ngtcp2,
    /// aioquic, with address tokens. HTTP/3 alone; all of its times are the packets'.
    Aioquic,
}

/// The HTTP version of a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Http {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
    /// HTTP/3, over QUIC alone (RFC 9114).
    Three,
}

/// The one group that the client has a key share for and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// X25519 (RFC 7748).
    X25519,
    /// P-256.
    P256,
    /// X25519 with ML-KEM-768, post-quantum; TLS 1.3 only.
    X25519MlKem768,
}

/// The key of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Certificate {
    /// ECDSA on P-256.
    EcdsaP256,
    /// RSA of 2,048 bits.
    Rsa2048,
    /// Ed25519.
    Ed25519,
}

/// The length of the response to a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Size {
    /// 1 KiB: one packet.
    OneKib,
    /// 10 KiB: a page, within the first window.
    TenKib,
    /// 1 MiB: an image.
    OneMib,
}

impl Kind {
    /// Whether the request is sent as early data.
    pub fn is_early(self) -> bool {
        matches!(self, Self::ZeroRtt | Self::Refused)
    }
}

impl Http {
    /// The protocol's name in ALPN (RFC 7301).
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
            Self::Three => b"h3",
        }
    }

    /// What it runs over.
    pub fn transport(self) -> Transport {
        match self {
            Self::One | Self::Two => Transport::Tcp,
            Self::Three => Transport::Quic,
        }
    }
}

impl Size {
    /// Where servers have content of this length.
    pub fn path(self) -> &'static str {
        match self {
            Self::OneKib => "/1k",
            Self::TenKib => "/10k",
            Self::OneMib => "/1m",
        }
    }

    /// Length of the content.
    pub fn bytes(self) -> usize {
        match self {
            Self::OneKib => 1 << 10,
            Self::TenKib => 10 << 10,
            Self::OneMib => 1 << 20,
        }
    }
}

/// Gives an axis its values with their names.
#[macro_export]
macro_rules! names {
    ($axis:ident, $what:literal, [$($value:ident = $name:literal),+]) => {
        impl $axis {
            /// All of them, as the tables have them.
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
                let found = Self::ALL.into_iter().find(|value| value.name().eq_ignore_ascii_case(text));
                found.ok_or_else(|| {
                    let names = [$($name),+].join(", ");
                    format!(concat!("unknown ", $what, " {:?}; allowed are {}"), text, names)
                })
            }
        }
    };
}

names!(Kind, "kind", [Full = "full", Resumed = "resumed", ZeroRtt = "0-RTT", Refused = "refused"]);
names!(Workload, "workload", [PingPong = "ping-pong", Get = "get"]);
names!(Transport, "transport", [Tcp = "tcp", Quic = "quic"]);
names!(Client, "client", [Firstflight = "firstflight", Ngtcp2 = "ngtcp2", Aioquic = "aioquic"]);
names!(Http, "HTTP version", [One = "1.1", Two = "2", Three = "3"]);
names!(
    Group,
    "key-share group",
    [X25519 = "X25519", P256 = "P-256", X25519MlKem768 = "X25519MLKEM768"]
);
names!(
    Certificate,
    "certificate",
    [EcdsaP256 = "ecdsa-p256", Rsa2048 = "rsa-2048", Ed25519 = "ed25519"]
);
names!(Size, "response size", [OneKib = "1k", TenKib = "10k", OneMib = "1m"]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_the_library_names_them() {
        let known = firstflight_tls::group_names();
        assert!(Group::ALL.iter().all(|group| known.contains(&group.name())), "{known:?}");
    }

    #[test]
    fn names_lead_back_to_their_values_and_others_are_told_what_is_allowed() {
        for group in Group::ALL {
            assert_eq!(group.name().to_lowercase().parse(), Ok(group));
        }
        assert_eq!("0-rtt".parse(), Ok(Kind::ZeroRtt));
        let error = "2k".parse::<Size>().unwrap_err();
        assert_eq!(error, "unknown response size \"2k\"; allowed are 1k, 10k, 1m");
    }
}
