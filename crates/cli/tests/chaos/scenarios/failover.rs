//! The store's master is replaced by a replica that has not seen the last claims.

use std::process::Command;
use std::time::Duration;

use super::{Plan, Row};
use crate::cluster::ALL;
use crate::pipe::Pipe;
use crate::stage::{Stage, Store, Times, WINDOW};

/// The master dies.
pub(super) fn lagging_replica(plan: &Plan) -> Vec<Row> {
    failover("failover_lagging", plan, |stage| stage.process().kill(), |_| {})
}

/// The master stands still, is replaced, and comes back in the belief that it is the master.
pub(super) fn old_master_returns(plan: &Plan) -> Vec<Row> {
    let freeze = |stage: &mut Stage| stage.process().freeze();
    failover("old_master_returns", plan, freeze, |stage| stage.process().thaw())
}

fn failover(
    name: &'static str,
    plan: &Plan,
    lose: impl FnOnce(&mut Stage),
    then: impl FnOnce(&mut Stage),
) -> Vec<Row> {
    let mut stage = Stage::sentinels(name, plan, Times::of(plan));
    let run = stage.run.clone();
    // Kept, as the replica's connection ends with it.
    let _lag = lag(&stage);
    run.flights(FLIGHTS, &ALL);
    let storm = run.storm();
    lose(&mut stage);
    let Store::Sentinels(store) = &stage.store else { unreachable!("a stage with sentinels") };
    store.wait_for_master(1);
    run.copies(0.3, &ALL);
    then(&mut stage);
    run.copies(0.2, &ALL);
    storm.until_taken(20, WINDOW);
    storm.end();
    vec![stage.end(&["store_window"])]
}

/// From now on nothing that the master records reaches the replica. A replica that is stopped would
/// not do: what its kernel has received for it, it reads when it goes on.
fn lag(stage: &Stage) -> Pipe {
    let Store::Sentinels(store) = &stage.store else { unreachable!("a stage with sentinels") };
    for (_, port) in store.addresses() {
        // A sentinel leads a replica that follows by another address back, after this time.
        let set = ["sentinel", "set", firstflight_rig::MASTER_NAME, "failover-timeout", "20000"];
        let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(set).output();
        assert!(output.unwrap().stdout.starts_with(b"OK"), "the sentinel takes the setting");
    }
    let (master, replica) = (&store.stores[0], &store.stores[1]);
    let pipe = Pipe::to(master.tcp().1);
    replica.ask(&["replicaof", "127.0.0.1", &pipe.port().to_string()]);
    let up = || replica.ask(&["info", "replication"]).contains("master_link_status:up");
    assert!(crate::process::until(up), "the replica follows by the pipe");
    std::thread::sleep(Duration::from_millis(200));
    pipe.cut();
    pipe
}

/// Flights before the failover, which the replica does not know.
const FLIGHTS: usize = 20;
