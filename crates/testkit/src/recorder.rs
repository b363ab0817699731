//! An attacker on the path to a server, who forwards everything, records first flights, and replays
//! them.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::child::TEST_TIMEOUT;
use crate::runtime::runtime;

/// A proxy in front of a server, over TCP or UDP. It keeps its port when the server is replaced,
/// because a client's sessions belong to a host and port.
///
/// A first flight is what a client sends before the first response of the server is passed on.
pub struct Recorder {
    address: SocketAddr,
    path: Arc<Path>,
    /// Stops the listener when the recorder is dropped.
    stop_listener: Option<oneshot::Sender<()>>,
}

/// A first flight over TCP that was not forwarded yet.
pub struct HeldFlight {
    captured: oneshot::Receiver<Vec<u8>>,
    release: oneshot::Sender<()>,
}

impl HeldFlight {
    /// Waits for the flight. Sending on the returned channel, or dropping it, forwards the flight.
    ///
    /// # Panics
    /// If no client connects in time.
    pub async fn flight(self) -> (Vec<u8>, oneshot::Sender<()>) {
        let Self { captured, release } = self;
        // The caller's runtime may have no timers.
        let waiting = runtime().spawn(async move { timeout(TEST_TIMEOUT, captured).await });
        let flight = waiting.await.expect("it only waits").expect("a client connects in time");
        (flight.expect("a client connects"), release)
    }
}

impl Recorder {
    /// Forwards TCP to this server. Without a server it only records, until
    /// [`forward_to`](Self::forward_to) sets one.
    pub fn start(server: impl Into<Option<SocketAddr>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let path = Arc::<Path>::default();
        path.lock().server = server.into();
        let (end, ended) = oneshot::channel();
        let shared = path.clone();
        runtime().spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let accept = async {
                while let Ok((client, from)) = listener.accept().await {
                    let path = shared.clone();
                    path.lock().connect(from);
                    tokio::spawn(async move { path.pass_stream(client, from).await });
                }
            };
            tokio::select! {
                () = accept => {}
                _ = ended => {}
            }
        });
        Self { address, path, stop_listener: Some(end) }
    }

    /// Forwards the datagrams of one client to this server, for [`TEST_TIMEOUT`].
    pub fn start_udp(server: SocketAddr) -> Self {
        let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = near.local_addr().expect("an address");
        near.set_nonblocking(true).expect("a socket");
        let path = Arc::<Path>::default();
        let shared = path.clone();
        runtime().spawn(async move {
            let near = tokio::net::UdpSocket::from_std(near).expect("a socket");
            timeout(TEST_TIMEOUT, shared.pass_datagrams(near, server)).await
        });
        Self { address, path, stop_listener: None }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a target by way of the recorder.
    pub fn url(&self, target: &str) -> String {
        format!("https://localhost:{}{target}", self.address.port())
    }

    /// Forwards to another server from now on.
    pub fn forward_to(&self, server: SocketAddr) {
        self.path.lock().server = Some(server);
    }

    /// Holds what follows a first flight, such as Finished, until `opens` is true.
    pub fn hold_rest(&self, opens: impl Fn() -> bool + Send + Sync + 'static) {
        self.path.lock().release_condition = Some(Arc::new(opens));
    }

    /// Holds the first flight of the next client.
    pub fn hold_next(&self) -> HeldFlight {
        let (captured, flight) = oneshot::channel();
        let (release, released) = oneshot::channel();
        self.path.lock().hold = Some(Hold { captured, released });
        HeldFlight { captured: flight, release }
    }

    /// Delays the first response to each client, for clients that do not send their first flight
    /// with one write.
    pub fn delay_responses(&self, delay: Duration) {
        self.path.lock().response_delay = delay;
    }

    /// Calls this function with each first flight over TCP, when the server has responded and before
    /// the response is passed on.
    pub fn on_flight(&self, call: impl Fn(Vec<u8>) + Send + Sync + 'static) {
        self.path.lock().on_flight = Some(Arc::new(call));
    }

    /// The first flight of the latest connection, as the bytes of its stream.
    pub fn flight(&self) -> Vec<u8> {
        self.datagrams().concat()
    }

    /// The first flight of the latest connection, as datagrams.
    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        self.path.lock().latest().map(|flight| flight.parts.clone()).unwrap_or_default()
    }

    /// Takes the first flight of the client at this address.
    pub fn take_flight(&self, client: SocketAddr) -> Vec<u8> {
        self.path.lock().flights.remove(&client).unwrap_or_default().parts.concat()
    }

    /// The first bytes of the server on the latest connection; empty without a response.
    pub fn response(&self) -> Vec<u8> {
        self.path.lock().latest().map(|flight| flight.response.clone()).unwrap_or_default()
    }

    /// Whether the server has responded on the latest connection, so that its flight is complete.
    pub fn has_response(&self) -> bool {
        self.path.lock().latest().is_some_and(RecordedFlight::has_response)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(end) = self.stop_listener.take() {
            let _ = end.send(());
        }
    }
}

/// Replays a flight over TCP, with `at_once` concurrent connections. Each shuts down its sending
/// side and waits until the server closes, so that the server has read everything. Returns how many
/// got a response.
///
/// # Panics
/// If `times` is not a multiple of `at_once`.
pub fn resend(server: SocketAddr, flight: &[u8], times: usize, at_once: usize) -> usize {
    let resend_once = || -> io::Result<usize> {
        let mut tcp = TcpStream::connect(server)?;
        tcp.set_read_timeout(Some(TEST_TIMEOUT))?;
        tcp.write_all(flight)?;
        tcp.shutdown(Shutdown::Write)?;
        tcp.read_to_end(&mut Vec::new())
    };
    let has_response = || matches!(resend_once(), Ok(1..));
    assert_eq!(times % at_once, 0, "each attacker resends equally often");
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(move || (0..times / at_once).filter(|_| has_response()).count()))
            .collect();
        attackers.into_iter().map(|attacker| attacker.join().expect("it only counts")).sum()
    })
}

/// The path between clients and server.
#[derive(Default)]
struct Path(Mutex<State>);

#[derive(Default)]
struct State {
    server: Option<SocketAddr>,
    /// By client address.
    flights: HashMap<SocketAddr, RecordedFlight>,
    latest: Option<SocketAddr>,
    hold: Option<Hold>,
    release_condition: Option<Condition>,
    response_delay: Duration,
    on_flight: Option<Callback>,
}

#[derive(Default)]
struct RecordedFlight {
    parts: Vec<Vec<u8>>,
    /// The first bytes of the server's response.
    response: Vec<u8>,
}

impl RecordedFlight {
    fn has_response(&self) -> bool {
        !self.response.is_empty()
    }
}

struct Hold {
    captured: oneshot::Sender<Vec<u8>>,
    released: oneshot::Receiver<()>,
}

type Condition = Arc<dyn Fn() -> bool + Send + Sync>;
type Callback = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

impl State {
    fn connect(&mut self, client: SocketAddr) {
        self.flights.insert(client, RecordedFlight::default());
        self.latest = Some(client);
    }

    fn latest(&self) -> Option<&RecordedFlight> {
        self.flights.get(self.latest.as_ref()?)
    }
}

impl Path {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes to the client's flight, which ends with the first response.
    fn record(&self, client: SocketAddr, bytes: &[u8]) {
        if let Some(flight) =
            self.lock().flights.get_mut(&client).filter(|flight| !flight.has_response())
        {
            flight.parts.push(bytes.to_vec());
        }
    }

    /// Called before the first response to a client is passed on.
    async fn respond(&self, client: SocketAddr, response: &[u8]) {
        let delay = self.lock().response_delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let (parts, on_flight) = {
            let mut state = self.lock();
            let on_flight = state.on_flight.clone();
            let Some(flight) = state.flights.get_mut(&client) else { return };
            flight.response = response.to_vec();
            (flight.parts.clone(), on_flight)
        };
        if let Some(call) = on_flight {
            call(parts.concat());
        }
    }

    async fn wait_for_release_condition(&self) {
        let Some(condition) = self.lock().release_condition.clone() else { return };
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !condition() {
            assert!(Instant::now() < deadline, "the rest of the flights may pass");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn pass_stream(&self, near: tokio::net::TcpStream, client: SocketAddr) -> io::Result<()> {
        let _ = near.set_nodelay(true);
        let (mut near_in, mut near_out) = near.into_split();
        let mut bytes = vec![0; 1 << 16];
        let count = near_in.read(&mut bytes).await?;
        self.record(client, &bytes[..count]);
        let hold = self.lock().hold.take();
        if let Some(Hold { captured, released }) = hold {
            let _ = captured.send(bytes[..count].to_vec());
            let _ = released.await;
        }
        let Some(server) = self.lock().server else { return Ok(()) };
        let far = tokio::net::TcpStream::connect(server).await?;
        let _ = far.set_nodelay(true);
        let (mut far_in, mut far_out) = far.into_split();
        far_out.write_all(&bytes[..count]).await?;
        let up = async {
            while let Ok(count @ 1..) = near_in.read(&mut bytes).await {
                self.record(client, &bytes[..count]);
                self.wait_for_release_condition().await;
                if far_out.write_all(&bytes[..count]).await.is_err() {
                    break;
                }
            }
            let _ = far_out.shutdown().await;
        };
        let down = async {
            let mut bytes = vec![0; 1 << 16];
            if let Ok(count @ 1..) = far_in.read(&mut bytes).await {
                self.respond(client, &bytes[..count]).await;
                let _ = near_out.write_all(&bytes[..count]).await;
                let _ = copy(&mut far_in, &mut near_out).await;
            }
            let _ = near_out.shutdown().await;
        };
        tokio::join!(up, down);
        Ok(())
    }

    async fn pass_datagrams(
        &self,
        near: tokio::net::UdpSocket,
        server: SocketAddr,
    ) -> io::Result<()> {
        let far = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        far.connect(server).await?;
        let mut bytes = vec![0; 1 << 16];
        let (count, client) = near.recv_from(&mut bytes).await?;
        self.lock().connect(client);
        self.record(client, &bytes[..count]);
        let _ = far.send(&bytes[..count]).await;
        let up = async {
            loop {
                let (count, _) = near.recv_from(&mut bytes).await?;
                self.record(client, &bytes[..count]);
                let _ = far.send(&bytes[..count]).await;
            }
        };
        let down = async {
            let mut bytes = vec![0; 1 << 16];
            let mut responded = false;
            loop {
                // A stopped server refuses datagrams; another may take its place.
                let Ok(count) = far.recv(&mut bytes).await else { continue };
                if !responded {
                    self.respond(client, &bytes[..count]).await;
                    responded = true;
                }
                let _ = near.send_to(&bytes[..count], client).await;
            }
        };
        tokio::select! {
            result = up => result,
            () = down => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it receives.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                thread::spawn(move || io::copy(&mut &tcp, &mut &tcp));
            }
        });
        address
    }

    fn exchange(tcp: &mut TcpStream, bytes: &[u8]) {
        tcp.write_all(bytes).unwrap();
        let mut response = vec![0; bytes.len()];
        tcp.read_exact(&mut response).unwrap();
        assert_eq!(response, bytes);
    }

    #[test]
    fn a_flight_ends_with_the_first_response_and_can_be_replayed() {
        let server = echo();
        let recorder = Recorder::start(server);
        let mut client = TcpStream::connect(recorder.address()).unwrap();
        exchange(&mut client, b"flight");
        exchange(&mut client, b"more");
        assert!(recorder.has_response());
        assert_eq!((recorder.flight(), recorder.response()), (b"flight".into(), b"flight".into()));
        assert_eq!(resend(server, &recorder.flight(), 4, 2), 4);
        assert_eq!(recorder.take_flight(client.local_addr().unwrap()), b"flight");
        assert_eq!(recorder.flight(), b"");
    }

    #[test]
    fn a_held_flight_is_forwarded_when_it_is_released() {
        let recorder = Recorder::start(None);
        let held = recorder.hold_next();
        let mut client = TcpStream::connect(recorder.address()).unwrap();
        client.write_all(b"flight").unwrap();
        let (flight, release) = runtime().block_on(held.flight());
        assert_eq!((flight, recorder.has_response()), (b"flight".to_vec(), false));
        recorder.forward_to(echo());
        drop(release);
        client.read_exact(&mut [0; 6]).unwrap();
    }

    #[test]
    fn bytes_after_the_flight_are_held_until_the_condition_is_true() {
        let recorder = Recorder::start(echo());
        let open = Arc::new(Mutex::new(false));
        let opens = open.clone();
        recorder.hold_rest(move || *opens.lock().unwrap());
        let mut client = TcpStream::connect(recorder.address()).unwrap();
        exchange(&mut client, b"flight");
        client.write_all(b"rest").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        client.read(&mut [0; 4]).unwrap_err();
        *open.lock().unwrap() = true;
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }

    #[test]
    fn datagrams_are_recorded_until_the_response() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let recorder = Recorder::start_udp(server.local_addr().unwrap());
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        client.connect(recorder.address()).unwrap();
        let mut bytes = [0; 8];
        let mut from = None;
        for part in [b"one", b"two"] {
            client.send(part).unwrap();
            from = Some(server.recv_from(&mut bytes).unwrap().1);
        }
        server.send_to(b"response", from.unwrap()).unwrap();
        client.recv(&mut bytes).unwrap();
        client.send(b"more").unwrap();
        server.recv(&mut bytes).unwrap();
        assert_eq!(recorder.datagrams(), [b"one", b"two"]);
    }
}
