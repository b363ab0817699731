//! The actions of the operator.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Plan;
use crate::server::{Server, run, write_certificate, write_configuration};

/// Counts and durations of the actions.
#[derive(Debug, Default, Serialize)]
pub(crate) struct OperatorActions {
    pub(crate) reloads: usize,
    pub(crate) policies_changed: usize,
    pub(crate) certificates_replaced: usize,
    pub(crate) keys_rotated: usize,
    pub(crate) upgrades: usize,
    pub(crate) slowest_reload_ms: f64,
    pub(crate) upgrade_ms: f64,
}

impl OperatorActions {
    /// Runs all actions, with the upgrade in the middle.
    pub(crate) fn all(plan: &Plan, server: &mut Server, dir: &Path) -> Self {
        let upstream = upstream_of(dir);
        let mut actions = Self::default();
        thread::sleep(plan.pause);
        for step in 0..plan.reloads {
            let is_due = |count: usize| count > 0 && step % plan.reloads.div_ceil(count) == 0;
            if step % 2 == 1 {
                let policy = if step % 4 == 1 { "strict" } else { "permissive" };
                write_configuration(dir, upstream, policy);
                actions.policies_changed += 1;
            }
            if is_due(plan.certificates) {
                write_certificate(dir);
                actions.certificates_replaced += 1;
            }
            if is_due(plan.rotations) {
                run(&["keys", "rotate", dir.join("keys").to_str().unwrap()]);
                actions.keys_rotated += 1;
            }
            let millis = timed(|| server.reload());
            actions.slowest_reload_ms = actions.slowest_reload_ms.max(millis);
            actions.reloads += 1;
            if step == plan.reloads / 2 {
                actions.upgrade_ms = timed(|| server.upgrade());
                actions.upgrades += 1;
            }
            thread::sleep(plan.pause);
        }
        actions
    }
}

fn timed(action: impl FnOnce()) -> f64 {
    let started = Instant::now();
    action();
    (started.elapsed().as_secs_f64() * 1e4).round() / 10.0
}

/// Reads the upstream from the configuration.
fn upstream_of(dir: &Path) -> SocketAddr {
    let text = std::fs::read_to_string(dir.join("firstflight.toml")).unwrap();
    let (_, rest) = text.split_once("http://").unwrap();
    rest.split('"').next().unwrap().parse().unwrap()
}

pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);
