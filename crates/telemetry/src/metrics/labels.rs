//! Labels of metrics: how an enum becomes a label, and all labels with a fixed set of values.

use std::borrow::Cow;

/// A label and all its values, for the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelInfo {
    /// Its name.
    pub name: &'static str,
    /// Each value and what it means; empty where the values are names out of the configuration.
    pub values: &'static [(&'static str, &'static str)],
    /// What the values are, where they are not listed.
    pub meaning: &'static str,
}

impl LabelInfo {
    /// A label with values out of the configuration.
    pub const fn configured(name: &'static str, meaning: &'static str) -> Self {
        Self { name, values: &[], meaning }
    }
}

/// A label's value.
pub trait Label: Copy {
    /// The label and its values, in the order of their indices.
    const INFO: LabelInfo;

    /// Which of the values it is.
    fn index(self) -> usize;
}

/// The values of all labels of a series.
pub trait Labels: Copy {
    /// How many combinations there are.
    const COUNT: usize;

    /// Which of the combinations it is.
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

/// Several labels are one after the other, as digits are.
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

/// An enum as a label: each variant's documentation is what the reference says of its value.
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
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As label, logs and the console have it.
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
    /// What carries a connection.
    Transport as "transport" {
        /// TLS over TCP.
        Tcp = "tcp",
        /// QUIC.
        Quic = "quic",
    }
}

label! {
    /// Where a certificate comes from.
    CertificateOrigin as "source" {
        /// Files, which somebody else renews.
        Files = "files",
        /// An authority, by ACME.
        Acme = "acme",
        /// The development authority, which signs again in time.
        Development = "development",
        /// Made at the start, for ever.
        SelfSigned = "self-signed",
    }
}

label! {
    /// How a certificate authority looks whether a name leads here.
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
        /// TLS 1.3, QUIC's too.
        Tls13 = "1.3",
    }
}

label! {
    /// What a handshake started with.
    HandshakeKind as "kind" {
        /// No session: certificate and signature.
        Full = "full",
        /// A session, without early data.
        Resumed = "resumed",
        /// A session, and early data was accepted.
        Early = "early",
    }
}

label! {
    /// Why a connection ended before its handshake did, and before a response.
    HandshakeFailure as "reason" {
        /// TLS or QUIC found fault, or the client did or went away.
        Protocol = "protocol",
        /// It took longer than `limits.header_timeout`.
        Timeout = "timeout",
    }
}

label! {
    /// Why a client that offered early data has to send it again after the handshake, or has its
    /// requests held.
    RefusedReason as "reason" {
        /// The configuration switches early data off.
        Disabled = "disabled",
        /// Another connection has claimed the flight: a replay, or an original that a copy
        /// overtook.
        Replayed = "replayed",
        /// The flight, or a copy of it, was refused before, and its client has sent its requests
        /// again: somebody sends it a second time.
        RefusedBefore = "refused_before",
        /// The ticket's age is off by more than `early_data.freshness`.
        Age = "age",
        /// The ticket was issued before the present ticket epoch: before a start without a
        /// hand-over, a step of the clock, or an overflow of the strike register. The next one
        /// brings early data again.
        TicketEpoch = "ticket_epoch",
        /// This process is being replaced, and has handed its records to the next one.
        HandedOver = "handed_over",
        /// The strike register is full, or nearly.
        RegisterFull = "register_full",
        /// The ticket was issued in another zone.
        Zone = "zone",
        /// The store gave no response within its budget.
        StoreTimeout = "store_timeout",
        /// There is no connection to the store.
        StoreDown = "store_down",
        /// The store answered with an error.
        StoreRefused = "store_refused",
        /// Too few replicas have the claim.
        StoreUnreplicated = "store_unreplicated",
        /// The store may have forgotten claims, so a recording window has to pass first.
        StoreWindow = "store_window",
        /// The clocks of node and store are too far apart.
        StoreClock = "store_clock",
        /// The store may drop claims when its memory is full.
        StoreEvicting = "store_evicting",
        /// Over QUIC with a store: the first packets were not seen in time.
        Unseen = "unseen",
        /// The session is gone: its ticket's key was rotated out, or it has expired.
        SessionNotResumed = "session_not_resumed",
        /// The client offered early data without a session.
        NoSessionOffered = "no_session_offered",
        /// The session was issued without early data.
        UnsupportedForSession = "unsupported_for_session",
        /// The server asked for another key share; see `tls.groups`.
        HelloRetryRequest = "hello_retry_request",
        /// The application protocol is not the session's.
        AlpnMismatch = "alpn_mismatch",
        /// The ticket's age is off by more than 60 s, the library's bound.
        TicketAgeSkew = "ticket_age_skew",
        /// Over QUIC: the session was issued under other limits or settings.
        QuicParameters = "quic_parameters",
        /// The negotiated version has no early data.
        ProtocolVersion = "protocol_version",
        /// The peer declined it.
        PeerDeclined = "peer_declined",
        /// The handshake did not come that far.
        Unknown = "unknown",
        /// Any other reason of the library.
        Other = "other",
    }
}

label! {
    /// Why a request that came early was not run at once.
    HeldReason as "reason" {
        /// The route's policy does not let it run early.
        Policy = "policy",
        /// Another connection has claimed the flight.
        Replayed = "replayed",
        /// Early data was refused, and the store has no record of the flight yet.
        Unrecorded = "unrecorded",
    }
}

label! {
    /// What ended a hold.
    HoldEnd as "ended" {
        /// The handshake was complete, and the request ran.
        Handshake = "handshake",
        /// The handshake was complete, and the request was refused with 425.
        TooEarly = "too_early",
        /// The client's Finished did not come within `limits.header_timeout`, as a copy's never
        /// does.
        Timeout = "timeout",
        /// The connection ended before.
        Disconnected = "disconnected",
    }
}

label! {
    /// Who refused with 425 (Too Early).
    TooEarlyBy as "by" {
        /// This server.
        Server = "server",
        /// The upstream.
        Upstream = "upstream",
    }
}

label! {
    /// How requests are spoken.
    Protocol as "protocol" {
        /// HTTP/1.0.
        Http10 = "http1.0",
        /// HTTP/1.1.
        Http11 = "http1.1",
        /// HTTP/2.
        Http2 = "http2",
        /// HTTP/3.
        Http3 = "http3",
        /// No HTTP: `PING` and `PONG`, for measuring.
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
        /// 101, on a connection that became another protocol's.
        Switching = "1xx",
        /// Success.
        Success = "2xx",
        /// Redirection.
        Redirection = "3xx",
        /// The client's fault.
        Client = "4xx",
        /// The server's fault.
        Server = "5xx",
        /// No response: the client went before there was one.
        None = "none",
    }
}

label! {
    /// Whether a request came as early data, and what became of it.
    Early as "early" {
        /// It came after the handshake, or without early data.
        No = "no",
        /// It came early and ran at once.
        Ran = "ran",
        /// It came early and was held or refused with 425.
        Held = "held",
    }
}

label! {
    /// Why a request was answered without being run, by the rules of its route.
    RejectReason as "reason" {
        /// Its Idempotency-Key was used before: it has run, or may have.
        KeyUsed = "key_used",
        /// Its nonce was used before.
        NonceUsed = "nonce_used",
        /// It came early, and its nonce was there before, maybe in a copy: 425.
        TooEarly = "too_early",
        /// Its Idempotency-Key is none.
        BadKey = "bad_key",
        /// The register cannot say whether it has run.
        Unknown = "unknown",
    }
}

label! {
    /// Why a connection over QUIC was turned away.
    QuicRefusal as "reason" {
        /// Its client was asked to show its address first (Retry), because many connections start.
        Retry = "retry",
        /// Its address token was used before, so it was asked to show its address again.
        TokenSpent = "token_spent",
        /// So many handshakes are in progress that it got no response.
        Overload = "overload",
        /// The server is at its limit of connections, is stopping, or serves no HTTP/3 any more.
        Refused = "refused",
    }
}

label! {
    /// What a reload came to.
    ReloadResult as "result" {
        /// The new configuration serves.
        Success = "success",
        /// The new one is of no use, and the old one serves on.
        Failure = "failure",
    }
}

impl Method {
    /// The class of a method as requests spell it.
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
    /// The class of a status; `None`: there was no response.
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
    fn each_combination_has_its_place_and_its_names() {
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
