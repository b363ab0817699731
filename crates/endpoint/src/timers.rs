//! The timers of connections.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn_proto::ConnectionHandle;
use tokio::time::{Sleep, sleep_until};

/// The timers of an endpoint's connections, on one timer of tokio. Each connection has one entry at
/// most.
///
/// A connection's deadline moves with almost every packet, mostly to a later time. An entry moves only
/// to an earlier time: if it expires before the deadline, the connection is entered again.
pub(crate) struct Timers {
    entries: BTreeSet<(Instant, usize)>,
    sleep: Pin<Box<Sleep>>,
    /// When `sleep` ends, unless it has ended.
    armed: Option<Instant>,
}

impl Timers {
    pub(crate) fn new() -> Self {
        let sleep = Box::pin(sleep_until(Instant::now().into()));
        Self { entries: BTreeSet::new(), sleep, armed: None }
    }

    /// Enters a connection's deadline unless it is later than its entry, which is at `entered`.
    pub(crate) fn advance(
        &mut self,
        connection: ConnectionHandle,
        entered: &mut Option<Instant>,
        deadline: Instant,
    ) {
        if entered.is_some_and(|entered| entered <= deadline) {
            return;
        }
        self.remove(connection, entered);
        self.entries.insert((deadline, connection.0));
        *entered = Some(deadline);
    }

    /// Removes a connection's entry, which is at `entered`.
    pub(crate) fn remove(&mut self, connection: ConnectionHandle, entered: &mut Option<Instant>) {
        if let Some(entered) = entered.take() {
            self.entries.remove(&(entered, connection.0));
        }
    }

    /// Removes the next entry whose time has come.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<ConnectionHandle> {
        let (at, connection) = *self.entries.first()?;
        if at > now {
            return None;
        }
        self.entries.pop_first();
        Some(ConnectionHandle(connection))
    }

    /// Ready when the time of an entry has come.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((next, _)) = self.entries.first() else { return Poll::Pending };
        if self.armed.is_none_or(|armed| *next < armed) {
            self.armed = Some(*next);
            self.sleep.as_mut().reset((*next).into());
        }
        let polled = self.sleep.as_mut().poll(cx);
        if polled.is_ready() {
            self.armed = None;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_connection_has_one_entry_at_its_earliest_deadline() {
        let (mut timers, mut entered) = (Timers::new(), None);
        let (connection, start) = (ConnectionHandle(3), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (deadline, expected) in [(30, 30), (1, 1), (30, 1), (2, 1)] {
            timers.advance(connection, &mut entered, at(deadline));
            assert_eq!((entered, timers.entries.len()), (Some(at(expected)), 1));
        }
        assert_eq!(timers.expired(start), None);
        assert_eq!(timers.expired(at(1)), Some(connection));
        assert_eq!(timers.expired(at(60)), None);
        entered = None;
        timers.advance(connection, &mut entered, at(30));
        timers.remove(connection, &mut entered);
        assert_eq!((entered, timers.entries.len()), (None, 0));
    }
}
