//! How a server is: ready or not, since when, by which configuration.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;

/// How a server is, for probes, console and `systemctl status`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Whether it wants new connections. A store that is away changes nothing about that: early
    /// data is refused then, and all else works.
    pub ready: bool,
    /// Why not, if not.
    pub not_ready_because: Option<&'static str>,
    /// Which configuration is in use: 1 at the start, one more with each reload.
    pub generation: u64,
    /// When the process began to serve.
    pub started_at: Timestamp,
    /// When the configuration in use was taken up.
    pub loaded_at: Timestamp,
    /// The last try to load another one, if there was any.
    pub last_reload: Option<LastReload>,
    /// Connections that are open.
    pub connections: u32,
    /// What is listened on.
    pub addresses: Vec<SocketAddr>,
}

/// What became of a reload.
#[derive(Clone, Debug, Serialize)]
pub struct LastReload {
    /// When it was tried.
    pub at: Timestamp,
    /// Why the old configuration stayed; `None`: the new one is in use.
    pub error: Option<String>,
}

/// What has happened to a server so far.
pub(crate) struct History(Mutex<Events>);

#[derive(Clone)]
pub(crate) struct Events {
    pub(crate) started_at: Timestamp,
    pub(crate) loaded_at: Timestamp,
    pub(crate) last_reload: Option<LastReload>,
}

impl History {
    pub(crate) fn begin() -> Self {
        let now = Timestamp::now();
        Self(Mutex::new(Events { started_at: now, loaded_at: now, last_reload: None }))
    }

    /// Notes a reload: `error` says why it was none.
    pub(crate) fn note_reload(&self, error: Option<String>) {
        let at = Timestamp::now();
        let mut events = self.events();
        if error.is_none() {
            events.loaded_at = at;
        }
        events.last_reload = Some(LastReload { at, error });
    }

    pub(crate) fn so_far(&self) -> Events {
        self.events().clone()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
