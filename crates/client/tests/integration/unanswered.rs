//! First flights with early data that stay unanswered, as behind a middlebox that drops them: a
//! second connection without early data follows, for safe methods only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_client::{EarlyPolicy, Request, Target};
use http::Method;
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{ClientDir, Reply, Server, ServerBehaviour, send};

/// Passes connections on to a server. It can swallow what a client sends on the next connection:
/// TCP acknowledges it, but there is no response.
struct Relay {
    address: SocketAddr,
    swallows_next: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl Relay {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (swallows_next, connections) = (Arc::<AtomicBool>::default(), Arc::default());
        let relay = Self { address, swallows_next, connections };
        let (swallows, counted) = (relay.swallows_next.clone(), relay.connections.clone());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let swallowed = swallows.swap(false, Ordering::Relaxed);
                tokio::spawn(async move {
                    if swallowed {
                        let mut buffer = [0; 4096];
                        while client.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
                        return;
                    }
                    if let Ok(mut server) = TcpStream::connect(server).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        relay
    }

    fn request(&self) -> Request {
        let url = format!("https://localhost:{}/path", self.address.port());
        Request::get(Target::parse(&url).unwrap())
    }

    fn swallow_next(&self) {
        self.swallows_next.store(true, Ordering::Relaxed);
    }

    /// Connections since the last call.
    fn connections(&self) -> usize {
        self.connections.swap(0, Ordering::Relaxed)
    }
}

#[tokio::test]
async fn an_unanswered_flight_is_followed_by_a_connection_without_early_data() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let relay = Relay::start(server.address).await;
    let (first, _) = send(&dir.client(|_| {}), relay.request()).await;
    assert_eq!((first.exit_code(), relay.connections(), server.take_requests().len()), (0, 1, 1));
    relay.swallow_next();
    let (report, body) = send(&dir.client(|_| {}), relay.request()).await;
    assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
    assert_eq!((report.early_data(), report.retries, report.num_connects), ("none", 1, 2));
    assert_eq!(relay.connections(), 2);
    let seen = server.take_requests();
    assert_eq!(seen.iter().map(|request| request.early).collect::<Vec<_>>(), [false]);
    // The second connection brought new tickets.
    let (report, _) = send(&dir.client(|_| {}), relay.request()).await;
    assert_eq!((report.early_data(), report.retries, relay.connections()), ("accepted", 0, 1));
}

#[tokio::test]
async fn rfc9110_9_2_1_an_unsafe_request_is_not_sent_twice() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let relay = Relay::start(server.address).await;
    let (first, _) = send(&dir.client(|_| {}), relay.request()).await;
    assert_eq!((first.exit_code(), relay.connections(), server.take_requests().len()), (0, 1, 1));
    relay.swallow_next();
    let client = dir.client(|config| {
        config.early_data = EarlyPolicy::AnyMethod;
        // Far longer than a first flight may stay unanswered.
        config.max_time = Some(Duration::from_secs(2));
    });
    let request = Request { method: Method::POST, body: "a=b".into(), ..relay.request() };
    let (report, _) = send(&client, request).await;
    assert_eq!((report.exit_code(), report.retries, relay.connections()), (28, 0, 1), "{report:?}");
    assert!(server.take_requests().is_empty());
}

/// Once the server's flight has arrived, a slow response is no reason for a second connection.
/// This server sends its flight before the response because it refuses the early data.
#[tokio::test]
async fn a_slow_response_behind_the_servers_flight_starts_no_second_connection() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let relay = Relay::start(server.address).await;
    let (first, _) = send(&dir.client(|_| {}), relay.request()).await;
    assert_eq!((first.exit_code(), relay.connections()), (0, 1));
    server.change_behaviour(|behaviour| {
        behaviour.decline = true;
        behaviour.response = |_, _| Reply::Hang;
    });
    let client = dir.client(|config| config.max_time = Some(Duration::from_secs(2)));
    let (report, _) = send(&client, relay.request()).await;
    assert_eq!((report.exit_code(), report.retries, relay.connections()), (28, 0, 1), "{report:?}");
}
