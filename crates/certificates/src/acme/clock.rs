//! Times as this crate has them: seconds since 1970 by this machine's clock.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn now() -> i64 {
    unix(SystemTime::now())
}

pub(crate) fn unix(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// For people (RFC 3339).
pub(crate) fn when(at: i64) -> String {
    jiff::Timestamp::from_second(at).map_or_else(|_| at.to_string(), |at| at.to_string())
}
