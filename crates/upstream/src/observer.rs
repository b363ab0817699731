use std::time::{Duration, Instant};

use http::StatusCode;

/// Told of each try to have a request answered, when its head has come or it has failed.
pub trait Observer: Send + Sync {
    /// Must not block.
    fn attempt(&self, attempt: &Attempt<'_>);
}

/// One try.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// The server's address.
    pub server: &'a str,
    /// When it started.
    pub began: Instant,
    /// How long connecting took; `None`: over a kept connection.
    pub connected: Option<Duration>,
    /// How long it took, connecting included.
    pub took: Duration,
    /// The response's status, or [`crate::SendError::name`].
    pub result: Result<StatusCode, &'static str>,
}

/// Nobody wants to know.
impl Observer for () {
    fn attempt(&self, _: &Attempt<'_>) {}
}
