//! Recognises servers by their responses, and has a remedy for the findings at each of them.

use crate::http::Response;

/// A server that is recognised, on which the remedies depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Software {
    /// nginx, and servers based on it.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Envoy.
    Envoy,
    /// Caddy.
    Caddy,
    /// h2o.
    H2o,
    /// This project's server, which sends no `server` field.
    Firstflight,
    /// None of these.
    Unknown,
}

/// The subject of a check, on which the remedy depends.
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
    /// TCP Fast Open.
    FastOpen,
}

/// What to do about each concern.
struct Remedies {
    replay: &'static str,
    methods: &'static str,
    header: &'static str,
    tickets: &'static str,
    library: &'static str,
    limits: &'static str,
    fast_open: &'static str,
}

impl Software {
    /// The server with this name, as in `--software`.
    pub fn find(name: &str) -> Option<Self> {
        KNOWN.iter().find(|(known, _)| *known == name).map(|(_, software)| *software)
    }

    /// The names for [`find`](Self::find).
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, _)| *name)
    }

    /// Recognises a server by its response to an invalid request, which no upstream has seen,
    /// otherwise by the `server` field of another response, which an upstream may have set.
    pub(crate) fn recognise(response: &Response, to_invalid: Option<&Response>) -> Self {
        let by_error = to_invalid.map_or(Self::Unknown, |response| {
            let page = String::from_utf8_lossy(&response.body);
            match page.contains(HAPROXY_ERROR) {
                true => Self::Haproxy,
                false => Self::by_field(&response.software),
            }
        });
        match by_error {
            Self::Unknown => Self::by_field(&response.software),
            found => found,
        }
    }

    fn by_field(server_field: &str) -> Self {
        let lowercase = server_field.to_ascii_lowercase();
        let found = KNOWN.iter().find(|(name, _)| lowercase.starts_with(name));
        found.map_or(Self::Unknown, |(_, software)| *software)
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
        let remedies = match self {
            Self::Nginx => NGINX,
            Self::Haproxy => HAPROXY,
            Self::Envoy => ENVOY,
            Self::Caddy => CADDY,
            Self::H2o => H2O,
            Self::Firstflight => FIRSTFLIGHT,
            Self::Unknown => UNKNOWN,
        };
        match concern {
            Concern::Replay => remedies.replay,
            Concern::Methods => remedies.methods,
            Concern::Header => remedies.header,
            Concern::Tickets => remedies.tickets,
            Concern::Library => remedies.library,
            Concern::Limits => remedies.limits,
            Concern::FastOpen => remedies.fast_open,
        }
    }
}

/// Prefixes of the header field `server`.
const KNOWN: &[(&str, Software)] = &[
    ("firstflight", Software::Firstflight),
    ("nginx", Software::Nginx),
    ("openresty", Software::Nginx),
    ("haproxy", Software::Haproxy),
    ("envoy", Software::Envoy),
    ("caddy", Software::Caddy),
    ("h2o", Software::H2o),
];

/// HAProxy has no header field, but a page of its own.
const HAPROXY_ERROR: &str = "<h1>400 Bad request</h1>\nYour browser sent an invalid request.";

const NGINX: Remedies = Remedies {
    replay: "set `ssl_early_data off`, or forward `proxy_set_header Early-Data $ssl_early_data` to an \
             upstream that responds 425 to what must not run twice",
    methods: "respond 425 to other methods than GET and HEAD while `$ssl_early_data` is 1",
    header: "add `proxy_set_header Early-Data $ssl_early_data`",
    tickets: "set `ssl_session_timeout` to a day at most, and rotate the files of \
              `ssl_session_ticket_key`",
    library: "update the OpenSSL or BoringSSL that `nginx -V` names, or report this to its developers",
    limits: "set `client_header_timeout` and `keepalive_timeout` to a few seconds",
    fast_open: "set `sysctl net.ipv4.tcp_fastopen=3`, or remove `fastopen=` from `listen`",
};

const HAPROXY: Remedies = Remedies {
    replay: "add `http-request wait-for-handshake`, or remove `allow-0rtt` from `bind`",
    methods: "add `http-request wait-for-handshake if ! METH_GET`",
    header: "add `http-request set-header Early-Data 1 if { ssl_fc_has_early }`",
    tickets: "set `tune.ssl.lifetime` to a day at most, and rotate the file of `tls-ticket-keys`",
    library: "update the TLS library that `haproxy -vv` names, or report this to its developers",
    limits: "set `timeout client` and `timeout http-request` to a few seconds",
    fast_open: "set `sysctl net.ipv4.tcp_fastopen=3`, or remove `tfo` from `bind`",
};

const ENVOY: Remedies = Remedies {
    replay: "set `enable_early_data: false` in `QuicDownstreamTransport`: Envoy has early data over QUIC \
             only, where it is on by default",
    methods: "set `enable_early_data: false` in `QuicDownstreamTransport`, or let the upstream respond \
              425 to unsafe requests that carry `Early-Data: 1`",
    header: "update Envoy, or set `enable_early_data: false` in `QuicDownstreamTransport`",
    tickets: "set `session_timeout` in `DownstreamTlsContext` to a day at most, and rotate \
              `session_ticket_keys`",
    library: "update Envoy, which `envoy --version` names with its BoringSSL, or report this to its \
              developers",
    limits: "set `transport_socket_connect_timeout` of the filter chain and `request_headers_timeout` of \
             the HTTP connection manager to a few seconds",
    fast_open: "set `sysctl net.ipv4.tcp_fastopen=3`, or remove `tcp_fast_open_queue_length`",
};

const CADDY: Remedies = Remedies {
    replay: "set `0rtt off` in the global options `servers`, or match early requests by the `tls \
             early_data` matcher and respond 425",
    methods: "match `tls early_data` together with `not method GET HEAD`, and `respond 425` to that",
    header: "add `header_up Early-Data 1` to a `reverse_proxy` of its own for the `tls early_data` \
             matcher",
    tickets: "set `rotation_interval` of `session_tickets` in the JSON configuration to a day at most",
    library: "update Caddy, which contains the TLS and QUIC of the Go version that `caddy build-info` \
              names, or report this to its developers",
    limits: "set `read_header` of `timeouts` in the global options `servers` to a few seconds",
    fast_open: "Caddy has no setting for it: look at `sysctl net.ipv4.tcp_fastopen`, and at what is in \
                front of it",
};

const H2O: Remedies = Remedies {
    replay: "set `mode: off` in `ssl-session-resumption`, or let the upstream respond 425 to what must \
             not run twice: h2o forwards `Early-Data: 1`, and sends the request again after the \
             handshake",
    methods: "let a `mruby.handler` or the upstream respond 425 to unsafe requests with `Early-Data: 1`: \
              h2o sends them again after the handshake",
    header: "update h2o, whose `proxy.reverse.url` forwards `Early-Data: 1` by itself",
    tickets: "set `lifetime` in `ssl-session-resumption` to a day at most",
    library: "update h2o with its picotls, which `h2o --version` names, or report this to its \
              developers",
    limits: "set `handshake-timeout` and `http1-request-timeout` to a few seconds",
    fast_open: "set `sysctl net.ipv4.tcp_fastopen=3`, or `tcp-fastopen: 0`",
};

const FIRSTFLIGHT: Remedies = Remedies {
    replay: "give all nodes that share ticket keys one store with `--store`, and report this if they \
             have one: it is a bug",
    methods: "set `default = \"permissive\"` in `[early_data]`, which is the default",
    header: "report this: `Early-Data: 1` with early requests, and only with those, is a promise of the \
             proxy",
    tickets: "rotate the keys with `firstflight keys rotate`, and report this if a ticket's lifetime is \
              not kept",
    library: "report this: `firstflight --version` names the release with its BoringSSL",
    limits: "set `header_timeout` in `[limits]` to a few seconds",
    fast_open: "set `sysctl net.ipv4.tcp_fastopen=3`, or `=0` if the path loses such packets",
};

const UNKNOWN: Remedies = Remedies {
    replay: "switch early data off, or record each first flight until no copy can be fresh",
    methods: "hold unsafe requests until the handshake is complete",
    header: "forward `Early-Data: 1` with requests of early data, and only with those",
    tickets: "limit the life of tickets, and compare their stated age",
    library: "update the TLS library, or report this to its developers",
    limits: "limit the time of a handshake and the size of early data",
    fast_open: "accept data in a SYN on every node, with one key, or switch TCP Fast Open off",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_remedy_for_each_recognised_server() {
        use Software::{Caddy, Envoy, Firstflight, H2o, Haproxy, Nginx, Unknown};
        for check in crate::CHECKS {
            let remedies = [Caddy, Envoy, Firstflight, H2o, Haproxy, Nginx, Unknown]
                .map(|software| (software, software.remedy(check.concern)));
            for (index, (software, remedy)) in remedies.iter().enumerate() {
                let what = format!("{} at {software:?}: {remedy}", check.name);
                let setting = *software == Unknown || remedy.matches('`').count() >= 2;
                assert!(setting, "it names a setting or a command: {what}");
                let earlier = &remedies[..index];
                assert!(earlier.iter().all(|(_, other)| other != remedy), "its own: {what}");
            }
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
            assert_eq!(Software::recognise(&response(field, ""), None), software, "{field}");
        }
    }

    #[test]
    fn the_response_to_an_invalid_request_takes_precedence() {
        let page = format!("<html><body>{HAPROXY_ERROR}\n</body></html>\n");
        for (field, body, software) in [
            ("", &*page, Software::Haproxy),
            ("h2o/2.2.5", "Bad Request", Software::H2o),
            ("", "400 Bad Request", Software::Nginx),
        ] {
            let found = Software::recognise(&response("nginx", ""), Some(&response(field, body)));
            assert_eq!(found, software, "{field} {body}");
        }
    }

    fn response(field: &str, body: &str) -> Response {
        let body = body.as_bytes().to_vec();
        Response { status: 400, software: field.to_owned(), location: None, body }
    }
}
