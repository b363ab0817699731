//! The same server on quinn-proto's state machines alone: one loop, one thread, no runtime.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use firstflight_quic::ServerCrypto;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, EndpointConfig,
    Incoming, ServerConfig, StreamId, Transmit,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};

use crate::Failed;

pub(crate) struct Server {
    pub(crate) config: ServerConfig,
    pub(crate) crypto: Arc<ServerCrypto>,
    pub(crate) endpoint: EndpointConfig,
    pub(crate) socket: UdpSocket,
    pub(crate) page: Bytes,
}

struct ServerLoop {
    server: Server,
    endpoint: Endpoint,
    state: UdpSocketState,
    /// Indexed by handle.
    connections: Vec<Option<Connection>>,
    /// Connections with new events.
    touched: Vec<ConnectionHandle>,
    send_buffer: Vec<u8>,
}

impl Server {
    pub(crate) fn serve(mut self) -> Result<(), Failed> {
        let state = UdpSocketState::new((&self.socket).into())?;
        self.endpoint.supported_versions(vec![1]);
        let config = (Arc::new(self.endpoint.clone()), Arc::new(self.config.clone()));
        let endpoint = Endpoint::new(config.0, Some(config.1), true, None);
        let (connections, touched, send_buffer) = (Vec::new(), Vec::new(), Vec::new());
        let mut server_loop =
            ServerLoop { server: self, endpoint, state, connections, touched, send_buffer };
        let mut buffer = vec![0; BATCH_SIZE << 16];
        loop {
            server_loop.wait()?;
            server_loop.receive(&mut buffer);
            let now = Instant::now();
            for (index, connection) in server_loop.connections.iter_mut().enumerate() {
                let Some(connection) = connection else { continue };
                if connection.poll_timeout().is_some_and(|due| due <= now) {
                    connection.handle_timeout(now);
                    server_loop.touched.push(ConnectionHandle(index));
                }
            }
            let mut touched = std::mem::take(&mut server_loop.touched);
            touched.sort_unstable();
            touched.dedup();
            for handle in touched {
                server_loop.advance(handle, now);
            }
        }
    }
}

impl ServerLoop {
    /// Waits for a datagram or a timer.
    fn wait(&mut self) -> Result<(), Failed> {
        let now = Instant::now();
        let timers = self.connections.iter_mut().flatten().filter_map(Connection::poll_timeout);
        let timeout =
            timers.min().map_or(1000, |due| due.saturating_duration_since(now).as_millis() + 1);
        let mut fds = [PollFd::new(self.server.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(timeout.min(1000) as u16))?;
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut buffers = buffer.chunks_exact_mut(1 << 16);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap()));
        let socket = (&self.server.socket).into();
        let count = self.state.recv(socket, &mut slices, &mut metas).unwrap_or(0);
        let now = Instant::now();
        for (slice, meta) in slices.iter().zip(&metas[..count]) {
            let mut received = BytesMut::from(&slice[..meta.len]);
            while !received.is_empty() {
                let datagram = received.split_to(meta.stride.clamp(1, received.len()));
                let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
                self.send_buffer.clear();
                let (remote, send_buffer) = (meta.addr, &mut self.send_buffer);
                match self.endpoint.handle(now, remote, meta.dst_ip, ecn, datagram, send_buffer) {
                    Some(DatagramEvent::NewConnection(incoming)) => self.accept(incoming),
                    Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                        if let Some(connection) = &mut self.connections[handle.0] {
                            connection.handle_event(event);
                            self.touched.push(handle);
                        }
                    }
                    Some(DatagramEvent::Response(transmit)) => self.send(&transmit),
                    None => {}
                }
            }
        }
    }

    fn accept(&mut self, incoming: Incoming) {
        let mut config = self.server.config.clone();
        config.crypto = self.server.crypto.for_connection(Box::new(|_| true), None);
        self.send_buffer.clear();
        let (now, config) = (Instant::now(), Some(Arc::new(config)));
        let accepted = self.endpoint.accept(incoming, now, &mut self.send_buffer, config);
        let Ok((handle, mut connection)) = accepted else { return };
        // Empty SETTINGS (RFC 9114 section 6.2.1).
        if let Some(control) = connection.streams().open(Dir::Uni) {
            let _ = connection.send_stream(control).write(&[0, 4, 0]);
        }
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        self.connections[handle.0] = Some(connection);
        self.touched.push(handle);
    }

    /// Responds to the requests that have arrived, and sends.
    fn advance(&mut self, handle: ConnectionHandle, now: Instant) {
        let Some(mut connection) = self.connections[handle.0].take() else { return };
        while connection.poll().is_some() {}
        while let Some(id) = connection.streams().accept(Dir::Bi) {
            respond(&mut connection, id, &self.server.page);
        }
        let is_drained = self.forward(handle, &mut connection);
        loop {
            self.send_buffer.clear();
            let transmit = connection.poll_transmit(now, 10, &mut self.send_buffer);
            let Some(transmit) = transmit else { break };
            self.send(&transmit);
        }
        if !is_drained && !self.forward(handle, &mut connection) {
            self.connections[handle.0] = Some(connection);
        }
    }

    /// Passes events to the endpoint. Returns whether the connection has ended.
    fn forward(&mut self, handle: ConnectionHandle, connection: &mut Connection) -> bool {
        let mut is_drained = false;
        while let Some(event) = connection.poll_endpoint_events() {
            is_drained |= event.is_drained();
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
        is_drained
    }

    fn send(&self, transmit: &Transmit) {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &self.send_buffer[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        // A failure counts as packet loss.
        let _ = self.state.send((&self.server.socket).into(), &transmit);
    }
}

/// Responds to a request, which fits into one datagram and so arrives with its stream.
fn respond(connection: &mut Connection, id: StreamId, page: &Bytes) {
    if let Ok(mut chunks) = connection.recv_stream(id).read(true) {
        while let Ok(Some(_)) = chunks.next(usize::MAX) {}
        let _ = chunks.finalize();
    }
    let mut stream = connection.send_stream(id);
    let _ = stream.write_chunks(&mut [page.clone()]);
    let _ = stream.finish();
}
