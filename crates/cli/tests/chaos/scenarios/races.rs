//! The attacker delays an original. Its client may get 425 (Too Early), which means that a copy has
//! overtaken the original.

use std::time::Duration;

use super::{Plan, Row};
use crate::attacker::resend;
use crate::cluster::ALL;
use crate::runtime;
use crate::stage::{Setup, Stage};

/// Copies arrive first, and the original when they are done.
pub(super) fn overtaken(plan: &Plan) -> Vec<Row> {
    race("copy_overtakes", plan, false)
}

/// Copies and original arrive at the same time.
pub(super) fn concurrently(plan: &Plan) -> Vec<Row> {
    race("copies_abreast", plan, true)
}

fn race(name: &'static str, plan: &Plan, at_once: bool) -> Vec<Row> {
    let stage = Stage::single(name, plan, &Setup::of(plan));
    let run = stage.run.clone();
    for number in 0..run.size() {
        let node = number % ALL.len();
        let held = run.clients().recorders[node].hold_next();
        runtime().block_on(async {
            let original = tokio::spawn({
                let run = run.clone();
                async move { run.request(node).await }
            });
            let (flight, release) = held.flight().await;
            let mut release = Some(release);
            if at_once {
                let _ = release.take().map(|release| release.send(()));
                // A head start that varies, so that sometimes the original wins and sometimes a
                // copy.
                tokio::time::sleep(Duration::from_millis(number as u64 % 2)).await;
            }
            let nodes =
                ALL.iter().cycle().take(COPIES).filter_map(|node| run.clients().address(*node));
            let flight: std::sync::Arc<[u8]> = flight.into();
            let copies: Vec<_> = nodes.map(|node| (node, flight.clone())).collect();
            run.count(resend(copies, COPIES, false).await);
            let _ = release.map(|release| release.send(()));
            original.await.unwrap();
        });
    }
    let overtaken = run.counts(|counts| counts.too_early);
    assert!(at_once || overtaken > 0, "{name}: no client got 425");
    vec![stage.end(&[])]
}

/// Copies that race each original.
const COPIES: usize = 6;
