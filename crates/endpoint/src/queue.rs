//! Connections that wait for the driver.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::connection::Inner;

/// The connections that have something to send, and the driver's waker while it sleeps.
#[derive(Default)]
pub(crate) struct Queue {
    connections: Vec<Arc<Inner>>,
    driver: Option<Waker>,
}

impl Queue {
    /// Adds a connection and wakes the driver.
    pub(crate) fn push(&mut self, connection: Arc<Inner>) {
        self.connections.push(connection);
        self.wake();
    }

    /// Wakes the driver.
    pub(crate) fn wake(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Moves all connections to the end of `due`.
    pub(crate) fn take(&mut self, due: &mut Vec<Arc<Inner>>) {
        if due.is_empty() {
            mem::swap(&mut self.connections, due);
        } else {
            due.append(&mut self.connections);
        }
    }

    /// Lets the driver sleep until a connection is added. Returns false if there is one already.
    pub(crate) fn sleep(&mut self, cx: &Context<'_>) -> bool {
        self.driver = Some(cx.waker().clone());
        self.connections.is_empty()
    }
}
