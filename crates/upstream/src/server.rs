//! One server: its connections.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::proxy_protocol::{Header, Version};
use firstflight_tls::Connector;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::connect::{Io, connect};
use crate::kept::{IdleConnections, Owner};
use crate::sender::{self, Sender};
use crate::{PoolConfig, Protocol, ServerAddress};

pub(crate) struct Server {
    pub(crate) address: ServerAddress,
    /// The address as people read it.
    pub(crate) name: String,
    pub(crate) kept: IdleConnections,
    pub(crate) connections: AtomicU64,
    connector: Option<Connector>,
    /// Whoever opens a connection that many can share holds it, and the others wait.
    opening: Mutex<()>,
}

/// A connection for a request.
pub(crate) struct Line {
    pub(crate) sender: Sender,
    /// How long connecting took; `None`: it was kept.
    pub(crate) connected: Option<Duration>,
}

impl Server {
    pub(crate) fn new(address: ServerAddress, connector: Option<Connector>) -> Self {
        Self {
            name: address.to_string(),
            address,
            kept: IdleConnections::default(),
            connections: AtomicU64::new(0),
            connector,
            opening: Mutex::new(()),
        }
    }

    /// A connection with room for a request; a new one if `fresh` demands it.
    pub(crate) async fn line(
        &self,
        config: &PoolConfig,
        owner: Owner,
        fresh: bool,
    ) -> io::Result<Line> {
        if !fresh && let Some(sender) = self.kept_one(config.protocol, owner) {
            return Ok(Line { sender, connected: None });
        }
        let limit = config.connect_timeout;
        let opening = async {
            match config.protocol {
                Protocol::Http1 => self.open_http1(config, owner).await,
                Protocol::Http2 => self.open_http2(config, owner, fresh).await,
            }
        };
        timeout(limit, opening).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"))
        })?
    }

    fn kept_one(&self, protocol: Protocol, owner: Owner) -> Option<Sender> {
        match protocol {
            Protocol::Http1 => self.kept.take(owner).map(|sender| Sender::Http1(sender, owner)),
            Protocol::Http2 => {
                self.kept.share(owner).map(|(sender, stream)| Sender::Http2(sender, stream))
            }
        }
    }

    async fn open_http1(&self, config: &PoolConfig, owner: Owner) -> io::Result<Line> {
        let began = Instant::now();
        let io = self.connect(config.proxy_protocol, owner).await?;
        let sender = sender::http1(io).await.map_err(io::Error::other)?;
        Ok(Line { sender: Sender::Http1(sender, owner), connected: Some(began.elapsed()) })
    }

    async fn open_http2(&self, config: &PoolConfig, owner: Owner, fresh: bool) -> io::Result<Line> {
        let began = Instant::now();
        let _opening = self.opening.lock().await;
        // Somebody else may have opened one meanwhile.
        if !fresh && let Some(sender) = self.kept_one(config.protocol, owner) {
            return Ok(Line { sender, connected: Some(began.elapsed()) });
        }
        let io = self.connect(config.proxy_protocol, owner).await?;
        let (sender, allowed) = sender::http2(io).await.map_err(io::Error::other)?;
        let stream = self.kept.put_shared(sender.clone(), allowed, owner, Instant::now());
        Ok(Line { sender: Sender::Http2(sender, stream), connected: Some(began.elapsed()) })
    }

    /// A socket to it. Without an owner this process speaks for itself.
    pub(crate) async fn connect(&self, version: Option<Version>, owner: Owner) -> io::Result<Io> {
        let header = owner.map_or(Header::Local, Header::Proxied);
        let header = version.map(|version| (version, header));
        let io = connect(&self.address, self.connector.as_ref(), header).await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(io)
    }
}
