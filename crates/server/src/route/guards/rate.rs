//! Limits the rate of requests of each client, by the generic cell rate algorithm (GCRA).
//!
//! `governor`, the usual crate for it, keeps every client in a map that only a sweep makes smaller.
//! Here the memory is bounded: above [`MAX_CLIENTS`], the least recently used clients are
//! forgotten, and may send a whole burst again.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use firstflight_config::RateLimit;
use quick_cache::sync::Cache;

/// The rate limit of one route.
pub(crate) struct RateLimiter {
    /// The time between two requests at the limit, in nanoseconds.
    interval: u64,
    /// How far a client may be ahead of the limit, in nanoseconds.
    tolerance: u64,
    /// When a client's next request would be exactly at the limit, in nanoseconds.
    next: Cache<IpAddr, Arc<AtomicU64>>,
}

/// About 10 MB.
const MAX_CLIENTS: usize = 65_536;

impl RateLimiter {
    pub(crate) fn new(limit: &RateLimit) -> Self {
        let interval = nanoseconds(limit.per) / u64::from(limit.requests.max(1));
        let burst = limit.burst.unwrap_or(limit.requests).max(1);
        Self {
            interval,
            tolerance: interval.saturating_mul(u64::from(burst) - 1),
            next: Cache::new(MAX_CLIENTS),
        }
    }

    /// Counts a request of a client at `now`, the time since any fixed moment.
    ///
    /// # Errors
    /// How long the client has to wait, if it is above the limit. The request does not count.
    pub(crate) fn count(&self, client: IpAddr, now: Duration) -> Result<(), Duration> {
        let now = nanoseconds(now);
        let next = match self.next.get(&key(client)) {
            Some(next) => next,
            None => {
                let new = || Ok::<_, std::convert::Infallible>(Arc::default());
                let Ok(next) = self.next.get_or_insert_with(&key(client), new);
                next
            }
        };
        let advance = |next: u64| {
            let next = next.max(now);
            (next - now <= self.tolerance).then_some(next.saturating_add(self.interval))
        };
        let counted = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
        counted.map(drop).map_err(|next| Duration::from_nanos(next - now - self.tolerance))
    }
}

/// The address that stands for a client: for IPv6 that of its /64 network, since a host usually has
/// all 2^64 addresses of one.
fn key(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(requests: u32, burst: Option<u32>) -> RateLimiter {
        RateLimiter::new(&RateLimit { requests, per: Duration::from_secs(1), burst })
    }

    fn client(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_applies() {
        let limiter = limiter(10, Some(3));
        let ann = client("192.0.2.1");
        let at = |ms: u64| Duration::from_millis(5000 + ms);
        for _ in 0..3 {
            assert_eq!(limiter.count(ann, at(0)), Ok(()));
        }
        assert_eq!(limiter.count(ann, at(0)), Err(Duration::from_millis(100)));
        assert_eq!(limiter.count(ann, at(60)), Err(Duration::from_millis(40)));
        assert_eq!(limiter.count(client("192.0.2.2"), at(60)), Ok(()));
        assert_eq!(limiter.count(ann, at(100)), Ok(()));
        assert!(limiter.count(ann, at(100)).is_err());
        // In the long run: one each 100 ms, whatever is tried between.
        let passed = (100..10_100).filter(|ms| limiter.count(ann, at(*ms)).is_ok()).count();
        assert_eq!(passed, 99);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_mapped_addresses_are_ipv4() {
        let limiter = limiter(1, None);
        assert!(limiter.count(client("2001:db8::1"), Duration::ZERO).is_ok());
        assert!(limiter.count(client("2001:db8::2"), Duration::ZERO).is_err());
        assert!(limiter.count(client("2001:db8:0:1::2"), Duration::ZERO).is_ok());
        assert!(limiter.count(client("192.0.2.1"), Duration::ZERO).is_ok());
        assert!(limiter.count(client("::ffff:192.0.2.1"), Duration::ZERO).is_err());
    }

    #[test]
    fn memory_is_bounded() {
        let limiter = limiter(1, None);
        for index in 0..3 * MAX_CLIENTS as u32 {
            let _ = limiter.count(IpAddr::from(index.to_be_bytes()), Duration::ZERO);
        }
        assert!(limiter.next.len() <= MAX_CLIENTS);
    }
}
