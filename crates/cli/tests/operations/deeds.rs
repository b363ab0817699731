//! What the operator does.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Plan;
use crate::server::{Server, certify, configure, run};

/// What was done.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Deeds {
    pub(crate) reloads: usize,
    pub(crate) policies_changed: usize,
    pub(crate) certificates_replaced: usize,
    pub(crate) keys_rotated: usize,
    pub(crate) upgrades: usize,
    pub(crate) slowest_reload_ms: f64,
    pub(crate) upgrade_ms: f64,
}

impl Deeds {
    /// Does all of it, with the upgrade in the middle.
    pub(crate) fn all(plan: &Plan, server: &mut Server, dir: &Path) -> Self {
        let upstream = upstream_of(dir);
        let mut deeds = Self::default();
        thread::sleep(plan.pause);
        for step in 0..plan.reloads {
            let is_due = |wanted: usize| wanted > 0 && step % plan.reloads.div_ceil(wanted) == 0;
            if step % 2 == 1 {
                let policy = if step % 4 == 1 { "strict" } else { "permissive" };
                configure(dir, upstream, policy);
                deeds.policies_changed += 1;
            }
            if is_due(plan.certificates) {
                certify(dir);
                deeds.certificates_replaced += 1;
            }
            if is_due(plan.rotations) {
                run(&["keys", "rotate", dir.join("keys").to_str().unwrap()]);
                deeds.keys_rotated += 1;
            }
            let took = timed(|| server.reload());
            deeds.slowest_reload_ms = deeds.slowest_reload_ms.max(took);
            deeds.reloads += 1;
            if step == plan.reloads / 2 {
                deeds.upgrade_ms = timed(|| server.upgrade());
                deeds.upgrades += 1;
            }
            thread::sleep(plan.pause);
        }
        deeds
    }
}

fn timed(deed: impl FnOnce()) -> f64 {
    let began = Instant::now();
    deed();
    (began.elapsed().as_secs_f64() * 1e4).round() / 10.0
}

/// As the configuration has it.
fn upstream_of(dir: &Path) -> SocketAddr {
    let text = std::fs::read_to_string(dir.join("firstflight.toml")).unwrap();
    let (_, rest) = text.split_once("http://").unwrap();
    rest.split('"').next().unwrap().parse().unwrap()
}

/// From one look to the next.
pub(crate) const OFTEN: Duration = Duration::from_millis(500);
