//! Labels of metrics: how an enum becomes a label, and all labels with fixed values.

use std::borrow::Cow;

/// A label and all its values, for the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelInfo {
    /// The name.
    pub name: &'static str,
    /// Each value and its meaning; empty if the values come from the configuration.
    pub values: &'static [(&'static str, &'static str)],
    /// What the values are, if they are not listed.
    pub meaning: &'static str,
}

impl LabelInfo {
    /// A label with values from the configuration.
    pub const fn configured(name: &'static str, meaning: &'static str) -> Self {
        Self { name, values: &[], meaning }
    }
}

/// A label's value.
pub trait Label: Copy {
    /// The label and its values, in the order of their indices.
    const INFO: LabelInfo;

    /// The index of this value.
    fn index(self) -> usize;
}

/// The values of all labels of a series.
pub trait Labels: Copy {
    /// The number of combinations.
    const COUNT: usize;

    /// The index of this combination.
    fn index(self) -> usize;

    /// The labels.
    fn infos() -> Vec<LabelInfo>;

    /// The names and values of the combination at `index`.
    fn at(index: usize) -> Vec<(&'static str, Cow<'static, str>)> {
        let (mut rest, mut found) = (index, Vec::new());
        for info in Self::infos().iter().rev() {
            let (value, _) = info.values[rest % info.values.len()];
            found.push((info.name, Cow::Borrowed(value)));
            rest /= info.values.len();
        }
        found.reverse();
        found
    }
}

impl Labels for () {
    const COUNT: usize = 1;

    fn index(self) -> usize {
        0
    }

    fn infos() -> Vec<LabelInfo> {
        Vec::new()
    }
}

impl<A: Label> Labels for A {
    const COUNT: usize = A::INFO.values.len();

    fn index(self) -> usize {
        Label::index(self)
    }

    fn infos() -> Vec<LabelInfo> {
        vec![A::INFO]
    }
}

/// Indices of several labels are combined like digits.
macro_rules! labels {
    ($($label:ident $value:ident),+) => {
        impl<$($label: Label),+> Labels for ($($label,)+) {
            const COUNT: usize = 1 $(* $label::INFO.values.len())+;

            fn index(self) -> usize {
                let ($($value,)+) = self;
                let index = 0;
                $(let index = index * $label::INFO.values.len() + Label::index($value);)+
                index
            }

            fn infos() -> Vec<LabelInfo> {
                vec![$($label::INFO),+]
            }
        }
    };
}

labels!(A a, B b);
labels!(A a, B b, C c);
labels!(A a, B b, C c, D d);

/// Defines an enum as a label: each variant's documentation describes its value in the reference.
macro_rules! label {
    (
        $(#[doc = $about:literal])+
        $name:ident as $label:literal {
            $($(#[doc = $meaning:literal])+ $variant:ident = $value:literal,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in labels, logs and on the console.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)+
                }
            }
        }

        impl crate::metrics::labels::Label for $name {
            const INFO: crate::metrics::labels::LabelInfo = crate::metrics::labels::LabelInfo {
                name: $label,
                values: &[$(($value, concat!($($meaning),+))),+],
                meaning: "",
            };

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label! {
    /// The transport of a connection.
    Transport as "transport" {
        /// TLS over TCP.
        Tcp = "tcp",
        /// QUIC.
        Quic = "quic",
    }
}

label! {
    /// The origin of a certificate.
    CertificateOrigin as "source" {
        /// Files, renewed by other means.
        Files = "files",
        /// An authority, by ACME.
        Acme = "acme",
        /// The development authority, which renews it in time.
        Development = "development",
        /// Generated at the start, never renewed.
        SelfSigned = "self-signed",
    }
}

label! {
    /// How a certificate authority validates that a name leads to this server.
    AcmeChallenge as "kind" {
        /// By a handshake (RFC 8737).
        TlsAlpn01 = "tls-alpn-01",
        /// By a request (RFC 8555 section 8.3).
        Http01 = "http-01",
    }
}

label! {
    /// A version of TLS.
    TlsVersion as "version" {
        /// TLS 1.0.
        Tls10 = "1.0",
        /// TLS 1.1.
        Tls11 = "1.1",
        /// TLS 1.2.
        Tls12 = "1.2",
        /// TLS 1.3, also with QUIC.
        Tls13 = "1.3",
    }
}

label! {
    /// The kind of a handshake.
    HandshakeKind as "kind" {
        /// Full: certificate and signature.
        Full = "full",
        /// Resumed without early data.
        Resumed = "resumed",
        /// Resumed, and early data was accepted.
        Early = "early",
    }
}

label! {
    /// Why a connection ended before its handshake was complete and before a response.
    HandshakeFailure as "reason" {
        /// A TLS or QUIC error on either side, or the client disconnected.
        Protocol = "protocol",
        /// It took longer than `limits.header_timeout`.
        Timeout = "timeout",
    }
}

label! {
    /// Why a client that offered early data has to send it again after the handshake, or has its
    /// requests held.
    RefusedReason as "reason" {
        /// The configuration disables early data.
        Disabled = "disabled",
        /// Another connection has claimed the flight: a replay, or an original after its copy. With
        /// punctured keys it has used the ticket up.
        Replayed = "replayed",
        /// A replay: the flight or a copy of it was refused before, and its client has sent its
        /// requests again.
        RefusedBefore = "refused_before",
        /// The ticket's age is off by more than `early_data.freshness`.
        Age = "age",
        /// The ticket is of an earlier epoch: from before a start without a handoff, a step of the
        /// clock, or an overflow of the strike register. The next ticket brings early data again.
        TicketEpoch = "ticket_epoch",
        /// This process is being replaced, and has handed over its records.
        HandedOver = "handed_over",
        /// The strike register is full, or nearly full.
        RegisterFull = "register_full",
        /// The ticket was issued in another zone.
        Zone = "zone",
        /// The store did not respond within the time budget.
        StoreTimeout = "store_timeout",
        /// There is no connection to the store.
        StoreDown = "store_down",
        /// The store responded with an error.
        StoreRefused = "store_refused",
        /// Too few replicas have the claim.
        StoreUnreplicated = "store_unreplicated",
        /// The store may have lost claims, and a recording window has to pass first.
        StoreWindow = "store_window",
        /// The clocks of node and store are too far apart.
        StoreClock = "store_clock",
        /// The store may drop claims when its memory is full.
        StoreEvicting = "store_evicting",
        /// Over QUIC with a store: the first packets did not arrive in time.
        Unseen = "unseen",
        /// The session is invalid: it has expired, or its ticket's key was rotated out.
        SessionNotResumed = "session_not_resumed",
        /// With punctured keys: another flight has used the ticket, although clients should use
        /// each once (RFC 8446 appendix C.4).
        TicketUsed = "ticket_used",
        /// The client offered no session.
        NoSessionOffered = "no_session_offered",
        /// The session was issued without early data.
        UnsupportedForSession = "unsupported_for_session",
        /// The server requested another key share; see `tls.groups`.
        HelloRetryRequest = "hello_retry_request",
        /// The application protocol differs from the session's.
        AlpnMismatch = "alpn_mismatch",
        /// The ticket's age is off by more than 60 s, the library's limit.
        TicketAgeSkew = "ticket_age_skew",
        /// Over QUIC: the session was issued under other limits or settings.
        QuicParameters = "quic_parameters",
        /// The negotiated version has no early data.
        ProtocolVersion = "protocol_version",
        /// The client offered a session without early data.
        PeerDeclined = "peer_declined",
        /// The handshake failed before the decision.
        Unknown = "unknown",
        /// Any other reason of the library.
        Other = "other",
    }
}

label! {
    /// Why an early request was not executed at once.
    HeldReason as "reason" {
        /// The route's policy does not allow it early.
        Policy = "policy",
        /// Another connection has claimed the flight.
        Replayed = "replayed",
        /// Early data was refused, and the store has no record of the flight yet.
        Unrecorded = "unrecorded",
    }
}

label! {
    /// Why a hold ended.
    HoldEnd as "ended" {
        /// The request was executed after the handshake.
        Handshake = "handshake",
        /// The request was refused with 425 after the handshake.
        TooEarly = "too_early",
        /// The client's Finished did not arrive within `limits.header_timeout`; a copy's never
        /// does.
        Timeout = "timeout",
        /// The connection ended first.
        Disconnected = "disconnected",
    }
}

label! {
    /// Who responded with 425 (Too Early).
    TooEarlyBy as "by" {
        /// This server.
        Server = "server",
        /// The upstream.
        Upstream = "upstream",
    }
}

label! {
    /// The protocol of requests.
    Protocol as "protocol" {
        /// HTTP/1.0.
        Http10 = "http1.0",
        /// HTTP/1.1.
        Http11 = "http1.1",
        /// HTTP/2.
        Http2 = "http2",
        /// HTTP/3.
        Http3 = "http3",
        /// Not HTTP: `PING` and `PONG`, for measuring.
        PingPong = "ping_pong",
    }
}

label! {
    /// A request's method, by class.
    Method as "method" {
        /// GET.
        Get = "get",
        /// HEAD.
        Head = "head",
        /// POST.
        Post = "post",
        /// PUT.
        Put = "put",
        /// PATCH.
        Patch = "patch",
        /// DELETE.
        Delete = "delete",
        /// OPTIONS.
        Options = "options",
        /// Any other.
        Other = "other",
    }
}

label! {
    /// A response's status, by class.
    Status as "status" {
        /// 101, on a connection that changed to another protocol.
        Switching = "1xx",
        /// Success.
        Success = "2xx",
        /// Redirection.
        Redirection = "3xx",
        /// A client error.
        Client = "4xx",
        /// A server error.
        Server = "5xx",
        /// No response: the client disconnected first.
        None = "none",
    }
}

label! {
    /// Whether a request was early data, and how it was handled.
    Early as "early" {
        /// It arrived after the handshake, or without early data.
        No = "no",
        /// It was early and not held; its route's rules may have refused it.
        Ran = "ran",
        /// It was early and held, or refused with 425 instead.
        Held = "held",
    }
}

label! {
    /// Why a request was rejected by the rules of its route, without being executed.
    RejectReason as "reason" {
        /// Its Idempotency-Key was used before: the request was executed, or may have been.
        KeyUsed = "key_used",
        /// Its nonce was used before.
        NonceUsed = "nonce_used",
        /// It was early, and its nonce was used before, perhaps by a copy: 425.
        TooEarly = "too_early",
        /// Its Idempotency-Key is invalid.
        BadKey = "bad_key",
        /// The register cannot tell whether it was executed.
        Unknown = "unknown",
    }
}

label! {
    /// Why a QUIC connection was refused.
    QuicRefusal as "reason" {
        /// Many connections are starting, so the client had to prove its address first (Retry).
        Retry = "retry",
        /// Its address token was used before, so it had to prove its address again.
        TokenSpent = "token_spent",
        /// Too many handshakes are in progress, so there was no response.
        Overload = "overload",
        /// The server is at its limit of connections, is stopping, or no longer serves HTTP/3.
        Refused = "refused",
    }
}

label! {
    /// The result of a reload.
    ReloadResult as "result" {
        /// The new configuration is in force.
        Success = "success",
        /// The new configuration is invalid; the old one stays in force.
        Failure = "failure",
    }
}

impl Method {
    /// The class of a request's method.
    pub fn of(method: &str) -> Self {
        match method {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            _ => Self::Other,
        }
    }
}

impl Status {
    /// The class of a status; `None` means no response.
    pub fn of(status: Option<u16>) -> Self {
        match status {
            None => Self::None,
            Some(..200) => Self::Switching,
            Some(200..300) => Self::Success,
            Some(300..400) => Self::Redirection,
            Some(400..500) => Self::Client,
            Some(500..) => Self::Server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{HandshakeKind, TlsVersion, Transport};

    #[test]
    fn each_combination_has_its_index_and_names() {
        type Three = (TlsVersion, HandshakeKind, Transport);
        let mut seen = Vec::new();
        for version in TlsVersion::ALL {
            for kind in HandshakeKind::ALL {
                for transport in Transport::ALL {
                    let index = Labels::index((*version, *kind, *transport));
                    let at = Three::at(index);
                    let names = at.iter().map(|(_, value)| value.as_ref()).collect::<Vec<_>>();
                    assert_eq!(names, [version.name(), kind.name(), transport.name()]);
                    seen.push(index);
                }
            }
        }
        assert_eq!(seen, (0..Three::COUNT).collect::<Vec<_>>());
    }
}
