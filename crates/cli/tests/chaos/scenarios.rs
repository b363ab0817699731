//! The scenarios, a function each, and what each of them is run on.

mod clocks;
mod copies;
mod failover;
mod races;
mod store;

use std::sync::Mutex;

use crate::cluster::Cluster;
use crate::kind::Kind;
use crate::plan::Plan;
use crate::run::Run;
use crate::verdict::{Row, judge};

/// A scenario, or several on one cluster.
pub(crate) struct Scenario {
    /// The test's name.
    pub(crate) name: &'static str,
    /// Whether `make chaos` alone runs it.
    pub(crate) only_extended: bool,
    /// Whether the nodes share a store.
    pub(crate) needs_store: bool,
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
    let new = |name, only_extended, needs_store, run| Scenario {
        name,
        only_extended,
        needs_store,
        number: 0,
        run,
    };
    let with = |name, run| new(name, false, true, run);
    let without = |name, only_extended, run| new(name, only_extended, false, run);
    let mut all = vec![
        with("copies_execute_nothing", copies::shared),
        with("clocks_within_the_margin", clocks::within_the_margin),
        with("clocks_beyond_the_margin", clocks::beyond_the_margin),
        with("clock_set_back_and_forth", clocks::set_back),
        with("store_stopped", store::stopped),
        with("store_frozen", store::frozen),
        with("store_restarted_empty", store::restarted_empty),
        with("store_flushed", store::flushed),
        with("store_out_of_memory", store::out_of_memory),
        with("store_evicting", store::evicting),
        with("store_slow", store::slow),
        with("store_partitioned_from_one_node", store::partitioned),
        with("shard_restarted_empty", store::shard_restarted_empty),
        with("failover_to_a_lagging_replica", failover::lagging_replica),
        with("failover_and_the_old_master_returns", failover::old_master_returns),
        with("a_copy_overtakes_its_original", races::overtaken),
        with("copies_abreast_of_their_original", races::abreast),
        without("a_replica_behind_a_cut_lacks_what_came_last", false, failover::lag_is_real),
        without("without_a_store_copies_are_executed", false, copies::without_a_store),
        without("comparison_nginx", true, copies::nginx),
        without("comparison_haproxy", true, copies::haproxy),
    ];
    for (number, scenario) in all.iter_mut().enumerate() {
        scenario.number = number;
    }
    all
}
