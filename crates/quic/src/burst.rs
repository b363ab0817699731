//! The initial window in one burst.
//!
//! RFC 9002 section 7.7 has a sender pace its packets, and lets the first burst be as large as the
//! initial window: ten datagrams, at most 14,720 bytes. quinn's pacer lets ten datagrams through
//! and spreads the rest over a third of a second, since it knows nothing of the path's round trip.
//! At 1,200 bytes a datagram that is 12,000 bytes. A page of 10 KiB, the handshake with a
//! post-quantum key share, and tickets and tokens for the next connection are 13,200.
//!
//! The pacer sets its bucket by the window. So it is told a larger one at first, and its bucket
//! starts with the initial window's bytes. The window is as it should be as soon as a batch of ten
//! datagrams, quinn's largest, could go beyond it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

/// RFC 9002 section 7.2: ten datagrams, limited to the larger of 14,720 or twice a datagram. The
/// library's default is what fits ten of the smallest.
const INITIAL_WINDOW: u64 = 14_720;

/// For the pacer, whose bucket is what such a window lets through in 2 ms, at the 333 ms that a
/// round trip is taken for before it is known (RFC 9002 section 6.2.2).
const BURST_WINDOW: u64 = INITIAL_WINDOW * 333 / 2;

/// Datagrams that quinn gives to the kernel at once.
const BATCH: u64 = 10;

/// CUBIC whose first burst is the initial window, 14,720 bytes: for
/// [`quinn_proto::TransportConfig::congestion_controller_factory`].
pub struct Burst(Arc<CubicConfig>);

struct Bursting {
    inner: Box<dyn Controller>,
    /// Bytes that still may be sent before the window counts.
    before: u64,
    /// Whether the connection is about to be closed; shared with copies of this state.
    closing: Arc<AtomicBool>,
}

impl Default for Burst {
    fn default() -> Self {
        let mut cubic = CubicConfig::default();
        cubic.initial_window(INITIAL_WINDOW);
        Self(Arc::new(cubic))
    }
}

impl ControllerFactory for Burst {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let before = INITIAL_WINDOW.saturating_sub(BATCH * u64::from(mtu)).max(1);
        let closing = Arc::default();
        Box::new(Bursting { inner: self.0.clone().build(now, mtu), before, closing })
    }
}

/// Lets a CONNECTION_CLOSE leave though the congestion window is full: call it just before the
/// connection is closed, with its state of congestion control. Only one of [`Burst`] is changed.
///
/// quinn-proto up to 0.11.19 holds the close back as if the data that waits were to be sent with
/// it; once closed it takes no acknowledgement any more, and the window stays full (quinn #2785,
/// fixed by #2787, of which there is no release yet). A window above 2^32 is not paced either.
pub fn make_room_for_close(controller: Box<dyn Controller>) {
    if let Ok(bursting) = controller.into_any().downcast::<Bursting>() {
        bursting.closing.store(true, Ordering::Relaxed);
    }
}

impl Controller for Bursting {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.before = self.before.saturating_sub(bytes);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        match self.before {
            _ if self.closing.load(Ordering::Relaxed) => u64::MAX,
            0 => self.inner.window(),
            _ => BURST_WINDOW,
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, closing) = (self.inner.clone_box(), self.closing.clone());
        Box::new(Self { inner, before: self.before, closing })
    }

    /// What the pacer starts with.
    fn initial_window(&self) -> u64 {
        BURST_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_closes_has_room_by_a_copy_of_its_state() {
        let controller = Arc::new(Burst::default()).build(Instant::now(), 1200);
        assert_eq!(controller.window(), BURST_WINDOW);
        make_room_for_close(controller.clone_box());
        assert_eq!(controller.window(), u64::MAX);
    }
}
