//! The plan of visits: cells, and blocks of visits by a browser.
//!
//! A block is one run of a browser with a fresh profile, with 0-RTT on or off. In it each
//! combination of server, network, HTTP version and page has its own host name. It is visited once
//! without a session and then several times with one, in turn with all others. So each block
//! contains first visits and return visits of all cells.

use std::fmt;
use std::str::FromStr;

use firstflight_browser::Installed;
use firstflight_emulator::Profile;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::paths::PlannedPath;
use crate::{HttpVersion, LabError, ServerKind};

/// A set of visits: every browser visits every combination of its axes.
#[derive(Clone, Debug)]
pub struct VisitSet {
    /// The networks.
    pub profiles: Vec<Profile>,
    /// The servers.
    pub servers: Vec<ServerKind>,
    /// HTTP versions.
    pub http: Vec<HttpVersion>,
    /// The pages.
    pub pages: Vec<VisitPage>,
    /// How often each browser is started with 0-RTT off, and how often with 0-RTT on.
    pub rounds: usize,
    /// Return visits of each cell in a round.
    pub returns: usize,
}

/// A cell of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The index of the browser.
    pub browser: usize,
    pub server: ServerKind,
    /// The index of the network.
    pub network: usize,
    pub http: HttpVersion,
    pub page: VisitPage,
    pub visit_kind: VisitKind,
}

/// One run of a browser with a fresh profile.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub browser: usize,
    /// Whether 0-RTT is on.
    pub early: bool,
    /// The round. Blocks of the same round run close to each other, so that disturbances affect
    /// both.
    pub round: usize,
    /// The targets to visit, in this order.
    pub targets: Vec<VisitTarget>,
}

/// A page at a server on a network. It has its own host name in each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VisitTarget {
    pub server: ServerKind,
    pub network: usize,
    pub http: HttpVersion,
    pub page: VisitPage,
    /// The number of visits after the first.
    pub returns: usize,
    /// The cell of the first visit.
    pub first_cell: usize,
    /// The cell of the return visits.
    pub return_cell: usize,
}

/// The plan of all visits.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub networks: Vec<PlannedPath>,
    pub cells: Vec<Cell>,
    pub blocks: Vec<Block>,
    /// Why combinations of the axes are left out, a sentence each.
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
                    let targets = sets.flat_map(|set| plan.targets(set, browser, early));
                    let mut targets: Vec<VisitTarget> = targets.collect();
                    targets.shuffle(&mut random);
                    Block { browser, early, round, targets }
                });
                pair.shuffle(&mut random);
                plan.blocks.extend(pair.into_iter().filter(|block| !block.targets.is_empty()));
            }
        }
        plan
    }

    /// The number of visits.
    pub(crate) fn visits(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.targets).map(|target| 1 + target.returns).sum()
    }

    fn network(&mut self, profile: &Profile) -> usize {
        let known = self.networks.iter().position(|path| path.profile == *profile);
        known.unwrap_or_else(|| {
            self.networks.push(PlannedPath::new(profile.clone()));
            self.networks.len() - 1
        })
    }

    /// The targets of a set for a block of this browser, with 0-RTT on or off.
    fn targets(&mut self, set: &VisitSet, browser: usize, early: bool) -> Vec<VisitTarget> {
        let networks: Vec<usize> = set.profiles.iter().map(|p| self.network(p)).collect();
        let mut targets = Vec::new();
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
                        let mut cell = |visit_kind| {
                            self.cell(Cell { browser, server, network, http, page, visit_kind })
                        };
                        let [first_cell, off, on] = VisitKind::ALL.map(&mut cell);
                        let (return_cell, returns) = (if early { on } else { off }, set.returns);
                        targets.push(VisitTarget {
                            server,
                            network,
                            http,
                            page,
                            returns,
                            first_cell,
                            return_cell,
                        });
                    }
                }
            }
        }
        targets
    }

    fn cell(&mut self, cell: Cell) -> usize {
        self.cells.iter().position(|known| *known == cell).unwrap_or_else(|| {
            self.cells.push(cell);
            self.cells.len() - 1
        })
    }
}

impl VisitSet {
    /// The number of rounds for `visits` return visits of each cell, and the return visits in each
    /// round. A confidence interval needs six rounds; fewer than 12 visits make one round.
    pub fn rounds(visits: usize) -> (usize, usize) {
        let rounds = match visits {
            0..=11 => 1,
            _ => visits.div_ceil(MAX_RETURNS_PER_ROUND).max(MIN_ROUNDS),
        };
        (rounds, visits.div_ceil(rounds))
    }
}

const MIN_ROUNDS: usize = 6;
const MAX_RETURNS_PER_ROUND: usize = 10;

/// A page that browsers visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VisitPage {
    /// A page of 1 KiB without subresources.
    Small,
    /// A page with 20 subresources: a style sheet, three scripts and sixteen pictures.
    Resources,
    /// A picture of 1 MiB.
    Image,
}

impl VisitPage {
    /// All pages.
    pub const ALL: [Self; 3] = [Self::Small, Self::Resources, Self::Image];

    /// The name in tables and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Resources => "resources",
            Self::Image => "image",
        }
    }
}

impl fmt::Display for VisitPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for VisitPage {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let found = Self::ALL.into_iter().find(|page| page.name() == text);
        found.ok_or_else(|| LabError::UnknownPage {
            name: text.to_owned(),
            known: VisitPage::ALL.map(VisitPage::name).join(", "),
        })
    }
}

/// The kind of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum VisitKind {
    /// The browser has not visited the server before.
    First,
    /// A return visit with 0-RTT off.
    ReturnEarlyDataOff,
    /// A return visit with 0-RTT on.
    ReturnEarlyDataOn,
}

impl VisitKind {
    pub(crate) const ALL: [Self; 3] =
        [Self::First, Self::ReturnEarlyDataOff, Self::ReturnEarlyDataOn];

    /// The name in the record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::ReturnEarlyDataOff => "off",
            Self::ReturnEarlyDataOn => "on",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use firstflight_browser::BrowserKind;

    use super::*;

    fn browsers() -> Vec<Installed> {
        let installed = |kind| Installed { kind, program: PathBuf::new(), version: String::new() };
        [BrowserKind::Firefox, BrowserKind::Chromium].map(installed).to_vec()
    }

    fn set(visits: usize) -> VisitSet {
        let (rounds, returns) = VisitSet::rounds(visits);
        VisitSet {
            profiles: vec![Profile::parse("walkthrough").unwrap()],
            servers: vec![ServerKind::Firstflight, ServerKind::Nginx],
            http: vec![HttpVersion::One],
            pages: vec![VisitPage::Small, VisitPage::Image],
            rounds,
            returns,
        }
    }

    fn returns(plan: &Plan, cell: usize) -> usize {
        let targets = plan.blocks.iter().flat_map(|block| &block.targets);
        targets.filter(|target| target.return_cell == cell).map(|target| target.returns).sum()
    }

    #[test]
    fn every_cell_gets_the_requested_number_of_return_visits() {
        let plan = Plan::new(&browsers(), &[set(30)], 1);
        assert_eq!(plan.cells.len(), 2 * 2 * 2 * 3);
        assert_eq!(plan.blocks.len(), 2 * 6 * 2);
        for (index, cell) in plan.cells.iter().enumerate() {
            let expected = if cell.visit_kind == VisitKind::First { 0 } else { 30 };
            assert_eq!(returns(&plan, index), expected);
        }
        assert_eq!(plan.visits(), 24 * 4 * 6);
    }

    #[test]
    fn few_visits_make_one_round() {
        let plan = Plan::new(&browsers()[..1], &[set(6)], 1);
        assert_eq!(plan.blocks.len(), 2);
        assert!(plan.blocks.iter().all(|block| block.targets.len() == 4));
        assert!(
            plan.blocks.iter().flat_map(|block| &block.targets).all(|target| target.returns == 6)
        );
    }

    #[test]
    fn each_pair_of_blocks_has_0_rtt_off_and_on_in_seeded_order() {
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
    fn impossible_visits_are_left_out_with_the_reason() {
        let plan =
            Plan::new(&browsers(), &[VisitSet { http: vec![HttpVersion::Three], ..set(6) }], 1);
        let [left_out] = &plan.left_out[..] else { panic!("{:?}", plan.left_out) };
        assert!(left_out.starts_with("nginx over HTTP/3: nginx supports HTTP/3"), "{left_out}");
        assert!(plan.cells.iter().all(|cell| cell.server == ServerKind::Firstflight));
    }

    #[test]
    fn sets_share_the_blocks_of_their_browsers() {
        let more =
            VisitSet { http: vec![HttpVersion::Two], pages: vec![VisitPage::Small], ..set(12) };
        let plan = Plan::new(&browsers(), &[set(30), more], 1);
        assert_eq!((plan.networks.len(), plan.blocks.len()), (1, 24));
        assert!(plan.blocks.iter().all(|block| block.targets.len() == 6));
    }

    #[test]
    fn page_names_are_parsed_and_unknown_names_list_the_allowed_ones() {
        for page in VisitPage::ALL {
            assert_eq!(page.to_string().parse::<VisitPage>().unwrap(), page);
        }
        let refused = "large".parse::<VisitPage>().unwrap_err().to_string();
        assert!(VisitPage::ALL.iter().all(|page| refused.contains(page.name())), "{refused}");
    }
}
