//! Sends the initial window in one burst.
//!
//! By RFC 9002 section 7.7 a sender paces its packets, but the first burst may be as large as the
//! initial window: ten datagrams, at most 14,720 bytes. quinn's pacer sends ten datagrams at once
//! and spreads the rest over a third of a second, because it does not know the round-trip time yet.
//! With datagrams of 1,200 bytes that is a burst of 12,000 bytes. A page of 10 KiB, the handshake
//! with a post-quantum key share, and tickets and tokens for the next connection need 13,200.
//!
//! The pacer derives its bucket from the window. [`BurstController`] therefore reports a larger window
//! at first, so that the bucket starts with the bytes of the initial window. It reports the real
//! window as soon as a batch of ten datagrams, quinn's largest, could exceed it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

/// RFC 9002 section 7.2: ten datagrams, limited to the larger of 14,720 or twice a datagram. quinn's
/// default is calculated for the smallest datagrams.
const INITIAL_WINDOW: u64 = 14_720;

/// The window for the pacer: its bucket holds what such a window sends in 2 ms at the assumed
/// initial round-trip time of 333 ms (RFC 9002 section 6.2.2).
const BURST_WINDOW: u64 = INITIAL_WINDOW * 333 / 2;

/// Maximum number of datagrams that quinn passes to the kernel at once.
const BATCH: u64 = 10;

/// CUBIC whose first burst is the whole initial window of 14,720 bytes, for
/// [`quinn_proto::TransportConfig::congestion_controller_factory`].
pub struct Burst(Arc<CubicConfig>);

struct BurstController {
    inner: Box<dyn Controller>,
    /// Bytes that may still be sent before the real window applies.
    burst_left: u64,
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
        let burst_left = INITIAL_WINDOW.saturating_sub(BATCH * u64::from(mtu)).max(1);
        let closing = Arc::default();
        Box::new(BurstController { inner: self.0.clone().build(now, mtu), burst_left, closing })
    }
}

/// Lets a CONNECTION_CLOSE leave even if the congestion window is full. Call it just before closing
/// the connection, with the connection's congestion controller. It has an effect on controllers of
/// [`Burst`] only.
///
/// quinn-proto up to 0.11.19 delays the close as if the waiting data had to be sent with it; a
/// closed connection processes no acknowledgements, so the window stays full (quinn #2785, fixed by
/// #2787, not released yet). A window above 2^32 also disables pacing.
pub fn make_room_for_close(controller: Box<dyn Controller>) {
    if let Ok(controller) = controller.into_any().downcast::<BurstController>() {
        controller.closing.store(true, Ordering::Relaxed);
    }
}

impl Controller for BurstController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.burst_left = self.burst_left.saturating_sub(bytes);
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
        match self.burst_left {
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
        Box::new(Self { inner, burst_left: self.burst_left, closing })
    }

    /// The window from which the pacer starts.
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
    fn make_room_for_close_acts_through_a_copy_of_the_controller() {
        let controller = Arc::new(Burst::default()).build(Instant::now(), 1200);
        assert_eq!(controller.window(), BURST_WINDOW);
        make_room_for_close(controller.clone_box());
        assert_eq!(controller.window(), u64::MAX);
    }
}
