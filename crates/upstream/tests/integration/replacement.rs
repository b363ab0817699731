//! A pool that replaces another one, as at a reload.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_upstream::{HealthCheck, PoolConfig, SendOptions};
use http_body_util::BodyExt;
use tokio::time::{sleep, timeout};

use crate::peer::{Peer, ok};
use crate::pool::{TEST_TIMEOUT, pool, request, send, settled};

#[tokio::test]
async fn the_counters_of_a_replaced_pool_continue() {
    let (peer, dead) = (Peer::http1(|_| ok("")).await, Peer::dead().await);
    let before = pool(&[&dead, &peer], |_| ());
    for _ in 0..3 {
        send(&before, "GET", "").await.unwrap();
        settled(&before).await;
    }
    let counted = before.status();
    assert!(counted.retries > 0 && counted.servers[0].totals.connect_failed > 0, "{counted:?}");
    // In another order, with a new server, and with other settings.
    let new = Peer::http1(|_| ok("")).await;
    let servers = [&peer, &new, &dead].map(|peer| peer.address.clone());
    let config = PoolConfig { requests: 7, ..PoolConfig::new(servers.to_vec()) };
    let after = before.successor(config).unwrap();
    after.start();
    let status = after.status();
    assert_eq!(status.retries, counted.retries);
    assert_eq!(status.servers[0].totals, counted.servers[1].totals);
    assert_eq!(status.servers[0].connections, counted.servers[1].connections);
    assert_eq!(status.servers[1].totals.requests, 0);
    assert_eq!(status.servers[2].totals, counted.servers[0].totals);
}

#[tokio::test]
async fn the_health_checks_of_a_replaced_pool_end_although_a_response_continues() {
    let checks = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = checks.clone();
    let peer = Peer::http1(move |head| {
        match head[0].as_str() {
            "GET /old HTTP/1.1" => counted[0].fetch_add(1, Ordering::Relaxed),
            "GET /new HTTP/1.1" => counted[1].fetch_add(1, Ordering::Relaxed),
            // A response without an end, as a tunnel is.
            _ => return b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec(),
        };
        ok("")
    })
    .await;
    let check = |path: &str| HealthCheck {
        interval: Duration::from_millis(10),
        ..HealthCheck::new(path.parse().unwrap())
    };
    let reach = async |index: usize, count: usize| {
        let reached = async {
            while checks[index].load(Ordering::Relaxed) < count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TEST_TIMEOUT, reached).await.unwrap();
    };
    let before = pool(&[&peer], |config| config.health_check = Some(check("/old")));
    reach(0, 3).await;
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    let mut response = before.send(request("GET", ""), &options).await.unwrap();
    response.frame().await.unwrap().unwrap();
    let config = PoolConfig { health_check: Some(check("/new")), ..before.config().clone() };
    let after = before.successor(config).unwrap();
    reach(0, checks[0].load(Ordering::Relaxed) + 3).await;
    after.start();
    reach(1, 3).await;
    let last = checks[0].load(Ordering::Relaxed);
    reach(1, 20).await;
    // One check may have been in flight.
    assert!(checks[0].load(Ordering::Relaxed) <= last + 1, "{checks:?}");
    assert_eq!(before.status().servers[0].in_flight, 1);
}
