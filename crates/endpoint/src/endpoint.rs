//! A UDP socket with the connections that clients have opened on it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, ConnectionId, EndpointConfig, RetryError, ServerConfig,
    Transmit, VarInt,
};

use crate::connection::{Connection, Inner, wait, wake};
use crate::driver::Driver;
use crate::queue::Queue;
use crate::socket::DatagramSocket;

/// A socket on which clients connect. When the last handle is dropped, it accepts no further
/// connections, and ends with the existing ones.
#[derive(Clone)]
pub struct Endpoint(Arc<Handle>);

struct Handle(Arc<Shared>);

/// What handles, connections and the driver share.
///
/// Locks are taken in this order: a connection's, the state's, the queue's.
pub(crate) struct Shared {
    pub(crate) socket: Arc<dyn DatagramSocket>,
    state: Mutex<State>,
    queue: Mutex<Queue>,
}

pub(crate) struct State {
    pub(crate) proto: quinn_proto::Endpoint,
    /// By handle.
    connections: Vec<Option<Arc<Inner>>>,
    open: usize,
    incoming: VecDeque<quinn_proto::Incoming>,
    accepting: Option<Waker>,
    idle: Option<Waker>,
    /// Whether new connections are accepted.
    pub(crate) is_accepting: bool,
}

/// An incoming connection. It is refused when it is dropped.
pub struct Incoming {
    proto: Option<quinn_proto::Incoming>,
    endpoint: Arc<Shared>,
}

impl Endpoint {
    /// Accepts connections on a socket. Starts a task, so it needs a tokio runtime.
    pub fn new(
        config: EndpointConfig,
        server: ServerConfig,
        socket: Arc<dyn DatagramSocket>,
    ) -> Self {
        let receive_size = config.get_max_udp_payload_size();
        let (config, server) = (Arc::new(config), Some(Arc::new(server)));
        let proto =
            quinn_proto::Endpoint::new(config, server, !socket.socket().may_fragment(), None);
        let state = State {
            proto,
            connections: Vec::new(),
            open: 0,
            incoming: VecDeque::new(),
            accepting: None,
            idle: None,
            is_accepting: true,
        };
        let shared = Shared { socket, state: Mutex::new(state), queue: Mutex::default() };
        let shared = Arc::new(shared);
        tokio::spawn(Driver::new(shared.clone(), receive_size));
        Self(Arc::new(Handle(shared)))
    }

    /// Waits for the next incoming connection. Returns `None` if the endpoint was closed. One task at a
    /// time may wait.
    pub async fn accept(&self) -> Option<Incoming> {
        poll_fn(|cx| {
            let mut state = self.shared().state();
            match state.incoming.pop_front() {
                Some(proto) => {
                    let endpoint = self.shared().clone();
                    Poll::Ready(Some(Incoming { proto: Some(proto), endpoint }))
                }
                None if !state.is_accepting => Poll::Ready(None),
                None => wait(&mut state.accepting, cx),
            }
        })
        .await
    }

    /// Sets the configuration of connections that clients open from now on.
    pub fn set_server_config(&self, config: ServerConfig) {
        self.shared().state().proto.set_server_config(Some(Arc::new(config)));
    }

    /// The socket's address.
    ///
    /// # Errors
    /// The socket's I/O error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared().socket.socket().local_addr()
    }

    /// The number of connections whose state is still needed, including closed connections whose last
    /// packets may have to be repeated.
    pub fn open_connections(&self) -> usize {
        self.shared().state().open
    }

    /// Closes all connections and accepts no further ones.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.shared().stop_accepting();
        let connections: Vec<_> =
            self.shared().state().connections.iter().flatten().cloned().collect();
        let reason = Bytes::copy_from_slice(reason);
        for connection in connections {
            connection.close(code, reason.clone());
        }
    }

    /// Waits until there are no connections. One task at a time may wait.
    pub async fn wait_idle(&self) {
        poll_fn(|cx| {
            let mut state = self.shared().state();
            match state.open {
                0 => Poll::Ready(()),
                _ => wait(&mut state.idle, cx),
            }
        })
        .await;
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop_accepting();
    }
}

impl Incoming {
    /// Starts the connection. quinn-proto processes its first packets now; the driver sends when it runs
    /// next, with what the calling task has written by then.
    ///
    /// # Errors
    /// The handshake has failed, or the endpoint was closed meanwhile.
    pub fn accept_with(mut self, config: Arc<ServerConfig>) -> Result<Connection, ConnectionError> {
        let mut response = Vec::new();
        let endpoint = self.endpoint.clone();
        let mut state = endpoint.state();
        if !state.is_accepting {
            // The driver may have ended. Dropping the connection refuses it.
            drop(state);
            return Err(ConnectionError::LocallyClosed);
        }
        let Some(proto) = self.proto.take() else { return Err(ConnectionError::LocallyClosed) };
        match state.proto.accept(proto, Instant::now(), &mut response, Some(config)) {
            Ok((handle, proto)) => {
                let inner = Inner::new(handle, proto, self.endpoint.clone());
                state.insert(handle, inner.clone());
                drop(state);
                inner.enqueue(&mut inner.state());
                Ok(Connection::new(inner))
            }
            Err(error) => {
                drop(state);
                if let Some(transmit) = error.response {
                    self.endpoint.respond(&transmit, &response);
                }
                Err(error.cause)
            }
        }
    }

    /// Refuses the connection, and tells the client.
    pub fn refuse(mut self) {
        self.refuse_now();
    }

    /// Drops the client's packets without response.
    pub fn ignore(mut self) {
        if let Some(proto) = self.proto.take() {
            self.endpoint.state().proto.ignore(proto);
        }
    }

    /// Requests that the client proves its address (RFC 9000 section 8.1.2).
    ///
    /// # Errors
    /// The client has proven its address already ([`Incoming::may_retry`]); the connection is refused.
    pub fn retry(mut self) -> Result<(), AddressValidated> {
        let Some(proto) = self.proto.take() else { return Ok(()) };
        let mut response = Vec::new();
        let retried = self.endpoint.state().proto.retry(proto, &mut response);
        match retried {
            Ok(transmit) => self.endpoint.respond(&transmit, &response),
            Err(error) => {
                self.proto = Some(RetryError::into_incoming(error));
                return Err(AddressValidated);
            }
        }
        Ok(())
    }

    /// The client's address.
    pub fn remote_address(&self) -> SocketAddr {
        self.proto().remote_address()
    }

    /// The local address that the client sends to, if the socket reports it.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.proto().local_ip()
    }

    /// Whether the client has proven its address, by a token from a Retry or a NEW_TOKEN frame.
    pub fn remote_address_validated(&self) -> bool {
        self.proto().remote_address_validated()
    }

    /// Whether a Retry may be sent, which is allowed once.
    pub fn may_retry(&self) -> bool {
        self.proto().may_retry()
    }

    /// The destination connection id of the client's first packet.
    pub fn orig_dst_cid(&self) -> ConnectionId {
        *self.proto().orig_dst_cid()
    }

    fn proto(&self) -> &quinn_proto::Incoming {
        self.proto.as_ref().expect("only taken by methods that consume the value")
    }

    fn refuse_now(&mut self) {
        let Some(proto) = self.proto.take() else { return };
        let mut response = Vec::new();
        let transmit = self.endpoint.state().proto.refuse(proto, &mut response);
        self.endpoint.respond(&transmit, &response);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.refuse_now();
    }
}

/// The client has proven its address already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has proven its address already")]
pub struct AddressValidated;

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a packet of no connection: version negotiation, Retry, stateless reset or a refusal. If
    /// the socket is full, it counts as lost.
    pub(crate) fn respond(&self, transmit: &Transmit, response: &[u8]) {
        let _ = self.socket.try_send(&udp_transmit(transmit, response));
    }

    pub(crate) fn stop_accepting(&self) {
        let mut state = self.state();
        state.is_accepting = false;
        for incoming in std::mem::take(&mut state.incoming) {
            state.proto.ignore(incoming);
        }
        wake(&mut state.accepting);
        drop(state);
        // The driver ends if there are no connections.
        self.queue().wake();
    }
}

impl State {
    fn insert(&mut self, handle: ConnectionHandle, connection: Arc<Inner>) {
        if self.connections.len() <= handle.0 {
            self.connections.resize(handle.0 + 1, None);
        }
        self.connections[handle.0] = Some(connection);
        self.open += 1;
    }

    pub(crate) fn connection(&self, handle: ConnectionHandle) -> Option<Arc<Inner>> {
        self.connections.get(handle.0).cloned().flatten()
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, handle: ConnectionHandle) {
        if self.connections.get_mut(handle.0).and_then(Option::take).is_some() {
            self.open -= 1;
        }
        if self.open == 0 {
            wake(&mut self.idle);
        }
    }

    /// Forgets all connections, and returns them.
    pub(crate) fn remove_all(&mut self) -> Vec<Arc<Inner>> {
        self.open = 0;
        wake(&mut self.idle);
        std::mem::take(&mut self.connections).into_iter().flatten().collect()
    }

    /// Announces an incoming connection.
    pub(crate) fn announce(&mut self, incoming: quinn_proto::Incoming) {
        self.incoming.push_back(incoming);
        wake(&mut self.accepting);
    }

    /// Whether there is nothing left to do.
    pub(crate) fn is_finished(&self) -> bool {
        self.open == 0 && !self.is_accepting
    }
}

pub(crate) fn udp_transmit<'a>(transmit: &Transmit, contents: &'a [u8]) -> quinn_udp::Transmit<'a> {
    quinn_udp::Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
        contents: &contents[..transmit.size],
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip.filter(|ip| can_send(*ip, transmit.destination.ip())),
    }
}

/// Whether the kernel sends from one address to the other. quinn-proto keeps the local address of a
/// connection whose client moves to another family, or leaves the link. The kernel refuses that with
/// EINVAL, which quinn-udp mistakes for an old kernel, and sends without GSO and ECN from then on. A
/// loopback source stays: its clients are on this host, and accept responses from no other address.
fn can_send(source: IpAddr, destination: IpAddr) -> bool {
    let is_of_link = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let (source, destination) = (source.to_canonical(), destination.to_canonical());
    source.is_ipv4() == destination.is_ipv4() && (!is_of_link(source) || is_of_link(destination))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Socket;

    fn transmit(source: &str, destination: &str) -> Transmit {
        Transmit {
            destination: destination.parse().unwrap(),
            ecn: None,
            size: 1,
            segment_size: None,
            src_ip: Some(source.parse().unwrap()),
        }
    }

    #[test]
    fn rfc9000_9_a_source_that_the_kernel_refuses_on_a_new_path_is_left_out() {
        for (source, destination, is_kept) in [
            ("192.0.2.1", "192.0.2.9:5", true),
            ("::ffff:192.0.2.1", "[::ffff:192.0.2.9]:5", true),
            ("2001:db8::1", "[2001:db8::9]:5", true),
            ("fe80::1", "[fe80::9%2]:5", true),
            ("127.0.0.1", "127.0.0.1:5", true),
            // A client on this host with another of its addresses.
            ("127.0.0.1", "192.0.2.9:5", true),
            ("::ffff:192.0.2.1", "[2001:db8::9]:5", false),
            ("2001:db8::1", "[::ffff:192.0.2.9]:5", false),
            ("fe80::1", "[2001:db8::9]:5", false),
        ] {
            let kept = udp_transmit(&transmit(source, destination), b"x").src_ip.is_some();
            assert_eq!(kept, is_kept, "{source} {destination}");
        }
    }

    #[tokio::test]
    async fn a_client_that_moves_to_another_family_does_not_switch_off_gso() {
        // Not every machine has IPv6.
        if std::net::UdpSocket::bind("[::1]:0").is_err() {
            return;
        }
        let socket = Socket::new(std::net::UdpSocket::bind("[::]:0").unwrap()).unwrap();
        poll_fn(|cx| socket.poll_writable(cx)).await.unwrap();
        let segments = socket.max_transmit_segments();
        for (source, destination) in
            [("::ffff:127.0.0.1", "[::1]:9"), ("::1", "[::ffff:127.0.0.1]:9")]
        {
            socket.try_send(&udp_transmit(&transmit(source, destination), b"x")).unwrap();
        }
        assert_eq!(socket.max_transmit_segments(), segments);
    }
}
