//! Connections that wait for the driver.

use std::sync::Arc;
use std::task::{Context, Waker};

use crate::connection::Inner;

/// The connections that have something to send, and the driver's waker while it sleeps.
#[derive(Default)]
pub(crate) struct Queue {
    connections: Vec<Arc<Inner>>,
    driver: Option<Waker>,
    /// Whether the driver has ended. Connections hold the queue, so a closed queue must not hold any.
    is_closed: bool,
}

impl Queue {
    /// Adds a connection and wakes the driver.
    pub(crate) fn push(&mut self, connection: Arc<Inner>) {
        if !self.is_closed {
            self.connections.push(connection);
            self.wake();
        }
    }

    /// Called when the driver has ended.
    pub(crate) fn close(&mut self) -> Vec<Arc<Inner>> {
        self.is_closed = true;
        std::mem::take(&mut self.connections)
    }

    /// Wakes the driver.
    pub(crate) fn wake(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Moves all connections to the end of `due`.
    pub(crate) fn take(&mut self, due: &mut Vec<Arc<Inner>>) {
        due.append(&mut self.connections);
    }

    /// Lets the driver sleep until a connection is added. Returns false if there is one already.
    pub(crate) fn sleep(&mut self, cx: &Context<'_>) -> bool {
        self.driver = Some(cx.waker().clone());
        self.connections.is_empty()
    }
}
