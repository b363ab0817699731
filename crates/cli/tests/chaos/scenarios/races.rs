//! The attacker holds an original back. Its client may be told 425 (Too Early), which says that a
//! copy has overtaken it.

use std::time::Duration;

use super::{Plan, Row};
use crate::attacker::resend;
use crate::cluster::ALL;
use crate::runtime;
use crate::stage::{Setup, Stage};

/// Copies come first, and the original when they are done.
pub(super) fn overtaken(plan: &Plan) -> Vec<Row> {
    race("copy_overtakes", plan, false)
}

/// Copies and original come at once.
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
                // A head start, so that now the one wins and now the other.
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
    assert!(at_once || overtaken > 0, "{name}: the client is told");
    vec![stage.end(&[])]
}

/// Copies of each that race it.
const COPIES: usize = 6;
