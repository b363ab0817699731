use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use firstflight_tls::{ConnectOptions, TlsStream};
use tokio::net::TcpStream;

use super::Transfer;
use super::over_quic::QuicReady;
use super::over_tcp::TcpDetails;
use crate::connect::connect_tcp;
use crate::quic::QuicHandle;
use crate::{ClientError, Event, Request, Stream};

/// Which transport could send first.
pub(super) enum Winner {
    Quic(Box<QuicReady>),
    /// With the reason why TCP was tried.
    Tcp(Box<TcpReady>, String),
}

/// A TCP connection on which nothing of the request has been sent.
pub(super) struct TcpReady {
    pub(super) details: TcpDetails,
    pub(super) offer: ConnectOptions,
    pub(super) stream: TlsStream<TcpStream>,
}

/// Head start of QUIC, as with curl.
const HEAD_START: Duration = Duration::from_millis(200);

impl Transfer<'_> {
    /// Connects over QUIC and TCP concurrently. The first on which a request can be sent wins: QUIC
    /// when its handshake is complete; TCP when its TLS handshake is complete or, with early data,
    /// when TCP is connected. The other one is closed.
    pub(super) async fn race(
        &self,
        request: &Request,
        early: bool,
        addresses: &[SocketAddr],
    ) -> Result<Winner, ClientError> {
        let mut quic = pin!(self.dial_quic(request, early, false, addresses));
        let mut tcp = pin!(self.connect_tcp_tls(request, early, addresses));
        let quic_won = |quic_ready| Winner::Quic(Box::new(quic_ready));
        let tcp_won = |tcp_ready, why: String| Winner::Tcp(Box::new(tcp_ready), why);
        match tokio::time::timeout(HEAD_START, quic.as_mut()).await {
            Ok(Ok(quic_ready)) => return Ok(quic_won(quic_ready)),
            Ok(Err(error)) => return Ok(tcp_won(tcp.await?, error.to_string())),
            Err(_) => {}
        }
        tokio::select! {
            biased;
            quic_ready = quic.as_mut() => match quic_ready {
                Ok(quic_ready) => Ok(quic_won(quic_ready)),
                Err(error) => Ok(tcp_won(tcp.await?, error.to_string())),
            },
            tcp_ready = tcp.as_mut() => match tcp_ready {
                Ok(tcp_ready) => {
                    let limit = HEAD_START.as_millis();
                    Ok(tcp_won(tcp_ready, format!("no connection over QUIC within {limit} ms")))
                }
                Err(error) => quic.await.map(quic_won).map_err(|_| error),
            },
        }
    }

    async fn connect_tcp_tls(
        &self,
        request: &Request,
        early: bool,
        addresses: &[SocketAddr],
    ) -> Result<TcpReady, ClientError> {
        // With Fast Open a socket reports that it is connected before the peer has responded.
        let tcp = connect_tcp(addresses, false).await?;
        let (details, offer) = (TcpDetails::of(&tcp, false), self.offer(request, early));
        let stream = TlsStream::connect(&self.client.connector, tcp.stream, &offer).await?;
        Ok(TcpReady { details, offer, stream })
    }

    /// Continues with the TCP connection that won. If the request was sent as early data over QUIC,
    /// it is sent a second time; only requests with a safe method can be.
    pub(super) fn take_over(
        &mut self,
        tcp_ready: Box<TcpReady>,
        request: &Request,
        why: &str,
    ) -> Stream<TcpStream> {
        self.listener.event(&Event::TryingTcp(why));
        self.record_duplicates(None);
        self.take_connection(tcp_ready, request)
    }

    /// Continues with a TCP connection on which nothing of the request has been sent.
    pub(super) fn take_connection(
        &mut self,
        tcp_ready: Box<TcpReady>,
        request: &Request,
    ) -> Stream<TcpStream> {
        let TcpReady { details, offer, stream } = *tcp_ready;
        self.record_tcp_connect(&details, request);
        self.record_offer(&offer);
        self.record_secured(&stream);
        Stream::Tls(Box::new(stream))
    }

    /// Counts requests that were sent as early data on connections that did not win, and so are
    /// sent again on the one that did.
    pub(super) fn record_duplicates(&mut self, winner: Option<SocketAddr>) {
        let lost = |link: &&QuicHandle| Some(link.peer()) != winner && link.early_bytes() > 0;
        if self.links.get_mut().iter().filter(lost).count() > 0 {
            self.report.retries += 1;
            let why = "another connection was faster, and the request had been sent as early data";
            self.listener.event(&Event::Retrying(why));
        }
    }
}
