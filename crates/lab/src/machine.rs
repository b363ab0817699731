use std::thread;
use std::time::Duration;

use firstflight_emulator::{Backend, Network, NetworkConfig};
use firstflight_report::LinkFacts;
use procfs::{CurrentSI as _, KernelStats};

/// How the link kept its times so far, and what it is made of.
pub(crate) fn link_facts(network: &Network, keep_awake: bool) -> LinkFacts {
    let lateness = network.lateness();
    let defaults = NetworkConfig::new(Vec::new());
    LinkFacts {
        backend: match network.backend() {
            Backend::PacketRings => "packet rings".to_owned(),
            Backend::Tun => "TUN".to_owned(),
        },
        congestion_control: defaults.congestion_control,
        initial_window: defaults.initial_window,
        packets: lateness.packets,
        lateness_p50_us: lateness.p50_ns as f64 / 1e3,
        lateness_p99_us: lateness.p99_ns as f64 / 1e3,
        lateness_max_us: lateness.max_ns as f64 / 1e3,
        refused_settings: network.refused_settings().to_vec(),
        keep_awake,
        calibrations: Vec::new(),
    }
}

/// Whether the machine has little else to do: its processors were idle for most of a short look.
pub(crate) fn is_idle() -> bool {
    let Some(before) = ticks() else { return false };
    thread::sleep(LOOK);
    let Some(after) = ticks() else { return false };
    let (idle, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    idle as f64 >= MOSTLY * all.max(1) as f64
}

const LOOK: Duration = Duration::from_millis(500);
const MOSTLY: f64 = 0.8;

/// Idle and all ticks of all processors since the machine started.
fn ticks() -> Option<(u64, u64)> {
    let total = KernelStats::current().ok()?.total;
    let idle = total.idle + total.iowait?;
    // Guest times are within user and nice.
    let busy = total.user + total.nice + total.system + total.irq? + total.softirq? + total.steal?;
    Some((idle, idle + busy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ticks_are_told_from_all() {
        let (idle, all) = ticks().unwrap();
        assert!(0 < idle && idle < all, "{idle} of {all}");
    }
}
