//! What a client sent before it heard anything.

/// What the client sent before anything of the server was delivered to it: over TCP the payload
/// before any payload of the server, over QUIC the datagrams before any of the server's. These are
/// the bytes that an attacker can resend without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstFlight {
    /// TCP payload in stream order.
    Stream(Vec<u8>),
    /// UDP payloads, in the order in which they reached the tap. One that the capture has cut is
    /// left out.
    Datagrams(Vec<Vec<u8>>),
}

impl FirstFlight {
    /// Whether there is nothing to resend.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// How many bytes it has, headers of UDP, TCP and below left out.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Stream(stream) => stream.len(),
            Self::Datagrams(datagrams) => datagrams.iter().map(Vec::len).sum(),
        }
    }

    /// TCP's; `None` over QUIC.
    pub fn stream(&self) -> Option<&[u8]> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Datagrams(_) => None,
        }
    }

    /// QUIC's; `None` over TCP.
    pub fn datagrams(&self) -> Option<&[Vec<u8>]> {
        match self {
            Self::Stream(_) => None,
            Self::Datagrams(datagrams) => Some(datagrams),
        }
    }
}
