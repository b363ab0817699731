//! Sockets to a store: TCP, TLS over TCP, and unix sockets.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, TlsStream, Trust, connect_tcp};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use crate::{Address, StoreError, StoreTls};

/// TLS to the store, ready to use.
#[derive(Clone)]
pub(crate) struct TlsClient {
    connector: Connector,
    server_name: Option<String>,
}

impl TlsClient {
    pub(crate) fn new(settings: &StoreTls) -> Result<Self, StoreError> {
        let trust = settings.ca_file.clone().map_or(Trust::System, Trust::File);
        let connector = Connector::new(ConnectorConfig::new(trust))
            .map_err(|error| StoreError::Setting(format!("TLS to the store: {error}")))?;
        Ok(Self { connector, server_name: settings.server_name.clone() })
    }
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub(super) async fn connect(
    address: &Address,
    tls: Option<&TlsClient>,
) -> Result<Box<dyn Stream>, StoreError> {
    let absent = |error: &dyn std::fmt::Display| StoreError::Absent(format!("{address}: {error}"));
    let (host, port) = match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| absent(&error))?;
            return Ok(Box::new(stream));
        }
        Address::Tcp(host, port) => (host.as_str(), *port),
    };
    let stream = connect_tcp(host, port).await.map_err(|error| absent(&error))?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let host = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
    let offer = ConnectOptions { host, ..ConnectOptions::default() };
    let stream = TlsStream::connect(&tls.connector, stream, &offer).await;
    Ok(Box::new(stream.map_err(|error| absent(&error))?))
}

/// A stream that limits how many bytes are read, within one buffer of the limit.
pub(super) struct LimitedStream {
    stream: Box<dyn Stream>,
    remaining: usize,
}

impl LimitedStream {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, remaining: 0 }
    }

    /// Allows `bytes` more to be read.
    pub(super) fn set_limit(&mut self, bytes: usize) {
        self.remaining = bytes;
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.remaining == 0 {
            return Poll::Ready(Err(io::Error::other("the reply is too long")));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.remaining = self.remaining.saturating_sub(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
