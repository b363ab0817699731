//! Ping-pong: responds to each `PING` with `PONG`, without HTTP, to measure round trips only. Over QUIC
//! each ping has its own stream.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_endpoint::{Connection as QuicConnection, RecvStream, SendStream};
use firstflight_replay::Decision;
use firstflight_tls::TlsStream;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn_proto::VarInt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::context::{ShutdownStage, next_stage, wait_for_stage};
use crate::http::connection::{CompletionSignal, Connection, RequestAdmission};
use crate::http::socket::Socket;
use crate::observe::request::{RequestHead, RequestRecord};

/// Responds to pings until the peer closes. Returns whether the connection ended cleanly.
pub(crate) async fn serve_tcp(
    connection: &Arc<Connection>,
    mut stream: TlsStream<Socket>,
    completion: &CompletionSignal,
    accepted_at: Instant,
    mut stop: watch::Receiver<ShutdownStage>,
) -> bool {
    let mut session = PingPong { connection, stream: &mut stream, completion, accepted_at };
    let served = tokio::select! {
        served = session.run() => served,
        () = wait_for_stage(&mut stop, ShutdownStage::Draining) => Ok(()),
    };
    if served.is_err() {
        return false;
    }
    // A replayed flight never completes its handshake, so the close needs a time limit.
    let close_deadline = (accepted_at + connection.snapshot.limits.header_timeout)
        .max(Instant::now() + Duration::from_secs(1));
    let closed = timeout_at(close_deadline.into(), stream.shutdown()).await;
    if stream.is_complete() && !connection.is_complete() {
        completion.signal(connection);
    }
    matches!(closed, Ok(Ok(())))
}

struct PingPong<'a> {
    connection: &'a Arc<Connection>,
    stream: &'a mut TlsStream<Socket>,
    completion: &'a CompletionSignal,
    accepted_at: Instant,
}

impl PingPong<'_> {
    async fn run(&mut self) -> io::Result<()> {
        while let Some(is_early) = self.ping().await? {
            // The policy does not apply to pings, which have no method and no path.
            let decision = is_early.then(|| self.connection.decide_early(true)).flatten();
            let head = ping_head(self.connection.facts().client);
            let mut record =
                RequestRecord::start(&self.connection.observer, &head, decision.is_some());
            self.connection.record_decision(decision, &mut record);
            match self.admit(decision, &mut record).await? {
                RequestAdmission::Run => {
                    record.set_executed(true);
                    let limit = self.connection.snapshot.limits.idle_timeout;
                    timeout(limit, self.pong()).await??;
                    record.add_bytes(4);
                    record.note_complete();
                }
                RequestAdmission::TooEarly
                | RequestAdmission::Busy
                | RequestAdmission::ConnectionEnded => return Ok(()),
            }
            if !self.connection.snapshot.keep_alive {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn pong(&mut self) -> io::Result<()> {
        self.stream.write_all(b"PONG").await?;
        self.stream.flush().await
    }

    /// Reads a ping. Returns whether it arrived entirely as early data, or `None` if the peer
    /// closed or sent something else.
    async fn ping(&mut self) -> io::Result<Option<bool>> {
        let mut ping = [0; 4];
        let limits = &self.connection.snapshot.limits;
        let limit = match self.stream.is_complete() {
            true => Instant::now() + limits.idle_timeout,
            false => self.accepted_at + limits.header_timeout,
        };
        let read = timeout_at(limit.into(), self.stream.read_exact(&mut ping)).await;
        // Reading may have completed the handshake.
        if self.stream.is_complete() && !self.connection.is_complete() {
            self.completion.signal(self.connection);
        }
        match read {
            Ok(Ok(_)) if ping == *b"PING" => Ok(Some(self.stream.reading_early())),
            Ok(Err(error)) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(None),
        }
    }

    /// Applies the gate's decision. Drives the handshake while a ping is held.
    async fn admit(
        &mut self,
        decision: Option<Decision>,
        record: &mut RequestRecord,
    ) -> io::Result<RequestAdmission> {
        if !matches!(decision, Some(Decision::Hold(_))) {
            return Ok(self.connection.admit(decision, record).await);
        }
        let limit = self.connection.snapshot.limits.header_timeout;
        let (connection, stream, completion) =
            (self.connection, &mut *self.stream, self.completion);
        let drive_handshake = async {
            poll_fn(|cx| stream.poll_complete(cx)).await?;
            completion.signal(connection);
            // The admission ends this future.
            std::future::pending::<io::Result<RequestAdmission>>().await
        };
        let admission = async {
            tokio::select! {
                admission = self.connection.admit(decision, record) => Ok(admission),
                failed = drive_handshake => failed,
            }
        };
        timeout(limit, admission).await.unwrap_or_else(|_| {
            self.connection.note_timeout();
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

/// What the access log records of a ping.
fn ping_head(client: SocketAddr) -> RequestHead<'static> {
    let (method, protocol) = ("PING", "ping-pong");
    RequestHead { method, target: "-", protocol, host: None, headers: None, client }
}

/// Responds to pings until the peer closes.
pub(crate) async fn serve_quic(
    connection: &Arc<Connection>,
    quic: &QuicConnection,
    deadline: Instant,
    stop: &mut watch::Receiver<ShutdownStage>,
) {
    let mut pings = FuturesUnordered::new();
    let mut deadline = deadline;
    let mut is_last = false;
    loop {
        tokio::select! {
            accepted = quic.accept_bi(), if !is_last => match accepted {
                Ok(streams) => {
                    pings.push(respond(connection, streams));
                    is_last = !connection.snapshot.keep_alive;
                }
                Err(_) => return,
            },
            Some(()) = pings.next(), if !pings.is_empty() => {
                // A copy of a first flight must not extend the deadline.
                if connection.is_complete() {
                    deadline = Instant::now() + connection.snapshot.limits.idle_timeout;
                }
            }
            now = next_stage(stop, is_last) => match now {
                ShutdownStage::Abort => return,
                _ => is_last = true,
            },
            () = sleep_until(deadline.into()), if pings.is_empty() || !connection.is_complete() => {
                connection.note_timeout();
                return;
            }
        }
        if is_last && pings.is_empty() {
            return;
        }
    }
}

async fn respond(connection: &Arc<Connection>, streams: (SendStream, RecvStream)) {
    let (mut send, mut recv) = streams;
    let early = recv.opened_early();
    if !early && !connection.handshake.completes().await {
        return;
    }
    let is_early = early || connection.facts().lost_claim();
    let limits = &connection.snapshot.limits;
    match timeout(limits.header_timeout, recv.read_to_end(4)).await {
        Ok(Ok(ping)) if ping == b"PING" => {}
        _ => return drop(send.reset(VarInt::from_u32(0))),
    }
    // The policy does not apply to pings, which have no method and no path.
    let decision = is_early.then(|| connection.decide_early(true)).flatten();
    let head = ping_head(connection.facts().client);
    let mut record = RequestRecord::start(&connection.observer, &head, decision.is_some());
    connection.record_decision(decision, &mut record);
    match connection.admit(decision, &mut record).await {
        RequestAdmission::Run => {
            record.set_executed(true);
            let sent = timeout(limits.idle_timeout, send.write_all(b"PONG")).await;
            if !matches!(sent, Ok(Ok(()))) || send.finish().is_err() {
                return;
            }
            record.add_bytes(4);
            record.note_complete();
        }
        RequestAdmission::TooEarly | RequestAdmission::Busy | RequestAdmission::ConnectionEnded => {
            return drop(send.reset(VarInt::from_u32(0)));
        }
    }
    drop(record);
    // The connection must not be closed before the response has arrived.
    let _ = timeout(limits.idle_timeout, send.stopped()).await;
}
