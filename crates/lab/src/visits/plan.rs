//! The plan of visits: cells, and runs of browsers that visit them.
//!
//! A block is one run of a browser with a fresh profile, with 0-RTT on or off. In it each server,
//! network, version of HTTP and page has a host name of its own, which is visited once without a
//! session and then several times with one. So each block brings first visits and returns of all
//! cells, turn about.

use firstflight_browser::Installed;
use firstflight_emulator::Profile;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::axes::Visiting;
use crate::paths::PlannedPath;
use crate::{Http, ServerKind, VisitPage};

/// What is visited: every combination of its axes, by every browser.
#[derive(Clone, Debug)]
pub struct VisitSet {
    /// The networks.
    pub profiles: Vec<Profile>,
    /// The servers.
    pub servers: Vec<ServerKind>,
    /// Versions of HTTP.
    pub http: Vec<Http>,
    /// The pages.
    pub pages: Vec<VisitPage>,
    /// How often each browser is started with 0-RTT off, and on.
    pub rounds: usize,
    /// Returns a round.
    pub returns: usize,
}

/// A cell of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// By its place among the browsers of the run.
    pub browser: usize,
    pub server: ServerKind,
    /// By its place among the networks.
    pub network: usize,
    pub http: Http,
    pub page: VisitPage,
    pub visiting: Visiting,
}

/// One run of a browser.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub browser: usize,
    /// 0-RTT.
    pub early: bool,
    /// Blocks with the same number follow each other closely: what disturbs one disturbs both.
    pub round: usize,
    /// What is visited, in this order.
    pub stops: Vec<Stop>,
}

/// A server on a network with a page, which has a host name of its own in each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub server: ServerKind,
    pub network: usize,
    pub http: Http,
    pub page: VisitPage,
    /// How often it is visited after the first time.
    pub returns: usize,
    /// Cells of the first visit and of the returns.
    pub first: usize,
    pub again: usize,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub networks: Vec<PlannedPath>,
    pub cells: Vec<Cell>,
    pub blocks: Vec<Block>,
    /// What cannot be visited, and why, a sentence each.
    pub left_out: Vec<String>,
}

impl Plan {
    pub(crate) fn new(browsers: &[Installed], sets: &[VisitSet], seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut plan = Self {
            networks: Vec::new(),
            cells: Vec::new(),
            blocks: Vec::new(),
            left_out: Vec::new(),
        };
        let rounds = sets.iter().map(|set| set.rounds).max().unwrap_or_default();
        for round in 0..rounds {
            for browser in 0..browsers.len() {
                let mut pair = [false, true].map(|early| {
                    let sets = sets.iter().filter(|set| set.rounds > round);
                    let stops = sets.flat_map(|set| plan.stops(set, browser, early));
                    let mut stops: Vec<Stop> = stops.collect();
                    stops.shuffle(&mut random);
                    Block { browser, early, round, stops }
                });
                pair.shuffle(&mut random);
                plan.blocks.extend(pair.into_iter().filter(|block| !block.stops.is_empty()));
            }
        }
        plan
    }

    /// Visits in all.
    pub(crate) fn visits(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.stops).map(|stop| 1 + stop.returns).sum()
    }

    fn network(&mut self, profile: &Profile) -> usize {
        let known = self.networks.iter().position(|path| path.profile == *profile);
        known.unwrap_or_else(|| {
            self.networks.push(PlannedPath::new(profile.clone()));
            self.networks.len() - 1
        })
    }

    /// The stops of a set for a block of this browser, with 0-RTT on or off.
    fn stops(&mut self, set: &VisitSet, browser: usize, early: bool) -> Vec<Stop> {
        let networks: Vec<usize> = set.profiles.iter().map(|p| self.network(p)).collect();
        let mut stops = Vec::new();
        for &http in &set.http {
            for &server in &set.servers {
                if let Err(why) = server.visited_over(http) {
                    let sentence = format!("{server} over HTTP/{}: {why}", http.name());
                    if !self.left_out.contains(&sentence) {
                        self.left_out.push(sentence);
                    }
                    continue;
                }
                for &network in &networks {
                    for &page in &set.pages {
                        let mut cell = |visiting| {
                            self.cell(Cell { browser, server, network, http, page, visiting })
                        };
                        let [first, off, on] = Visiting::ALL.map(&mut cell);
                        let (again, returns) = (if early { on } else { off }, set.returns);
                        stops.push(Stop { server, network, http, page, returns, first, again });
                    }
                }
            }
        }
        stops
    }

    fn cell(&mut self, cell: Cell) -> usize {
        self.cells.iter().position(|known| *known == cell).unwrap_or_else(|| {
            self.cells.push(cell);
            self.cells.len() - 1
        })
    }
}

impl VisitSet {
    /// How many rounds make so many returns a cell, and how many returns each has. An interval of
    /// a difference needs six rounds; a handful of visits is not worth so many starts.
    pub fn rounds(visits: usize) -> (usize, usize) {
        let rounds = match visits {
            0..=11 => 1,
            _ => visits.div_ceil(MAX_ROUND).max(MIN_ROUNDS),
        };
        (rounds, visits.div_ceil(rounds))
    }
}

const MIN_ROUNDS: usize = 6;
const MAX_ROUND: usize = 10;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use firstflight_browser::Make;

    use super::*;

    fn browsers() -> Vec<Installed> {
        let installed = |make| Installed { make, program: PathBuf::new(), version: String::new() };
        [Make::Firefox, Make::Chromium].map(installed).to_vec()
    }

    fn set(visits: usize) -> VisitSet {
        let (rounds, returns) = VisitSet::rounds(visits);
        VisitSet {
            profiles: vec![Profile::parse("walkthrough").unwrap()],
            servers: vec![ServerKind::Firstflight, ServerKind::Nginx],
            http: vec![Http::One],
            pages: vec![VisitPage::Small, VisitPage::Image],
            rounds,
            returns,
        }
    }

    fn returns(plan: &Plan, cell: usize) -> usize {
        let stops = plan.blocks.iter().flat_map(|block| &block.stops);
        stops.filter(|stop| stop.again == cell).map(|stop| stop.returns).sum()
    }

    #[test]
    fn every_return_is_made_as_often_as_asked_for() {
        let plan = Plan::new(&browsers(), &[set(30)], 1);
        assert_eq!(plan.cells.len(), 2 * 2 * 2 * 3);
        assert_eq!(plan.blocks.len(), 2 * 6 * 2);
        for (index, cell) in plan.cells.iter().enumerate() {
            let expected = if cell.visiting == Visiting::First { 0 } else { 30 };
            assert_eq!(returns(&plan, index), expected);
        }
        assert_eq!(plan.visits(), 24 * 4 * 6);
    }

    #[test]
    fn a_handful_of_visits_is_one_run_in_a_row() {
        let plan = Plan::new(&browsers()[..1], &[set(6)], 1);
        assert_eq!(plan.blocks.len(), 2);
        assert!(plan.blocks.iter().all(|block| block.stops.len() == 4));
        assert!(plan.blocks.iter().flat_map(|block| &block.stops).all(|stop| stop.returns == 6));
    }

    #[test]
    fn off_and_on_alternate_and_the_seed_orders_them() {
        let order = |seed| -> Vec<(usize, bool)> {
            let plan = Plan::new(&browsers(), &[set(30)], seed);
            plan.blocks.iter().map(|block| (block.browser, block.early)).collect()
        };
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
        for pair in order(5).chunks(2) {
            assert_eq!(pair[0].0, pair[1].0);
            assert_ne!(pair[0].1, pair[1].1);
        }
    }

    #[test]
    fn what_cannot_be_visited_is_left_out_with_the_reason() {
        let plan = Plan::new(&browsers(), &[VisitSet { http: vec![Http::Three], ..set(6) }], 1);
        assert_eq!(plan.left_out, ["nginx over HTTP/3: nginx speaks HTTP/3 since 1.25"]);
        assert!(plan.cells.iter().all(|cell| cell.server == ServerKind::Firstflight));
    }

    #[test]
    fn several_sets_share_the_runs_of_their_browsers() {
        let more = VisitSet { http: vec![Http::Two], pages: vec![VisitPage::Small], ..set(12) };
        let plan = Plan::new(&browsers(), &[set(30), more], 1);
        assert_eq!((plan.networks.len(), plan.blocks.len()), (1, 24));
        assert!(plan.blocks.iter().all(|block| block.stops.len() == 6));
    }
}
