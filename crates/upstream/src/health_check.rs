//! Active health checks, and the closing of idle connections.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::TrySendError;
use tokio::time::{sleep, timeout};

use crate::sender;
use crate::shared::Shared;
use crate::upload::{Progress, Upload};
use crate::{HealthCheck, PoolConfig, Protocol, ServerAddress};

/// Starts the background tasks of a pool, which end with the pool. The health checks already end
/// when it is retired: requests in flight, such as tunnels, do not need them.
pub(crate) fn start(shared: &Arc<Shared>) {
    tokio::spawn(sweep(Arc::downgrade(shared)));
    if let Some(check) = &shared.config.health_check {
        for index in 0..shared.servers.len() {
            tokio::spawn(check_regularly(Arc::downgrade(shared), index, check.clone()));
        }
    }
}

async fn sweep(shared: Weak<Shared>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(shared) = shared.upgrade() else { return };
        let PoolConfig { idle_timeout, idle_connections, .. } = shared.config;
        for server in &shared.servers {
            server.cache.sweep(idle_timeout, idle_connections, Instant::now());
        }
    }
}

async fn check_regularly(pool: Weak<Shared>, index: usize, check: HealthCheck) {
    loop {
        let Some(shared) = pool.upgrade().filter(|shared| !shared.is_retired()) else { return };
        let result = timeout(check.timeout, probe(&shared, index, &check)).await;
        let result =
            result.unwrap_or_else(|_| Err(format!("no response within {:?}", check.timeout)));
        shared.checked(index, result);
        drop(shared);
        sleep(check.interval).await;
    }
}

/// Checks over a new connection, because a server must also accept connections to be healthy.
async fn probe(shared: &Shared, index: usize, check: &HealthCheck) -> Result<(), String> {
    let server = &shared.servers[index];
    let host = check.host.clone().unwrap_or_else(|| server.address.authority());
    let io = server.connect(shared.config.proxy_protocol, None).await;
    let io = io.map_err(|error| error.to_string())?;
    let request = Request::get(match shared.config.protocol {
        Protocol::Http1 => check.path.to_string(),
        Protocol::Http2 => http2_target(&server.address, &host, &check.path),
    });
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    let mut request =
        request.body(Upload::new(body, Progress::new())).map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    headers.insert(header::USER_AGENT, HeaderValue::from_static("firstflight-health"));
    let response = match shared.config.protocol {
        Protocol::Http1 => {
            let host = HeaderValue::from_str(&host).map_err(|error| error.to_string())?;
            headers.insert(header::HOST, host);
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            let mut connection = sender::http1(io).await.map_err(reason)?;
            connection.send(request).await.map_err(TrySendError::into_error)
        }
        Protocol::Http2 => sender::http2(io).await.map_err(reason)?.0.send_request(request).await,
    };
    match response.map_err(reason)?.status() {
        status if status.is_success() || status.is_redirection() => Ok(()),
        status => Err(format!("it responded {status}")),
    }
}

/// RFC 9113 section 8.3.1: the scheme is that of the connection.
fn http2_target(address: &ServerAddress, host: &str, path: &PathAndQuery) -> String {
    let scheme = if address.is_tls() { "https" } else { "http" };
    format!("{scheme}://{host}{path}")
}

fn reason(error: hyper::Error) -> String {
    error.to_string()
}

/// Interval between sweeps of idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9113_8_3_1_the_scheme_of_a_check_is_that_of_its_connection() {
        let path = PathAndQuery::from_static("/health?full");
        for (address, target) in [
            ("https://10.0.0.1", "https://app.test/health?full"),
            ("http://10.0.0.1", "http://app.test/health?full"),
            ("unix:/run/app", "http://app.test/health?full"),
        ] {
            assert_eq!(http2_target(&address.parse().unwrap(), "app.test", &path), target);
        }
    }
}
