//! Ping-pong over QUIC: `PONG` for the `PING` of each stream, to measure round trips.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use crate::handshake::quic::next_stop;
use crate::http::connection::{Admission, Connection};
use crate::http::ping_pong::PING;
use crate::observe::request::RequestRecord;
use crate::server::Stop;

/// Answers pings until the peer closes.
pub(crate) async fn serve(
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
                    pings.push(answer(connection, streams));
                    last = !connection.snapshot.keep_alive;
                }
                Err(_) => return,
            },
            Some(()) = pings.next(), if !pings.is_empty() => {
                // A copy of a first flight does not keep its place longer for its answer.
                if connection.is_complete() {
                    deadline = Instant::now() + connection.snapshot.limits.idle_timeout;
                }
            }
            now = next_stop(stop, last) => match now {
                Stop::Now => return,
                _ => last = true,
            },
            () = sleep_until(deadline.into()), if pings.is_empty() || !connection.is_complete() => {
                connection.visit.timed_out();
                return;
            }
        }
        if last && pings.is_empty() {
            return;
        }
    }
}

async fn answer(connection: &Arc<Connection>, streams: (SendStream, RecvStream)) {
    let (mut send, mut recv) = streams;
    let early = recv.is_0rtt() || !connection.is_complete() || connection.lost_claim();
    let limits = &connection.snapshot.limits;
    match timeout(limits.header_timeout, recv.read_to_end(4)).await {
        Ok(Ok(ping)) if ping == b"PING" => {}
        _ => return drop(send.reset(VarInt::from_u32(0))),
    }
    // The policy does not look at pings: they have no method and no path.
    let decision = early.then(|| connection.arrive(true)).flatten();
    let mut record = RequestRecord::begin(connection, &PING, decision.is_some());
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
        Admission::TooEarly | Admission::Busy | Admission::Gone => {
            return drop(send.reset(VarInt::from_u32(0)));
        }
    }
    drop(record);
    // The connection is not to be closed before it has arrived.
    let _ = timeout(limits.idle_timeout, send.stopped()).await;
}
