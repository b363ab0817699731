//! The honest client: one GET on a connection, as early data if there is a ticket. If its early
//! data is refused, it sends the request again on the same connection, as clients do.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_client::{Request, Target, connect_quic, http3_get};
use firstflight_quic::{ClientCrypto, Remembered, Resumption};
use firstflight_tls::{
    ConnectOptions, Connector, ConnectorConfig, EarlyData, Session, TlsError, TlsStream, Trust,
    Version,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// HTTP/1.1 over TCP.
    Http1,
    /// HTTP/2 over TCP.
    Http2,
    /// HTTP/3 over QUIC.
    Http3,
}

impl Transport {
    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "tcp",
            Self::Http2 => "tcp h2",
            Self::Http3 => "h3",
        }
    }
}

/// A session to resume.
#[derive(Clone)]
pub(crate) enum Ticket {
    /// Over TCP.
    Tls(Session),
    /// Over QUIC.
    Quic(Resumption),
}

impl Ticket {
    /// The same ticket, stating an age that is `seconds` greater than the real one.
    pub(crate) fn shifted(&self, seconds: i64) -> Self {
        let amount = seconds.unsigned_abs() as u32;
        let shifted = |session: &Session| match seconds {
            0 => session.clone(),
            // The library subtracts a second from the age if it can.
            1.. => session.issued_earlier(amount + 1).unwrap(),
            _ => session.issued_later(amount).unwrap(),
        };
        match self {
            Self::Tls(session) => Self::Tls(shifted(session)),
            Self::Quic(resumption) => {
                let session = shifted(&resumption.session);
                Self::Quic(Resumption { session, ..resumption.clone() })
            }
        }
    }
}

/// The client's view of one connection.
#[derive(Debug)]
pub(crate) struct ClientResult {
    /// The response's status, or why there was none.
    pub(crate) status: Result<u16, String>,
    /// The decision about the early data.
    pub(crate) early: EarlyData,
}

/// Makes connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    tcp: [Connector; 2],
    quic: Arc<ClientCrypto>,
}

impl Client {
    /// Creates a client that trusts this certificate.
    pub(crate) fn new(certificate: &Path) -> Self {
        let config = |alpn: &[&str]| ConnectorConfig {
            min_version: Version::Tls13,
            alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
            ..ConnectorConfig::new(Trust::File(certificate.to_owned()))
        };
        let tcp = [config(&["http/1.1"]), config(&["h2", "http/1.1"])];
        let tcp = tcp.map(|config| Connector::new(config).unwrap());
        Self { tcp, quic: ClientCrypto::new(config(&["h3"])).unwrap() }
    }

    /// Makes a connection without early data and returns a ticket that it got.
    pub(crate) fn ticket(
        &self,
        transport: Transport,
        server: SocketAddr,
    ) -> Result<Ticket, String> {
        let (result, ticket) = self.get(transport, server, None, "/ticket");
        result.status?;
        ticket.ok_or_else(|| "the server issues no ticket".to_owned())
    }

    /// Sends a GET with early data on a new connection, with a ticket for this transport.
    pub(crate) fn request(
        &self,
        transport: Transport,
        server: SocketAddr,
        ticket: &Ticket,
        target: &str,
    ) -> ClientResult {
        self.get(transport, server, Some(ticket.clone()), target).0
    }

    /// Like [`Self::request`], for a client that implements RFC 8470: after a 425 it sends the
    /// request once more, on another connection without early data.
    pub(crate) fn request_retrying(
        &self,
        transport: Transport,
        recorder: SocketAddr,
        server: SocketAddr,
        ticket: &Ticket,
        target: &str,
    ) -> ClientResult {
        let first = self.request(transport, recorder, ticket, target);
        match first.status {
            Ok(425) => {
                let (again, _) = self.get(transport, server, None, target);
                ClientResult { early: first.early, ..again }
            }
            _ => first,
        }
    }

    /// Acts like Chromium over TCP: if the early data is refused, closes the connection at once and
    /// sends the request on another one, without early data.
    pub(crate) fn request_reconnecting(
        &self,
        recorder: SocketAddr,
        server: SocketAddr,
        ticket: &Ticket,
        target: &str,
    ) -> ClientResult {
        let Ticket::Tls(session) = ticket else { panic!("a QUIC ticket with TCP") };
        match send_until_refused(&self.tcp[0], recorder, session, target) {
            Ok(()) => {
                let (result, _) = self.get(Transport::Http1, server, None, target);
                ClientResult { early: EarlyData::Refused, ..result }
            }
            Err(reason) => ClientResult { status: Err(reason), early: EarlyData::Pending },
        }
    }

    /// Uses a runtime of one thread: data written before the first wait is sent with the
    /// ClientHello.
    fn get(
        &self,
        transport: Transport,
        server: SocketAddr,
        ticket: Option<Ticket>,
        target: &str,
    ) -> (ClientResult, Option<Ticket>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut early = EarlyData::NotOffered;
        let exchange = async {
            match (transport, ticket) {
                (Transport::Http3, ticket) => {
                    let session = ticket.map(|ticket| match ticket {
                        Ticket::Quic(session) => session,
                        Ticket::Tls(_) => panic!("a TCP ticket with QUIC"),
                    });
                    self.over_quic(server, session, target, &mut early).await
                }
                (_, ticket) => {
                    let session = ticket.map(|ticket| match ticket {
                        Ticket::Tls(session) => session,
                        Ticket::Quic(_) => panic!("a QUIC ticket with TCP"),
                    });
                    self.over_tcp(transport, server, session, target, &mut early).await
                }
            }
        };
        let result = runtime.block_on(async { timeout(RESPONSE_TIMEOUT, exchange).await });
        let result = result.unwrap_or_else(|_| Err(format!("no response in {RESPONSE_TIMEOUT:?}")));
        let (status, ticket) = match result {
            Ok((status, ticket)) => (Ok(status), ticket),
            Err(reason) => (Err(reason), None),
        };
        (ClientResult { status, early }, ticket)
    }

    async fn over_tcp(
        &self,
        transport: Transport,
        server: SocketAddr,
        session: Option<Session>,
        target: &str,
        early: &mut EarlyData,
    ) -> Result<(u16, Option<Ticket>), String> {
        let connector = &self.tcp[usize::from(transport == Transport::Http2)];
        let tcp = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        let _ = tcp.set_nodelay(true);
        let offer =
            ConnectOptions { host: "localhost".to_owned(), early_data: session.is_some(), session };
        let connected = TlsStream::connect(connector, tcp, &offer).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        let is_http2 = transport == Transport::Http2;
        let mut result = http::exchange(&mut stream, is_http2, target).await;
        if let Err(error) = &result
            && matches!(TlsError::in_io(error), Some(TlsError::AlpnChanged { .. }))
        {
            // The handshake is complete; only the request has to be written again.
            result = http::exchange(&mut stream, false, target).await;
        }
        *early = stream.facts().early_data;
        let status = result.map_err(|error| error.to_string())?;
        Ok((status, stream.take_sessions().pop().map(Ticket::Tls)))
    }

    async fn over_quic(
        &self,
        server: SocketAddr,
        resumption: Option<Resumption>,
        target: &str,
        early: &mut EarlyData,
    ) -> Result<(u16, Option<Ticket>), String> {
        let early_data = resumption.is_some();
        let remembered = Remembered { resumption, token: None, early_data };
        let connected = connect_quic(&self.quic, "localhost", remembered, server).await;
        let connected = connected.map_err(|error| error.to_string())?;
        let url = format!("https://localhost:{}{target}", server.port());
        let request = Request::get(Target::parse(&url).unwrap());
        let response = http3_get(connected, &request, 1 << 16).await;
        let response = response.map_err(|error| error.to_string())?;
        *early = response.facts.as_ref().map_or(EarlyData::NotOffered, |facts| facts.early_data);
        let status = response.head.status.as_u16();
        let (mut resumptions, _) = response.close(TICKET_TIMEOUT).await;
        Ok((status, resumptions.pop().map(Ticket::Quic)))
    }
}

/// Sends a request as early data. Returns once it is refused, and sends nothing more.
fn send_until_refused(
    connector: &Connector,
    server: SocketAddr,
    session: &Session,
    target: &str,
) -> Result<(), String> {
    let session = Some(session.clone());
    let offer = ConnectOptions { host: "localhost".to_owned(), early_data: true, session };
    let mut machine = connector.connection(&offer).map_err(|error| error.to_string())?;
    let mut tcp = std::net::TcpStream::connect(server).map_err(|error| error.to_string())?;
    let _ = tcp.set_read_timeout(Some(RESPONSE_TIMEOUT));
    let request = http::http1_request(target);
    machine.handshake().map_err(|error| error.to_string())?;
    machine.write(request.as_bytes()).map_err(|error| error.to_string())?;
    tcp.write_all(machine.outgoing()).map_err(|error| error.to_string())?;
    machine.sent(machine.outgoing().len());
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = tcp.read(&mut bytes).map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the server closed without a response".to_owned());
        }
        machine.feed(&bytes[..count]);
        machine.handshake().map_err(|error| error.to_string())?;
        match machine.facts().early_data {
            EarlyData::Refused => return Ok(()),
            EarlyData::Pending => {}
            other => return Err(format!("early data is not refused: {other:?}")),
        }
    }
}

/// A request without a response after this time is lost. Longer than any wait for the store.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(40);

/// How long to wait for tickets after the response.
const TICKET_TIMEOUT: Duration = Duration::from_millis(250);
