//! QUIC and TCP side by side (`--http3`): which one wins, and that each request
//! is executed once.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use firstflight_client::{Client, ClientConfig, EarlyPolicy, HttpVersions, Report, Request};
use http::{Method, Version};

use crate::support::quic::{QuicServer, QuicServerBehaviour, Relay, url};
use crate::support::{ClientDir, Server, ServerBehaviour, send};

/// A server that listens on one port for TCP and QUIC; QUIC goes through a relay.
struct TcpAndQuicServer {
    dir: ClientDir,
    tcp: Server,
    quic: QuicServer,
    relay: Relay,
}

impl TcpAndQuicServer {
    async fn start() -> Self {
        let quic = QuicServer::start(QuicServerBehaviour::default()).await;
        loop {
            let tcp =
                Server::start(ServerBehaviour { alpn: "h2", ..ServerBehaviour::default() }).await;
            // The UDP port of the same number may be in use.
            if let Some(relay) = Relay::start_on(tcp.address, quic.address).await {
                return Self { dir: ClientDir::new(), tcp, quic, relay };
            }
        }
    }

    fn client(&self, change: impl FnOnce(&mut ClientConfig)) -> Client {
        self.dir.client(|config| {
            config.http = HttpVersions::ThreeFirst;
            change(config);
        })
    }

    async fn get(&self) -> Report {
        let target = url(self.tcp.address.port(), "/path");
        let (report, body) = send(&self.client(|_| {}), Request::get(target)).await;
        assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
        report
    }

    async fn post_any(&self) -> Report {
        let target = url(self.tcp.address.port(), "/path");
        let request = Request { method: Method::POST, body: "a=b".into(), ..Request::get(target) };
        let any = self.client(|config| config.early_data = EarlyPolicy::AnyMethod);
        let (report, body) = send(&any, request).await;
        assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
        report
    }

    /// Numbers of requests over TCP and QUIC since the last call.
    fn take_counts(&self) -> (usize, usize) {
        (self.tcp.take_requests().len(), self.quic.take_requests().len())
    }

    fn block_quic(&self) {
        self.relay.open.store(false, Ordering::Relaxed);
    }
}

fn version(report: &Report) -> Version {
    report.head.as_ref().unwrap().version
}

#[tokio::test]
async fn quic_wins_if_it_responds() {
    let both = TcpAndQuicServer::start().await;
    for early in ["none", "accepted"] {
        let report = both.get().await;
        assert_eq!((version(&report), report.early_data()), (Version::HTTP_3, early));
        assert_eq!((both.take_counts(), report.retries), ((0, 1), 0));
    }
}

#[tokio::test]
async fn tcp_wins_if_quic_is_silent_or_refused() {
    let both = TcpAndQuicServer::start().await;
    both.block_quic();
    let report = both.get().await;
    assert_eq!((version(&report), both.take_counts()), (Version::HTTP_2, (1, 0)));
    assert!(report.timings().connect >= 0.2, "QUIC has a head start: {:?}", report.timings());
    assert_eq!((report.num_connects, report.retries), (1, 0));

    let tcp = Server::start(ServerBehaviour::default()).await;
    let request = Request::get(tcp.url("/path"));
    let (report, body) = send(&both.client(|_| {}), request).await;
    assert_eq!((version(&report), body.as_str()), (Version::HTTP_11, "hello"), "{report:?}");
}

/// If the kernel reports that nothing listens, the client does not wait for 200 ms. The reason for
/// TCP shows this, without a clock.
#[tokio::test]
async fn a_refusal_ends_the_head_start_of_quic() {
    #[derive(Default)]
    struct FallbackReason(Option<String>);
    impl firstflight_client::Listener for FallbackReason {
        fn event(&mut self, event: &firstflight_client::Event<'_>) {
            if let firstflight_client::Event::TryingTcp(why) = event {
                self.0 = Some((*why).to_owned());
            }
        }
        fn body(&mut self, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (dir, tcp) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let client = dir.client(|config| config.http = HttpVersions::ThreeFirst);
    let mut why = FallbackReason::default();
    let report = client.fetch(Request::get(tcp.url("/")), &mut why).await;
    assert_eq!(report.exit_code(), 0, "{report:?}");
    let why = why.0.unwrap();
    assert!(why.contains("refused"), "{why}");
}

/// Each transport has its own sessions, so TCP can send early data after it has won once.
#[tokio::test]
async fn tcp_is_early_after_it_has_won() {
    let both = TcpAndQuicServer::start().await;
    both.block_quic();
    for early in ["none", "accepted"] {
        let report = both.get().await;
        assert_eq!((version(&report), report.early_data()), (Version::HTTP_2, early));
    }
    assert_eq!(both.take_counts(), (2, 0));
}

#[tokio::test]
async fn a_safe_request_that_was_early_over_quic_is_sent_again_if_tcp_wins() {
    let both = TcpAndQuicServer::start().await;
    both.get().await;
    both.take_counts();
    both.block_quic();
    both.relay.datagrams();
    let report = both.get().await;
    assert_eq!((version(&report), both.take_counts()), (Version::HTTP_2, (1, 0)));
    assert_eq!((report.retries, report.num_connects), (1, 1), "{report:?}");
    assert!(!both.relay.datagrams().is_empty());
}

#[tokio::test]
async fn rfc9110_9_2_1_an_unsafe_request_is_sent_by_the_winner_only() {
    let both = TcpAndQuicServer::start().await;
    both.get().await;
    both.take_counts();
    both.relay.datagrams();
    // If QUIC wins, the request was not early; if TCP wins, none of it was sent over QUIC.
    let report = both.post_any().await;
    assert_eq!((version(&report), report.early_data()), (Version::HTTP_3, "none"));
    assert_eq!(report.early_data_reason(), Some("two_transports"));
    assert!(report.facts.as_ref().unwrap().resumed);
    assert_eq!(both.take_counts(), (0, 1));
    both.block_quic();
    let report = both.post_any().await;
    assert_eq!((version(&report), report.retries), (Version::HTTP_2, 0));
    assert_eq!(both.take_counts(), (1, 0));
    let early = |datagram: &Vec<u8>| datagram[0] & 0xb0 == 0x90;
    assert!(!both.relay.datagrams().iter().any(early), "a 0-RTT packet left");
}

#[tokio::test]
async fn http3_only_has_curls_exit_code_if_udp_is_blocked() {
    let both = TcpAndQuicServer::start().await;
    both.block_quic();
    let only = both.dir.quic(|config| {
        config.connect_timeout = Some(std::time::Duration::from_millis(400));
    });
    let target = url(both.tcp.address.port(), "/path");
    let (report, _) = send(&only, Request::get(target)).await;
    assert_eq!((report.exit_code(), both.take_counts()), (28, (0, 0)), "{:?}", report.error);
    // A refusal is reported at once.
    let refused = SocketAddr::from((
        [127, 0, 0, 1],
        Server::start(ServerBehaviour::default()).await.address.port(),
    ));
    let target = url(refused.port(), "/path");
    let (report, _) = send(&both.dir.quic(|_| {}), Request::get(target)).await;
    assert_eq!(report.exit_code(), 7, "{:?}", report.error);
}

#[tokio::test]
async fn quic_is_used_if_tcp_is_refused() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    let client = dir.client(|config| config.http = HttpVersions::ThreeFirst);
    let (report, body) = send(&client, Request::get(server.url("/"))).await;
    assert_eq!((version(&report), body.as_str()), (Version::HTTP_3, "hello"), "{report:?}");
}

#[tokio::test]
async fn if_nothing_listens_the_exit_code_is_that_of_tcp() {
    let dir = ClientDir::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = dir.client(|config| config.http = HttpVersions::ThreeFirst);
    let (report, _) = send(&client, Request::get(url(free, "/"))).await;
    assert_eq!(report.exit_code(), 7, "{report:?}");
}

/// If QUIC wins, TCP's unused session returns to the jar.
#[tokio::test]
async fn the_losers_unsent_ticket_returns_to_the_jar() {
    let both = TcpAndQuicServer::start().await;
    let tcp_client = both.dir.client(|_| {});
    send(&tcp_client, Request::get(both.tcp.url("/"))).await;
    let tcp_tickets = both.dir.jar().count().unwrap();
    assert!(tcp_tickets > 0);
    let report = both.get().await;
    assert_eq!(version(&report), Version::HTTP_3);
    assert_eq!(both.dir.jar().count().unwrap(), tcp_tickets + report.sessions);
}
