//! The operators' side as a task of its own.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use firstflight_config::{AdminAddress, AdminSettings};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::AdminError;
use crate::guard::Guard;
use crate::listener::{Listener, Stream};
use crate::patience::WriteTimeoutStream;
use crate::permits::{Permit, Permits};
use crate::service::{HEADER_TIMEOUT, Service};
use crate::source::Source;
use crate::watch::SourceWatcher;

/// The operators' side, listening.
pub struct Admin {
    listener: Arc<Listener>,
    handle: AdminHandle,
}

/// A handle on the operators' side while it is served.
#[derive(Clone)]
pub struct AdminHandle {
    service: Arc<Service>,
    /// Gone with the one who serves.
    listener: Weak<Listener>,
    /// Told when another process accepts instead.
    left: Arc<Notify>,
    address: AdminAddress,
    socket_mode: u32,
}

/// Settings that were found good, and do not count yet.
pub struct Prepared {
    service: Arc<Service>,
    guard: Guard,
}

/// Whether the settings are of use; reads the token file, and listens nowhere.
///
/// # Errors
/// [`AdminError`], one sentence with the fix.
pub fn check(settings: &AdminSettings) -> Result<(), AdminError> {
    Guard::new(settings).map(drop)
}

impl Admin {
    /// Reads the token and listens.
    ///
    /// # Errors
    /// [`AdminError`], one sentence with the fix.
    pub async fn bind(settings: AdminSettings, source: impl Source) -> Result<Self, AdminError> {
        let guard = Guard::new(&settings)?;
        let listener = Listener::open(&settings).await?;
        Ok(Self::new(settings, guard, listener, source))
    }

    /// The same on the [socket](AdminHandle::socket) of the process before this one, inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`AdminError`], one sentence with the fix.
    pub fn adopt(
        settings: AdminSettings,
        socket: OwnedFd,
        source: impl Source,
    ) -> Result<Self, AdminError> {
        let guard = Guard::new(&settings)?;
        let listener = Listener::adopt(&settings, socket)?;
        Ok(Self::new(settings, guard, listener, source))
    }

    fn new(settings: AdminSettings, guard: Guard, listener: Listener, source: impl Source) -> Self {
        let watch = Arc::new(SourceWatcher::new(Arc::new(source)));
        let AdminSettings { address, socket_mode, .. } = settings;
        let listener = Arc::new(listener);
        let handle = AdminHandle {
            service: Arc::new(Service::new(guard, watch)),
            listener: Arc::downgrade(&listener),
            left: Arc::new(Notify::new()),
            address,
            socket_mode,
        };
        Self { listener, handle }
    }

    /// Where it listens: an address, or `unix:` and a path.
    pub fn name(&self) -> String {
        self.listener.name()
    }

    /// A handle that stays good while it is served.
    pub fn handle(&self) -> AdminHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown` is ready.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        info!("the console is on {}", self.name());
        let mut tasks = JoinSet::new();
        let Self { listener, handle: AdminHandle { service, left, .. } } = self;
        let watch = service.watch.clone();
        tasks.spawn(async move { watch.run().await });
        let connections = GracefulShutdown::new();
        let permits = Permits::new(MAX_CONNECTIONS, GRACE);
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
                () = left.notified() => {
                    shutdown.await;
                    break;
                }
                () = &mut shutdown => break,
            }
            while tasks.try_join_next().is_some() {}
        }
        // Those who follow events never end by themselves.
        let _ = timeout(LAST_WORDS, connections.shutdown()).await;
        tasks.shutdown().await;
    }
}

impl AdminHandle {
    /// The listening socket, for a process that is to take over ([`Admin::adopt`]).
    ///
    /// # Errors
    /// The system's.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        match self.listener.upgrade() {
            Some(listener) => listener.share(),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Leaves the socket to the process that has taken over: no more connections are accepted here.
    pub fn leave(&self) {
        if let Some(listener) = self.listener.upgrade() {
            listener.leave();
        }
        self.left.notify_one();
    }

    /// Reads settings that may have changed: names, and the token's file. They count once they are
    /// [taken up](Prepared::take_up). Cookies of the token before are of no use then.
    ///
    /// # Errors
    /// [`AdminError`]: the settings are of no use. The address cannot be another, which needs a
    /// restart.
    pub fn prepare(&self, settings: &AdminSettings) -> Result<Prepared, AdminError> {
        match (&settings.address, settings.socket_mode) == (&self.address, self.socket_mode) {
            true => Ok(Prepared { service: self.service.clone(), guard: Guard::new(settings)? }),
            false => Err(AdminError::Moved),
        }
    }
}

impl Prepared {
    /// From now on who may look is decided by these settings.
    pub fn take_up(self) {
        self.service.guard.store(Arc::new(self.guard));
    }
}

/// One connection, to its end.
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
        async move { Ok::<_, std::convert::Infallible>(service.response(request, &permit).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, HEADER_TIMEOUT)), response);
    let connection = connections.watch(connection);
    async move {
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    debug!("an admin connection: {error}");
                }
            }
            () = permit.dropped() => debug!("an admin connection makes room for another"),
        }
    }
}

/// Connections at a time; for further ones old ones are closed.
const MAX_CONNECTIONS: usize = 64;

/// For a new connection to send its request and read the response. At this rate even a full queue
/// of the kernel's (1,024) is worked off within a second.
const GRACE: Duration = Duration::from_millis(50);

/// Bytes of a request's head.
const MAX_HEAD: usize = 16 * 1024;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// For responses that are on their way when the process ends.
const LAST_WORDS: Duration = Duration::from_millis(200);
