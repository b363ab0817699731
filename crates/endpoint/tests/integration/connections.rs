use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firstflight_quic::Burst;
use quinn_proto::congestion::{Controller, ControllerFactory};
use quinn_proto::{ConnectionError, IdleTimeout, TransportConfig, VarInt};

use crate::support::{Client, Layer, LayerState, Server, echo, request, within};

#[tokio::test]
async fn a_close_reaches_the_other_side_with_its_code_and_reason() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    assert_eq!(ours.close_reason(), None);
    ours.close(VarInt::from_u32(7), b"done");
    assert_eq!(ours.close_reason(), Some(ConnectionError::LocallyClosed));
    let ConnectionError::ApplicationClosed(close) = within(theirs.closed()).await else {
        panic!("closed by the server");
    };
    assert_eq!((close.error_code, &close.reason[..]), (VarInt::from_u32(7), &b"done"[..]));

    let (theirs, ours) = server.pair(&client).await;
    let accepting =
        tokio::spawn(async move { (ours.accept_bi().await.err(), ours.close_reason()) });
    tokio::task::yield_now().await;
    theirs.close(VarInt::from_u32(8), b"");
    let (accepted, reason) = within(accepting).await.unwrap();
    assert!(matches!(accepted, Some(ConnectionError::ApplicationClosed(_))), "{accepted:?}");
    assert_eq!(accepted, reason);
}

#[tokio::test]
async fn a_connection_without_handles_is_closed() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let copy = ours.clone();
    drop(ours);
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"request").await.unwrap();
    let streams = within(copy.accept_bi()).await.unwrap();
    drop(copy);
    // The streams keep it open.
    assert_eq!(theirs.close_reason(), None);
    drop(streams);
    assert!(matches!(within(theirs.closed()).await, ConnectionError::ApplicationClosed(_)));
}

#[tokio::test]
async fn a_close_is_sent_although_the_congestion_window_is_full() {
    let change = |transport: &mut TransportConfig| {
        transport.congestion_controller_factory(Arc::new(Burst::default()));
    };
    let state = Arc::new(LayerState::default());
    let layer = |socket| Layer { socket, state: state.clone() };
    let (server, client) = (Server::with(layer, change), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let mut stream = within(std::future::poll_fn(|cx| ours.poll_open_uni(cx))).await.unwrap();
    // The client acknowledges nothing of what is lost.
    state.last.store(state.calls.load(Ordering::SeqCst), Ordering::SeqCst);
    stream.write_all(&vec![0; 500_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    state.last.store(0, Ordering::SeqCst);
    ours.close(VarInt::from_u32(7), b"");
    let closed = tokio::time::timeout(Duration::from_secs(5), theirs.closed()).await;
    assert!(matches!(closed, Ok(ConnectionError::ApplicationClosed(_))), "{closed:?}");
}

#[tokio::test]
async fn a_panic_of_its_state_machine_ends_one_connection_only() {
    for event in [PanickingEvent::Sent, PanickingEvent::Acknowledged] {
        let factory = Arc::new(PanickingFactory { event, latest: Mutex::default() });
        let change = |transport: &mut TransportConfig| {
            transport.congestion_controller_factory(factory.clone());
        };
        let (server, client) = (Server::with(|socket| socket, change), Client::new());
        let (other_theirs, other_ours) = server.pair(&client).await;
        let (theirs, ours) = server.pair(&client).await;
        let panics = factory.latest.lock().unwrap().clone();
        let mut stream = within(std::future::poll_fn(|cx| ours.poll_open_uni(cx))).await.unwrap();
        panics.store(true, Ordering::SeqCst);
        stream.write_all(b"data").await.unwrap();
        let ended = within(ours.accept_bi()).await.err();
        assert_eq!(ended, Some(ConnectionError::LocallyClosed));
        assert!(!panics.load(Ordering::SeqCst), "the state machine has panicked");

        tokio::spawn(echo(other_ours));
        assert_eq!(request(&other_theirs, b"alive").await, b"alive");
        let (new_theirs, new_ours) = server.pair(&client).await;
        tokio::spawn(echo(new_ours));
        assert_eq!(request(&new_theirs, b"new").await, b"new");
        // The client's next packet gets a stateless reset.
        if let Ok(mut stream) = within(theirs.open_uni()).await {
            let _ = stream.write_all(b"data").await;
        }
        assert_eq!(within(theirs.closed()).await, ConnectionError::Reset);
    }
}

#[derive(Clone, Copy)]
enum PanickingEvent {
    Sent,
    Acknowledged,
}

struct PanickingFactory {
    event: PanickingEvent,
    /// Makes the latest connection panic at its next such event.
    latest: Mutex<Arc<AtomicBool>>,
}

#[derive(Clone)]
struct PanickingController {
    event: PanickingEvent,
    panics: Arc<AtomicBool>,
}

impl PanickingController {
    fn panic_if_armed(&self) {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a panic of the state machine");
    }
}

impl ControllerFactory for PanickingFactory {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        let panics = Arc::new(AtomicBool::new(false));
        *self.latest.lock().unwrap() = panics.clone();
        Box::new(PanickingController { event: self.event, panics })
    }
}

impl Controller for PanickingController {
    fn on_sent(&mut self, _: Instant, _: u64, _: u64) {
        if let PanickingEvent::Sent = self.event {
            self.panic_if_armed();
        }
    }

    fn on_end_acks(&mut self, _: Instant, _: u64, _: bool, _: Option<u64>) {
        if let PanickingEvent::Acknowledged = self.event {
            self.panic_if_armed();
        }
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.initial_window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        1 << 20
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[tokio::test]
async fn a_silent_connection_times_out_and_is_forgotten() {
    let change = |transport: &mut TransportConfig| {
        transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(200))));
    };
    let (server, client) = (Server::with(|socket| socket, change), Client::new());
    let (_theirs, ours) = server.pair(&client).await;
    let ended = within(ours.accept_bi()).await.err();
    assert_eq!(ended, Some(ConnectionError::TimedOut));
    within(server.endpoint.wait_idle()).await;
}

#[tokio::test]
async fn many_connections_share_a_socket() {
    let (server, client) = (Server::new(), Client::new());
    server.echo();
    let connecting = (0..100u8).map(|number| {
        let connecting = client.connect(server.address);
        tokio::spawn(async move {
            let connection = within(connecting).await.unwrap();
            assert_eq!(request(&connection, &[number; 5000]).await, [number; 5000]);
            connection.close(VarInt::from_u32(0), b"");
        })
    });
    for connection in connecting.collect::<Vec<_>>() {
        connection.await.unwrap();
    }
    within(server.endpoint.wait_idle()).await;
    assert_eq!(server.endpoint.open_connections(), 0);
}

#[test]
fn connections_end_with_their_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (server_runtime, client_runtime) = (runtime(), runtime());
    let server = server_runtime.block_on(async { Server::new() });
    let (_theirs, ours) = client_runtime.block_on(async { server.pair(&Client::new()).await });
    server_runtime.shutdown_timeout(Duration::from_secs(10));
    assert_eq!(ours.close_reason(), Some(ConnectionError::LocallyClosed));
    assert!(client_runtime.block_on(within(server.endpoint.accept())).is_none());
}
