//! The list of all scenarios.

mod clocks;
mod copies;
mod failover;
mod races;
mod store;

use std::sync::Mutex;

use crate::cluster::Cluster;
use crate::evaluation::{Row, evaluate};
use crate::kind::Kind;
use crate::plan::Plan;
use crate::run::Run;

/// A scenario, or several on one cluster.
pub(crate) struct Scenario {
    /// The test's name.
    pub(crate) name: &'static str,
    /// Whether only `make chaos` runs it.
    pub(crate) only_extended: bool,
    number: usize,
    run: fn(&Plan) -> Vec<Row>,
}

impl Scenario {
    /// Runs it, and keeps its rows for the table.
    ///
    /// # Errors
    /// All that is wrong.
    pub(crate) fn run(&self, plan: &Plan) -> Result<(), String> {
        let rows = (self.run)(plan);
        let faults: Vec<_> = rows.iter().flat_map(|row| row.faults.clone()).collect();
        ROWS.lock().unwrap().extend(rows.into_iter().map(|row| (self.number, row)));
        match faults.is_empty() {
            true => Ok(()),
            false => Err(faults.join("\n")),
        }
    }
}

/// The rows of all scenarios that have ended, each with its scenario's number.
pub(crate) static ROWS: Mutex<Vec<(usize, Row)>> = Mutex::new(Vec::new());

/// All scenarios.
pub(crate) fn all() -> Vec<Scenario> {
    let scenario = |name, only_extended, run| Scenario { name, only_extended, number: 0, run };
    let always = |name, run| scenario(name, false, run);
    let extended = |name, run| scenario(name, true, run);
    let mut all = vec![
        always("copies_execute_nothing", copies::shared),
        always("clocks_within_the_margin", clocks::within_the_margin),
        always("clocks_beyond_the_margin", clocks::beyond_the_margin),
        always("clock_set_back_and_forth", clocks::set_back),
        always("store_stopped", store::stopped),
        always("store_frozen", store::frozen),
        always("store_restarted_empty", store::restarted_empty),
        always("store_flushed", store::flushed),
        always("store_out_of_memory", store::out_of_memory),
        always("store_evicting", store::evicting),
        always("store_slow", store::slow),
        always("store_partitioned_from_one_node", store::partitioned),
        always("shard_restarted_empty", store::shard_restarted_empty),
        always("single_use_tickets", store::single_use),
        always("failover_to_a_lagging_replica", failover::lagging_replica),
        always("failover_and_the_old_master_returns", failover::old_master_returns),
        always("failover_with_acknowledged_claims", failover::acknowledged),
        always("a_copy_overtakes_its_original", races::overtaken),
        always("copies_abreast_of_their_original", races::concurrently),
        always("a_replica_behind_a_cut_lacks_what_came_last", failover::lag_is_real),
        always("without_a_store_copies_execute_nothing", copies::without_a_store),
        always("comparison_nginx", copies::nginx),
        extended("comparison_haproxy", copies::haproxy),
    ];
    for (number, scenario) in all.iter_mut().enumerate() {
        scenario.number = number;
    }
    all
}
