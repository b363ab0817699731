//! One connection of a sample: connect, ask, read the response to its end, close.

use std::net::SocketAddr;

use firstflight_client::ClientError;
use firstflight_samples::{Connectors, RequestedConnection};
use firstflight_tls::TlsError;

use crate::connection::{ConnectionOffer, Exchanged};
use crate::{over_quic, over_tcp};

/// Makes the connection; `local` is set as soon as there is a socket.
pub(crate) async fn talk(
    connectors: &Connectors,
    brought: ConnectionOffer,
    address: SocketAddr,
    asked: &RequestedConnection,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Exchanged, ClientError> {
    let usage = |error: TlsError| ClientError::Usage(error.to_string());
    if asked.over_quic() {
        let crypto = connectors.quic(asked).map_err(usage)?;
        return over_quic::talk(&crypto, brought, address, asked, target, local).await;
    }
    let connector = connectors.get(asked).map_err(usage)?;
    over_tcp::talk(&connector, brought, address, asked, target, local).await
}
