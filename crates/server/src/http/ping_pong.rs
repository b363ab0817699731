//! Ping-pong: answers each `PING` with `PONG`, without HTTP, to measure round trips only. Over QUIC
//! each ping has its own stream.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::Decision;
use firstflight_tls::TlsStream;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::context::{Stop, next_stop, stopped};
use crate::http::connection::{Admission, Completion, Connection};
use crate::http::stream::Socket;
use crate::observe::request::{Head, RequestRecord};

/// Answers pings until the peer closes. Returns whether the connection ended cleanly.
pub(crate) async fn serve_tcp(
    connection: &Arc<Connection>,
    mut stream: TlsStream<Socket>,
    completion: &Completion,
    accepted_at: Instant,
    mut stop: watch::Receiver<Stop>,
) -> bool {
    let mut game = PingPong { connection, stream: &mut stream, completion, accepted_at };
    let played = tokio::select! {
        played = game.play() => played,
        () = stopped(&mut stop, Stop::Finish) => Ok(()),
    };
    if played.is_err() {
        return false;
    }
    // A replayed flight never completes its handshake, so the close needs a time limit.
    let farewell = (accepted_at + connection.snapshot.limits.header_timeout)
        .max(Instant::now() + Duration::from_secs(1));
    matches!(timeout_at(farewell.into(), stream.shutdown()).await, Ok(Ok(())))
}

struct PingPong<'a> {
    connection: &'a Arc<Connection>,
    stream: &'a mut TlsStream<Socket>,
    completion: &'a Completion,
    accepted_at: Instant,
}

impl PingPong<'_> {
    async fn play(&mut self) -> io::Result<()> {
        while let Some(early) = self.ping().await? {
            // The policy does not apply to pings, which have no method and no path.
            let decision = early.then(|| self.connection.arrive(true)).flatten();
            let mut record =
                RequestRecord::begin(&self.connection.observer, &PING, decision.is_some());
            self.connection.note(decision, &mut record);
            match self.admit(decision, &mut record).await? {
                Admission::Run => {
                    record.executed();
                    self.stream.write_all(b"PONG").await?;
                    self.stream.flush().await?;
                    record.bytes(4);
                    record.complete();
                }
                Admission::TooEarly | Admission::Busy | Admission::ConnectionEnded => return Ok(()),
            }
            if !self.connection.snapshot.keep_alive {
                return Ok(());
            }
        }
        Ok(())
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
        match timeout_at(limit.into(), self.stream.read_exact(&mut ping)).await {
            Ok(Ok(_)) if ping == *b"PING" => Ok(Some(self.stream.reading_early())),
            Ok(Err(error)) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(None),
        }
    }

    /// The gate's decision. A held ping drives the handshake meanwhile.
    async fn admit(
        &mut self,
        decision: Option<Decision>,
        record: &mut RequestRecord,
    ) -> io::Result<Admission> {
        if !matches!(decision, Some(Decision::Hold(_))) {
            return Ok(self.connection.admit(decision, record).await);
        }
        let limit = self.connection.snapshot.limits.header_timeout;
        let (connection, stream, completion) =
            (self.connection, &mut *self.stream, self.completion);
        let complete = async {
            poll_fn(|cx| stream.poll_complete(cx)).await?;
            completion.reached(connection);
            // The admission ends this future.
            std::future::pending::<io::Result<Admission>>().await
        };
        let both = async {
            tokio::select! {
                admission = self.connection.admit(decision, record) => Ok(admission),
                failed = complete => failed,
            }
        };
        timeout(limit, both).await.unwrap_or_else(|_| {
            self.connection.timed_out();
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

/// What the access log records of a ping.
pub(crate) const PING: Head<'static> =
    Head { method: "PING", target: "-", protocol: "ping-pong", host: None, headers: None };

/// Answers pings until the peer closes.
pub(crate) async fn serve_quic(
    connection: &Arc<Connection>,
    quic: &quinn::Connection,
    deadline: Instant,
    stop: &mut watch::Receiver<Stop>,
) {
    let mut pings = FuturesUnordered::new();
    let mut deadline = deadline;
    let mut last = false;
    loop {
        tokio::select! {
            accepted = quic.accept_bi(), if !last => match accepted {
                Ok(streams) => {
                    pings.push(response(connection, streams));
                    last = !connection.snapshot.keep_alive;
                }
                Err(_) => return,
            },
            Some(()) = pings.next(), if !pings.is_empty() => {
                // A copy of a first flight does not keep its connection permit for longer.
                if connection.is_complete() {
                    deadline = Instant::now() + connection.snapshot.limits.idle_timeout;
                }
            }
            now = next_stop(stop, last) => match now {
                Stop::Now => return,
                _ => last = true,
            },
            () = sleep_until(deadline.into()), if pings.is_empty() || !connection.is_complete() => {
                connection.timed_out();
                return;
            }
        }
        if last && pings.is_empty() {
            return;
        }
    }
}

async fn response(connection: &Arc<Connection>, streams: (SendStream, RecvStream)) {
    let (mut send, mut recv) = streams;
    let early = recv.is_0rtt() || !connection.is_complete() || connection.facts().lost_claim();
    let limits = &connection.snapshot.limits;
    match timeout(limits.header_timeout, recv.read_to_end(4)).await {
        Ok(Ok(ping)) if ping == b"PING" => {}
        _ => return drop(send.reset(VarInt::from_u32(0))),
    }
    // The policy does not apply to pings, which have no method and no path.
    let decision = early.then(|| connection.arrive(true)).flatten();
    let mut record = RequestRecord::begin(&connection.observer, &PING, decision.is_some());
    connection.note(decision, &mut record);
    match connection.admit(decision, &mut record).await {
        Admission::Run => {
            record.executed();
            if send.write_all(b"PONG").await.is_err() || send.finish().is_err() {
                return;
            }
            record.bytes(4);
            record.complete();
        }
        Admission::TooEarly | Admission::Busy | Admission::ConnectionEnded => {
            return drop(send.reset(VarInt::from_u32(0)));
        }
    }
    drop(record);
    // The connection must not be closed before the response has arrived.
    let _ = timeout(limits.idle_timeout, send.stopped()).await;
}
