//! The pools of a configuration.

use std::collections::BTreeMap;

use firstflight_config::{Content, ServerConfig};
use firstflight_telemetry::metrics::{Metrics, UpstreamReading, UpstreamServerReading};
use firstflight_upstream::{Attempt, Observer, Pool, PoolStatus, ServerStatus, Standing};

use crate::ServerError;
use crate::observe::trace::UpstreamNotes;

/// Pools by name.
pub(crate) type Pools = BTreeMap<String, Pool>;

/// The pools that a configuration names. One of `before` whose settings stay is taken over: with its
/// connections, and with what is known of its servers.
///
/// # Errors
/// [`ServerError::Upstream`].
pub(crate) fn pools(config: &ServerConfig, before: &Pools) -> Result<Pools, ServerError> {
    let Content::Sites(sites) = &config.content else { return Ok(Pools::new()) };
    let mut pools = Pools::new();
    for (name, settings) in &sites.upstreams {
        let mut settings = settings.clone();
        settings.answer_timeout.get_or_insert(config.limits.upstream_timeout);
        let pool = match before.get(name) {
            Some(pool) if *pool.config() == settings => pool.clone(),
            _ => Pool::new(name, settings)
                .map_err(|reason| ServerError::Upstream { name: name.clone(), reason })?,
        };
        pools.insert(name.clone(), pool);
    }
    Ok(pools)
}

/// Notes each try for its request, and counts it.
pub(crate) struct Watch<'a> {
    pub(crate) notes: &'a UpstreamNotes,
    pub(crate) metrics: &'a Metrics,
}

impl Observer for Watch<'_> {
    fn attempt(&self, attempt: &Attempt<'_>) {
        if attempt.result.is_ok() {
            self.metrics.upstreams.answered(attempt.pool, attempt.server, attempt.took);
        }
        self.notes.attempt(attempt);
    }
}

/// What metrics say of a pool.
pub(crate) fn reading(pool: PoolStatus) -> UpstreamReading {
    UpstreamReading {
        name: pool.name,
        servers: pool.servers.into_iter().map(server_reading).collect(),
        retries: pool.retries,
        retries_denied: pool.retries_denied,
        waiting: pool.waiting as u64,
        turned_away: pool.turned_away,
    }
}

fn server_reading(server: ServerStatus) -> UpstreamServerReading {
    let totals = server.totals;
    UpstreamServerReading {
        address: server.address,
        healthy: matches!(server.standing, Standing::Up | Standing::Trial),
        active: server.in_flight as u64,
        connections: server.connections,
        requests: totals.requests,
        answers: totals.answers,
        failures: [
            totals.connect_failed,
            totals.stale,
            totals.broken,
            totals.refused,
            totals.timeouts,
            totals.bodies_broken,
            totals.bodies_stalled,
        ],
    }
}
