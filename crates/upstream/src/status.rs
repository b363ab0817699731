use std::time::Duration;

use serde::Serialize;

use crate::ServerHealth;

/// A pool as it is now, for metrics and people.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its servers, in the order of the configuration.
    pub servers: Vec<ServerStatus>,
    /// Requests that were sent again.
    pub retries: u64,
    /// Requests that were not, because the budget was used up.
    pub retries_denied: u64,
    /// Requests that wait because every server has as many as it may.
    pub waiting: usize,
    /// Requests that waited for too long.
    pub turned_away: u64,
}

/// A server as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its address.
    pub address: String,
    /// What is thought of it.
    pub standing: ServerHealth,
    /// For how long.
    pub unchanged: Duration,
    /// Requests that are running, bodies of responses included.
    pub in_flight: usize,
    /// Connections that are kept, idle ones of HTTP/1.1 and all of HTTP/2.
    pub kept: usize,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests since the start.
    pub totals: Totals,
}

/// A server's requests since the start, by how they went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Sent, or tried to be.
    pub requests: u64,
    /// Answers by the first digit of their status, from 1 to 5.
    pub responses: [u64; 5],
    /// No connection.
    pub connect_failed: u64,
    /// On a kept connection that ended meanwhile.
    pub stale: u64,
    /// No response, or none that can be understood.
    pub broken: u64,
    /// Refused by the server before it did anything (HTTP/2).
    pub refused: u64,
    /// No response in time.
    pub timeouts: u64,
    /// Answers that the server broke off.
    pub bodies_broken: u64,
    /// Answers that stood still.
    pub bodies_stalled: u64,
    /// Requests that the client did not send to the end, and answers that it did not take to the
    /// end.
    pub abandoned: u64,
}
