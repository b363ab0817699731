//! Simulates which share of returning clients reaches the node that issued their ticket, behind a load
//! balancer that hashes client addresses (layer 4). Punctured keys are in one node's memory, so the
//! others make a full handshake.
//!
//! `returns [SEED]` (default 1) prints a row for each combination of nodes, address churn and node
//! churn. A client returns after an exponentially distributed time with a mean of two hours, and a
//! ticket lives for twelve. A *restart* loses a node's keys; an upgrade hands them over, and is not a
//! restart. A *resize* adds or removes one node. With rendezvous hashing it moves one client in N, where
//! N is the number of nodes; with a hash modulo N it moves nearly all.

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// Returning clients for each row.
const RETURNS: u32 = 200_000;
const MEAN_PAUSE_HOURS: f64 = 2.0;
const LIFETIME_HOURS: f64 = 12.0;

/// How the load balancer chooses a node.
#[derive(Clone, Copy, Debug)]
enum Balancer {
    Rendezvous,
    Modulo,
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    nodes: u64,
    /// The share of returns from another address: another network, or a new address of the provider.
    new_address: f64,
    /// How often each node restarts, in hours; infinite: never.
    restart_hours: f64,
    /// How often a node is added or removed, in hours.
    resize_hours: f64,
    balancer: Balancer,
}

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |seed| seed.parse().expect("a number"));
    let mut random = StdRng::seed_from_u64(seed);
    println!("seed {seed}; {RETURNS} returns a row; share that reaches the keys of its ticket\n");
    println!(
        "{:>5} {:>12} {:>11} {:>11} {:>12} {:>8}",
        "nodes", "new address", "restarts", "resizes", "rendezvous", "modulo"
    );
    let never = f64::INFINITY;
    for nodes in [3, 16, 100] {
        for new_address in [0.0, 0.1, 0.3, 0.6] {
            for (restart_hours, resize_hours) in
                [(never, never), (168.0, never), (24.0, never), (168.0, 24.0), (168.0, 1.0)]
            {
                let share = [Balancer::Rendezvous, Balancer::Modulo].map(|balancer| {
                    let setting =
                        Setting { nodes, new_address, restart_hours, resize_hours, balancer };
                    setting.share(&mut random)
                });
                println!(
                    "{nodes:>5} {:>10.0} % {:>11} {:>11} {:>10.1} % {:>6.1} %",
                    100.0 * new_address,
                    every(restart_hours),
                    every(resize_hours),
                    100.0 * share[0],
                    100.0 * share[1],
                );
            }
        }
    }
}

impl Setting {
    /// The share of returns within the lifetime of their tickets that reach the keys.
    fn share(self, random: &mut StdRng) -> f64 {
        let (mut returns, mut reached) = (0, 0);
        while returns < RETURNS {
            let pause = exponential(random, MEAN_PAUSE_HOURS);
            if pause <= LIFETIME_HOURS {
                returns += 1;
                reached += u32::from(self.reaches(random, pause));
            }
        }
        f64::from(reached) / f64::from(returns)
    }

    /// Whether one client that returns after `pause` hours reaches its node, and the node has not lost
    /// its keys.
    fn reaches(self, random: &mut StdRng, pause: f64) -> bool {
        if exponential(random, self.restart_hours) < pause {
            return false;
        }
        let address: u64 = random.random();
        let mut nodes: Vec<u64> = (0..self.nodes).collect();
        let issuer = self.balancer.choose(&nodes, address);
        let mut at = exponential(random, self.resize_hours);
        while at < pause {
            // Adds and removes in turn, so that the number stays about the same.
            match nodes.len() as u64 <= self.nodes {
                true => nodes.push(random.random()),
                false => drop(nodes.swap_remove(random.random_range(0..nodes.len()))),
            }
            at += exponential(random, self.resize_hours);
        }
        let address = if random.random_bool(self.new_address) { random.random() } else { address };
        self.balancer.choose(&nodes, address) == issuer
    }
}

impl Balancer {
    fn choose(self, nodes: &[u64], address: u64) -> u64 {
        match self {
            Self::Modulo => nodes[(hash(address) % nodes.len() as u64) as usize],
            Self::Rendezvous => {
                let weight = |node: &&u64| hash(address ^ hash(**node));
                *nodes.iter().max_by_key(weight).expect("there are nodes")
            }
        }
    }
}

/// An exponentially distributed time with this mean.
fn exponential(random: &mut impl Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}

/// A hash of 64 bits: the finalizer of SplitMix64.
fn hash(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn every(hours: f64) -> String {
    match hours {
        hours if hours.is_infinite() => "never".to_owned(),
        hours => format!("each {hours:.0} h"),
    }
}
