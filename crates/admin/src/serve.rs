//! The admin server: starts, reloads, and serves connections.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{AdminAddress, AdminSettings, ConfigError};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::connections::{Permit, Permits, WriteTimeoutStream};
use crate::guard::Guard;
use crate::listener::{Listener, Stream};
use crate::response::HEADER_TIMEOUT;
use crate::service::Service;
use crate::source::Source;
use crate::token::{MAX_TOKEN_BYTES, MIN_TOKEN_BYTES};
use crate::watcher::SourceWatcher;

/// The admin server, bound to its address.
pub struct Admin {
    listener: Listener,
    handle: AdminHandle,
}

/// A handle on a running [`Admin`], for reloads.
#[derive(Clone)]
pub struct AdminHandle {
    service: Arc<Service>,
    address: AdminAddress,
    socket_mode: u32,
}

/// Valid settings that are not in use yet.
pub struct Prepared {
    service: Arc<Service>,
    guard: Guard,
}

/// Checks settings. Reads the token file, but does not listen.
///
/// # Errors
/// [`AdminError`] if the settings or the token file are invalid.
pub fn check(settings: &AdminSettings) -> Result<(), AdminError> {
    Guard::new(settings).map(drop)
}

/// Why the admin listener cannot be started or reloaded. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Invalid settings.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// The address cannot be bound.
    #[error(
        "cannot listen on the admin address {address}: {reason}; give a free address in [admin]"
    )]
    Listen {
        /// The address, or the path of the socket.
        address: String,
        /// The cause.
        reason: io::Error,
    },
    /// Another process listens on the unix socket.
    #[error(
        "another process serves the admin socket {path}; stop it, or give another address in \
         [admin]"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A reload cannot change the address.
    #[error("the admin address cannot change while the server runs; restart it")]
    Moved,
    /// The token file cannot be read.
    #[error("cannot read the admin token {path}: {reason}; give a file that this process may read")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: io::Error,
    },
    /// Other users may read the token file.
    #[error("other users may read the admin token {path}; run `chmod 600 {path}`")]
    TokenForAll {
        /// The file.
        path: PathBuf,
    },
    /// The token is too short or too long, or has characters that a header field cannot carry.
    #[error(
        "the admin token in {path} is not {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} printable characters on one \
         line; make one with `openssl rand -hex 32`"
    )]
    Token {
        /// The file.
        path: PathBuf,
    },
}

impl Admin {
    /// Reads the token file and binds the address.
    ///
    /// # Errors
    /// [`AdminError`] if the settings or the token file are invalid, or the address cannot be bound.
    pub async fn bind(settings: AdminSettings, source: impl Source) -> Result<Self, AdminError> {
        let guard = Guard::new(&settings)?;
        let listener = Listener::open(&settings).await?;
        Ok(Self::new(settings, guard, listener, source))
    }

    fn new(settings: AdminSettings, guard: Guard, listener: Listener, source: impl Source) -> Self {
        let watcher = Arc::new(SourceWatcher::new(Arc::new(source)));
        let AdminSettings { address, socket_mode, .. } = settings;
        let handle =
            AdminHandle { service: Arc::new(Service::new(guard, watcher)), address, socket_mode };
        Self { listener, handle }
    }

    /// The address with its actual port, or `unix:` and a path.
    pub fn name(&self) -> String {
        self.listener.name()
    }

    /// Returns a handle for reloads.
    pub fn handle(&self) -> AdminHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown` is ready.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        info!("the console is on {}", self.name());
        let mut tasks = JoinSet::new();
        let Self { listener, handle: AdminHandle { service, .. } } = self;
        let watcher = service.watcher.clone();
        tasks.spawn(async move { watcher.run().await });
        let connections = GracefulShutdown::new();
        let permits = Permits::new(MAX_CONNECTIONS, GRACE_PERIOD);
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(stream) => {
                        let permit = permits.take().await;
                        tasks.spawn(serve(service.clone(), stream, &connections, permit));
                    }
                    Err(error) => {
                        warn!("cannot accept an admin connection: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = &mut shutdown => break,
            }
            while tasks.try_join_next().is_some() {}
        }
        // Followers of events never end by themselves.
        let _ = timeout(SHUTDOWN_TIMEOUT, connections.shutdown()).await;
        tasks.shutdown().await;
    }
}

impl AdminHandle {
    /// Prepares new settings: names and token file. They take effect with [`Prepared::apply`], which
    /// invalidates the cookies of another token.
    ///
    /// # Errors
    /// [`AdminError`] if the settings are invalid, or if the address differs.
    pub fn prepare(&self, settings: &AdminSettings) -> Result<Prepared, AdminError> {
        match (&settings.address, settings.socket_mode) == (&self.address, self.socket_mode) {
            true => Ok(Prepared { service: self.service.clone(), guard: Guard::new(settings)? }),
            false => Err(AdminError::Moved),
        }
    }
}

impl Prepared {
    /// Uses these settings from now on.
    pub fn apply(self) {
        self.service.guard.store(Arc::new(self.guard));
    }
}

/// Serves one connection to its end.
fn serve(
    service: Arc<Service>,
    stream: Box<dyn Stream>,
    connections: &GracefulShutdown,
    permit: Permit,
) -> impl Future<Output = ()> + Send + use<> {
    let permit = Arc::new(permit);
    let shared = permit.clone();
    let response = service_fn(move |request| {
        let (service, permit) = (service.clone(), shared.clone());
        async move { Ok::<_, std::convert::Infallible>(service.respond(request, &permit).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, HEADER_TIMEOUT)), response);
    let connection = connections.watch(connection);
    async move {
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    debug!("admin connection failed: {error}");
                }
            }
            () = permit.dropped() => debug!("admin connection closed for a new one"),
        }
    }
}

/// Limits the open connections. Further ones replace old ones.
const MAX_CONNECTIONS: usize = 64;

/// Protects a new connection until it can have its response. With this time, even a full accept queue
/// (1,024) is processed within a second.
const GRACE_PERIOD: Duration = Duration::from_millis(50);

const MAX_HEAD_BYTES: usize = 16 * 1024;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits the wait for running responses at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);
