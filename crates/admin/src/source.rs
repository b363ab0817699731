//! The source of what is shown: a running server, or a scene for tests.

use firstflight_server::{CertificateSource, Keys, ServerHandle, SiteCertificate};
use firstflight_telemetry::metrics::Snapshot;
use firstflight_tickets::KeyStatus;

use crate::status::{
    Certificate, EarlyDataState, Failure, KeyRingState, KeyState, Moment, Reload, Replay,
    ServerState, State,
};

/// A server whose metrics and state are shown.
pub trait Source: Send + Sync + 'static {
    /// Whether the server accepts new connections.
    ///
    /// # Errors
    /// A short reason if it does not.
    fn readiness(&self) -> Result<(), String>;

    /// The current metrics.
    fn metrics(&self) -> Snapshot;

    /// The current state that is not in the metrics.
    fn state(&self) -> State;
}

impl Source for ServerHandle {
    fn readiness(&self) -> Result<(), String> {
        let status = self.status();
        match status.ready {
            true => Ok(()),
            false => Err(status.not_ready_because.unwrap_or("not ready").to_owned()),
        }
    }

    fn metrics(&self) -> Snapshot {
        ServerHandle::metrics(self)
    }

    fn state(&self) -> State {
        let closed = self.early_data_unavailable();
        State {
            server: server(self),
            early_data: EarlyDataState {
                enabled: self.early_data_enabled(),
                closed_because: closed.map(|reason| reason.name().to_owned()),
            },
            keys: keys(self.keys()),
            replays: self.replays().into_iter().map(replay).collect(),
            certificates: self.certificates().into_iter().map(certificate).collect(),
        }
    }
}

fn server(handle: &ServerHandle) -> ServerState {
    let status = handle.status();
    ServerState {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: nix::unistd::gethostname()
            .map_or_else(|_| "unknown host".to_owned(), |name| name.to_string_lossy().into_owned()),
        pid: std::process::id(),
        addresses: status.addresses.iter().map(ToString::to_string).collect(),
        ready: status.ready,
        not_ready_because: status.not_ready_because.map(str::to_owned),
        started_at: status.started_at.into(),
        generation: status.generation,
        loaded_at: status.loaded_at.into(),
        last_reload: status
            .last_reload
            .map(|reload| Reload { at: reload.at.into(), error: reload.error }),
    }
}

fn keys(keys: Keys) -> KeyRingState {
    KeyRingState {
        source: keys.source.to_owned(),
        zone: keys.zone,
        period_seconds: keys.rotation.as_secs(),
        lifetime_seconds: keys.lifetime.as_secs(),
        warnings: keys.warnings,
        ring: keys.ring.into_iter().map(key).collect(),
    }
}

fn key(key: KeyStatus) -> KeyState {
    let moment = |seconds: u64| Moment(i64::try_from(seconds).unwrap_or(i64::MAX));
    KeyState {
        name: key.name,
        state: match key.state {
            firstflight_tickets::KeyState::Dead => "dead",
            firstflight_tickets::KeyState::Previous => "previous",
            firstflight_tickets::KeyState::Current => "current",
            firstflight_tickets::KeyState::Next => "next",
        }
        .to_owned(),
        current_from: moment(key.not_before),
        last_sealed: key.last_sealed.map(moment),
        last_opened: key.last_opened.map(moment),
    }
}

fn replay(replay: firstflight_server::Replay) -> Replay {
    Replay {
        first_at: replay.first_at.into(),
        last_at: replay.last_at.into(),
        copies: replay.copies,
        networks: replay.networks,
        transport: replay.transport.name().to_owned(),
    }
}

fn certificate(site: SiteCertificate) -> Certificate {
    let missing = site.is_missing();
    let expires_at = site.not_after.filter(|_| !missing).map(Moment);
    let source = site.source.origin().name().to_owned();
    let plain = Certificate {
        site: site.site,
        names: site.names,
        source,
        missing,
        expires_at,
        ..Certificate::default()
    };
    let CertificateSource::Acme(state) = site.source else { return plain };
    Certificate {
        next_try_at: state.next_attempt.map(Moment),
        last_success_at: state.last_success.map(Moment),
        last_error: state.last_error.map(|error| Failure {
            at: Moment(error.at),
            reason: error.reason,
            in_a_row: error.consecutive,
        }),
        ..plain
    }
}
