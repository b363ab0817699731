use std::net::SocketAddr;
use std::time::Duration;

use firstflight_tls::{ConnectOptions, TlsStream};
use tokio::net::TcpStream;

use super::Transfer;
use super::over_tcp::TcpDetails;
use super::race::TcpReady;
use crate::client::is_safe;
use crate::connect::connect_tcp;
use crate::{ClientError, Request, Scheme, SharedStream, TcpInfo};

/// How long a first flight with early data may stay unanswered. Some middleboxes drop each
/// ClientHello that has early data, and every retransmission of it.
const MIN_SILENCE: Duration = Duration::from_millis(200);

impl Transfer<'_> {
    /// Waits until a first flight with early data has stayed unanswered for [`MIN_SILENCE`] or one
    /// and a half round trips, whichever is longer. Then makes a second connection without early
    /// data, and returns it when its handshake is complete and the first one is still silent. Never
    /// returns otherwise, nor for a request that may not be executed twice.
    pub(super) async fn second_connection(
        &self,
        first: &SharedStream<TcpStream>,
        request: &Request,
        addresses: &[SocketAddr],
    ) -> Box<TcpReady> {
        let allowed = self.client.config.second_connection && is_safe(&request.method);
        if allowed && first.offered_early_data() {
            let rtt = info(first).map(|info| info.rtt).unwrap_or_default();
            tokio::time::sleep(MIN_SILENCE.max(rtt * 3 / 2)).await;
            if !is_answered(first)
                && let Ok(second) = self.connect_without_early_data(request, addresses).await
                && !is_answered(first)
            {
                return Box::new(second);
            }
        }
        std::future::pending().await
    }

    /// Connects TCP and TLS by a full handshake: the first flight has used the session.
    async fn connect_without_early_data(
        &self,
        request: &Request,
        addresses: &[SocketAddr],
    ) -> Result<TcpReady, ClientError> {
        debug_assert_eq!(request.target.scheme(), Scheme::Https, "early data needs TLS");
        let tcp = connect_tcp(addresses, false).await?;
        let details = TcpDetails::of(&tcp, false);
        let host = request.target.host().to_owned();
        let offer = ConnectOptions { host, ..ConnectOptions::default() };
        let stream = TlsStream::connect(&self.client.connector, tcp.stream, &offer).await?;
        Ok(TcpReady { details, offer, stream })
    }
}

fn info(stream: &SharedStream<TcpStream>) -> Option<TcpInfo> {
    stream.with_socket(TcpInfo::of)
}

/// Whether anything was received.
fn is_answered(stream: &SharedStream<TcpStream>) -> bool {
    info(stream).is_some_and(|info| info.bytes_received > 0)
}
