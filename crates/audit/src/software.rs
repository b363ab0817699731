//! Recognises servers by what they say, and knows what to do about a finding there.

/// A server that is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Software {
    Nginx,
    Haproxy,
    Envoy,
    Caddy,
    H2o,
    Firstflight,
    Unknown,
}

/// What a check is about, as far as remedies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Copies are executed.
    Replay,
    /// Unsafe requests run early.
    Methods,
    /// The upstream cannot tell early requests from others.
    Header,
    /// Ages and lifetimes of tickets.
    Tickets,
    /// A flaw of the TLS implementation.
    Library,
    /// Limits of size and time.
    Limits,
}

impl Software {
    pub(crate) fn recognise(server_field: &str) -> Self {
        let said = server_field.to_ascii_lowercase();
        let known = [
            ("firstflight", Self::Firstflight),
            ("nginx", Self::Nginx),
            ("openresty", Self::Nginx),
            ("haproxy", Self::Haproxy),
            ("envoy", Self::Envoy),
            ("caddy", Self::Caddy),
            ("h2o", Self::H2o),
        ];
        let found = known.into_iter().find(|(name, _)| said.starts_with(name));
        found.map_or(Self::Unknown, |(_, software)| software)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Envoy => "Envoy",
            Self::Caddy => "Caddy",
            Self::H2o => "h2o",
            Self::Firstflight => "firstflight",
            Self::Unknown => "not recognised",
        }
    }

    pub(crate) fn remedy(self, concern: Concern) -> &'static str {
        match (concern, self) {
            (Concern::Replay, Self::Nginx) => {
                "set `ssl_early_data off`, or forward `proxy_set_header Early-Data \
                 $ssl_early_data` to an upstream that responds 425 to what must not run twice"
            }
            (Concern::Replay, Self::Haproxy) => {
                "add `http-request wait-for-handshake`, or remove `allow-0rtt` from `bind`"
            }
            (Concern::Replay, Self::Envoy) => {
                "set `enable_early_data: false` in `QuicDownstreamTransport`: Envoy has early data over \
                 QUIC only, where it is on by default"
            }
            (Concern::Replay, Self::Caddy) => {
                "set `0rtt off` in the global options `servers`, or match early requests by the \
                 `tls early_data` matcher and respond 425"
            }
            (Concern::Replay, Self::H2o) => {
                "set `mode: off` in `ssl-session-resumption`, or let the upstream respond 425 to what must not \
                 run twice: h2o forwards `Early-Data: 1`, and sends the request again after the \
                 handshake"
            }
            (Concern::Replay, Self::Firstflight) => {
                "give all nodes that share ticket keys one store with `--store`, and report this \
                 if they have one: it is a bug"
            }
            (Concern::Replay, Self::Unknown) => {
                "switch early data off, or record each first flight until no copy can be fresh"
            }
            (Concern::Methods, Self::Nginx) => {
                "respond 425 to other methods than GET and HEAD while `$ssl_early_data` is 1"
            }
            (Concern::Methods, Self::Haproxy) => {
                "add `http-request wait-for-handshake if ! METH_GET`"
            }
            (Concern::Methods, Self::Firstflight) => {
                "set `early_data.default = \"safe\"`, which is the default"
            }
            (Concern::Methods, _) => "hold unsafe requests until the handshake is complete",
            (Concern::Header, Self::Nginx) => "add `proxy_set_header Early-Data $ssl_early_data`",
            (Concern::Header, _) => {
                "forward `Early-Data: 1` with requests of early data, and only with those"
            }
            (Concern::Tickets, _) => "limit the life of tickets, and compare their stated age",
            (Concern::Library, _) => "update the TLS library, or report this to its developers",
            (Concern::Limits, Self::Nginx) => "set `client_header_timeout` to a few seconds",
            (Concern::Limits, _) => "limit the time of a handshake and the size of early data",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recognised_server_has_its_own_remedy_for_replays() {
        use Software::{Caddy, Envoy, Firstflight, H2o, Haproxy, Nginx, Unknown};
        for software in [Caddy, Envoy, Firstflight, H2o, Haproxy, Nginx] {
            let remedy = software.remedy(Concern::Replay);
            assert_ne!(remedy, Unknown.remedy(Concern::Replay), "{software:?}");
            assert!(remedy.contains('`'), "{software:?}: a setting: {remedy}");
        }
        for check in crate::CHECKS {
            assert!(!Unknown.remedy(check.concern).is_empty(), "{}", check.name);
        }
    }

    #[test]
    fn servers_are_recognised_by_their_field() {
        for (field, software) in [
            ("nginx/1.22.1", Software::Nginx),
            ("Caddy", Software::Caddy),
            ("h2o/2.2.5", Software::H2o),
            ("firstflight", Software::Firstflight),
            ("my nginx", Software::Unknown),
            ("", Software::Unknown),
        ] {
            assert_eq!(Software::recognise(field), software, "{field}");
        }
    }
}
