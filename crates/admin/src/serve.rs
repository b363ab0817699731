//! The operators' side as a task of its own.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::AdminSettings;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::AdminError;
use crate::guard::Guard;
use crate::listener::{Listener, Stream};
use crate::patience::Patient;
use crate::service::{PATIENCE, Service};
use crate::source::Source;
use crate::watch::Watch;

/// The operators' side, listening.
pub struct Admin {
    listener: Listener,
    service: Arc<Service>,
    settings: AdminSettings,
}

/// A handle on the operators' side while it is served.
#[derive(Clone)]
pub struct AdminHandle {
    service: Arc<Service>,
    settings: AdminSettings,
}

/// Whether the settings are of use; reads the token file, and listens nowhere.
///
/// # Errors
/// [`AdminError`], one sentence with the mend.
pub fn check(settings: &AdminSettings) -> Result<(), AdminError> {
    Guard::new(settings).map(drop)
}

impl Admin {
    /// Reads the token and listens.
    ///
    /// # Errors
    /// [`AdminError`], one sentence with the mend.
    pub async fn bind(settings: AdminSettings, source: impl Source) -> Result<Self, AdminError> {
        let guard = Guard::new(&settings)?;
        let listener = Listener::open(&settings).await?;
        let watch = Arc::new(Watch::new(Arc::new(source)));
        let service = Arc::new(Service::new(guard, watch));
        Ok(Self { listener, service, settings })
    }

    /// Where it listens: an address, or `unix:` and a path.
    pub fn name(&self) -> String {
        self.listener.name()
    }

    /// A handle that stays good while it is served.
    pub fn handle(&self) -> AdminHandle {
        AdminHandle { service: self.service.clone(), settings: self.settings.clone() }
    }

    /// Serves until `shutdown` is ready.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        info!("the console is on {}", self.name());
        let mut tasks = JoinSet::new();
        let watch = self.service.watch.clone();
        tasks.spawn(async move { watch.run().await });
        let connections = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(PLACES));
        tokio::pin!(shutdown);
        loop {
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = &mut shutdown => break,
            };
            let Ok(place) = place else { break };
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok(stream) => {
                        tasks.spawn(serve(self.service.clone(), stream, &connections, place));
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
        // Those who follow events never end by themselves.
        let _ = timeout(LAST_WORDS, connections.shutdown()).await;
        tasks.shutdown().await;
    }
}

impl AdminHandle {
    /// Takes up settings that have changed: names, and the token, which is read again. Cookies of
    /// the token before are of no use then.
    ///
    /// # Errors
    /// [`AdminError`]: the settings are of no use, and the old ones stay. So do they where the
    /// address is another, which needs a restart.
    pub fn reload(&self, settings: &AdminSettings) -> Result<(), AdminError> {
        if settings.address != self.settings.address {
            return Err(AdminError::Moved);
        }
        self.service.guard.store(Arc::new(Guard::new(settings)?));
        Ok(())
    }
}

/// One connection, to its end.
fn serve(
    service: Arc<Service>,
    stream: Box<dyn Stream>,
    connections: &GracefulShutdown,
    place: OwnedSemaphorePermit,
) -> impl Future<Output = ()> + Send + use<> {
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(Patient::new(stream, PATIENCE)), answer);
    let connection = connections.watch(connection);
    async move {
        if let Err(error) = connection.await {
            debug!("an admin connection: {error}");
        }
        drop(place);
    }
}

/// Connections at a time; further ones wait.
const PLACES: usize = 64;

/// Bytes of a request's head.
const MAX_HEAD: usize = 16 * 1024;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// For answers that are on their way when the process ends.
const LAST_WORDS: Duration = Duration::from_millis(200);
