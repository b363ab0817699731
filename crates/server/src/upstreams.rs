//! The pools of a configuration.

use std::collections::BTreeMap;

use firstflight_config::{Content, ServerConfig};
use firstflight_upstream::Pool;

use crate::ServerError;

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
