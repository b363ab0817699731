//! What tickets and address tokens are good for.

use firstflight_tls::Version;

use crate::{Certificate, Http, RequestedConnection, ServerKind, Transport, Workload};

/// What a ticket is good for: the listener that issued it, transport and version, and the
/// application protocol, to which early data is bound (RFC 8446 section 4.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Issuer {
    server: ServerKind,
    workload: Workload,
    certificate: Certificate,
    transport: Transport,
    version: Version,
    http: Http,
}

impl Issuer {
    pub(crate) fn of(server: ServerKind, asked: &RequestedConnection) -> Self {
        let RequestedConnection { workload, certificate, transport, version, http, .. } = *asked;
        Self { server, workload, certificate, transport, version, http }
    }
}
