//! A cell as it is asked for: what a profile says, checked and built.

use std::fmt;
use std::time::Duration;

use super::bursty_loss::BurstyLoss;
use super::delay::Delay;
use super::jitter::Jitter;
use super::loss::Loss;
use super::mtu::Mtu;
use super::rate::Rate;
use super::reconfiguration::Reconfiguration;
use super::reorder::Reorder;
use super::{Cell, Distribution, Middlebox, TooBig};
use crate::LinkError;

/// One cell of one direction of a path. Packets take the cells of a direction in their order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CellSpec {
    /// The same delay for each packet.
    Delay {
        /// One way.
        delay: Duration,
    },
    /// A delay that varies.
    Jitter {
        /// What the distribution lies around.
        delay: Duration,
        /// How far from it.
        distribution: Distribution,
        /// How long a draw holds; zero: each packet has its own. Order being kept, packets side by
        /// side would otherwise all wait for the slowest of them.
        hold: Duration,
        /// Whether packets may overtake each other. Usually not: a longer delay holds up those
        /// behind it.
        overtakes: bool,
    },
    /// A bottleneck with a drop-tail queue.
    Rate {
        /// Megabits (10^6) a second of IP packets: headers of IP and TCP count, Ethernet's do not.
        mbits: f64,
        /// How many bytes may wait, that being sent included. See
        /// [`CellSpec::default_queue_bytes`].
        queue_bytes: u64,
        /// How many bytes may pass at once after idle time.
        burst_bytes: u64,
    },
    /// Loss of each packet by itself.
    Loss {
        /// From 0 to 1.
        probability: f64,
    },
    /// Loss in bursts: a good and a bad state (Gilbert and Elliott). The share of packets in the
    /// bad state is `enter / (enter + leave)`, and it lasts `1 / leave` packets.
    BurstyLoss {
        /// Probability that a packet turns the good state bad.
        enter: f64,
        /// Probability that a packet turns the bad state good.
        leave: f64,
        /// Loss in the good state.
        good_loss: f64,
        /// Loss in the bad state.
        bad_loss: f64,
    },
    /// Some packets are held back, so that later ones overtake them.
    Reorder {
        /// Share of the packets, from 0 to 1.
        probability: f64,
        /// How long.
        by: Duration,
    },
    /// A hop that carries no larger IP packets.
    Mtu {
        /// Bytes of the largest IP packet that passes, from 576 (RFC 791) to 1500.
        bytes: u16,
        /// What becomes of larger ones.
        too_big: TooBig,
    },
    /// A delay drawn anew at fixed intervals, for both directions of a path together.
    Reconfiguration {
        /// What the distribution lies around, one way.
        delay: Duration,
        /// How far from it, one way.
        distribution: Distribution,
        /// Length of an interval. They begin at multiples of it since the machine started.
        period: Duration,
        /// For how long at the start of each interval all packets are dropped.
        outage: Duration,
    },
    /// A middlebox.
    Middlebox(Middlebox),
}

impl CellSpec {
    /// The queue that a bottleneck gets if nothing is said of it: what it sends in a round trip of
    /// the path, or in 100 ms if that is more; but at least 30,000 bytes, which are two initial
    /// windows of 10 segments (RFC 6928).
    pub fn default_queue_bytes(mbits: f64, rtt: Duration) -> u64 {
        let while_ = rtt.max(Duration::from_millis(100)).as_secs_f64();
        // The cast saturates.
        ((mbits * 1e6 / 8.0 * while_).round() as u64).max(30_000)
    }

    /// Its name in counters and in the tap.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Delay { .. } => "delay",
            Self::Jitter { .. } => "jitter",
            Self::Rate { .. } => "rate",
            Self::Loss { .. } => "loss",
            Self::BurstyLoss { .. } => "bursty-loss",
            Self::Reorder { .. } => "reorder",
            Self::Mtu { .. } => "mtu",
            Self::Reconfiguration { .. } => "reconfiguration",
            Self::Middlebox(kind) => kind.name(),
        }
    }

    /// The delay that it adds without jitter, queue or reordering.
    pub fn base_delay(&self) -> Duration {
        match self {
            Self::Delay { delay }
            | Self::Jitter { delay, .. }
            | Self::Reconfiguration { delay, .. } => *delay,
            _ => Duration::ZERO,
        }
    }

    /// # Errors
    /// If something is out of bounds.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        match self.fault() {
            Some(fault) => Err(LinkError::Config(format!("the cell {}: {fault}", self.name()))),
            None => Ok(()),
        }
    }

    /// What is wrong with it, as a clause.
    pub(crate) fn fault(&self) -> Option<String> {
        match self {
            Self::Delay { delay } => long(*delay),
            Self::Jitter { delay, distribution, hold, .. } => {
                long(*delay).or_else(|| distribution.fault()).or_else(|| long(*hold))
            }
            Self::Rate { mbits, queue_bytes, burst_bytes } => {
                let bytes = (*queue_bytes).max(*burst_bytes);
                (!(MIN_MBITS..=MAX_MBITS).contains(mbits))
                    .then(|| format!("a rate is {MIN_MBITS} to {MAX_MBITS} Mbit/s, not {mbits}"))
                    .or_else(|| {
                        (bytes > MAX_QUEUE).then(|| {
                            format!("a queue or burst is at most {MAX_QUEUE} bytes, not {bytes}")
                        })
                    })
            }
            Self::Loss { probability } => improbable(&[*probability]),
            Self::BurstyLoss { enter, leave, good_loss, bad_loss } => {
                improbable(&[*enter, *leave, *good_loss, *bad_loss])
            }
            Self::Reorder { probability, by } => improbable(&[*probability]).or_else(|| long(*by)),
            Self::Mtu { bytes, .. } => (!(MIN_MTU..=MAX_MTU).contains(bytes))
                .then(|| format!("an MTU is {MIN_MTU} to {MAX_MTU} bytes, not {bytes}")),
            Self::Reconfiguration { delay, distribution, period, outage } => long(*delay)
                .or_else(|| distribution.fault())
                .or_else(|| {
                    (!(MIN_PERIOD..=MAX_PERIOD).contains(period)).then(|| {
                        format!("a period is {MIN_PERIOD:?} to {MAX_PERIOD:?}, not {period:?}")
                    })
                })
                .or_else(|| {
                    (outage > period)
                        .then(|| format!("an outage of {outage:?} is longer than the period"))
                }),
            Self::Middlebox(_) => None,
        }
    }

    /// The cell itself. `lane_seed` is this cell's own, `path_seed` the same for both directions.
    pub(crate) fn build(&self, lane_seed: u64, path_seed: u64) -> Box<dyn Cell> {
        match self.clone() {
            Self::Delay { delay } => Box::new(Delay { delay_ns: nanoseconds(delay) }),
            Self::Jitter { delay, distribution, hold, overtakes } => Box::new(Jitter::new(
                nanoseconds(delay),
                distribution,
                nanoseconds(hold),
                overtakes,
                lane_seed,
            )),
            Self::Rate { mbits, queue_bytes, burst_bytes } => {
                Box::new(Rate::new(mbits * 1e6, queue_bytes, burst_bytes))
            }
            Self::Loss { probability } => Box::new(Loss::new(probability, lane_seed)),
            Self::BurstyLoss { enter, leave, good_loss, bad_loss } => {
                Box::new(BurstyLoss::new(enter, leave, [good_loss, bad_loss], lane_seed))
            }
            Self::Reorder { probability, by } => {
                Box::new(Reorder::new(probability, nanoseconds(by), lane_seed))
            }
            Self::Mtu { bytes, too_big } => Box::new(Mtu { bytes, too_big }),
            Self::Reconfiguration { delay, distribution, period, outage } => {
                Box::new(Reconfiguration::new(
                    nanoseconds(delay),
                    distribution,
                    nanoseconds(period),
                    nanoseconds(outage),
                    path_seed,
                ))
            }
            Self::Middlebox(kind) => kind.build(),
        }
    }
}

impl fmt::Display for CellSpec {
    /// The cell in words, for reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay { delay } => write!(f, "delay {delay:?}"),
            Self::Jitter { delay, distribution, .. } => {
                write!(f, "delay {delay:?}, jitter {distribution}")
            }
            Self::Rate { mbits, queue_bytes, .. } => {
                write!(f, "rate {mbits} Mbit/s, queue {queue_bytes} bytes")
            }
            Self::Loss { probability } => write!(f, "loss {} %", percent(*probability)),
            Self::BurstyLoss { enter, leave, good_loss, bad_loss } => write!(
                f,
                "bursty loss {} % and {} % (enter {} %, leave {} %)",
                percent(*good_loss),
                percent(*bad_loss),
                percent(*enter),
                percent(*leave)
            ),
            Self::Reorder { probability, by } => {
                write!(f, "reorder {} % by {by:?}", percent(*probability))
            }
            Self::Mtu { bytes, too_big: TooBig::Icmp } => write!(f, "MTU {bytes}"),
            Self::Mtu { bytes, too_big: TooBig::BlackHole } => {
                write!(f, "MTU {bytes}, a black hole")
            }
            Self::Reconfiguration { delay, distribution, period, .. } => {
                write!(f, "delay {delay:?}, every {period:?} moved by {distribution}")
            }
            Self::Middlebox(kind) => write!(f, "middlebox {kind}"),
        }
    }
}

/// Without the noise of floating point.
fn percent(probability: f64) -> f64 {
    (probability * 1e8).round() / 1e6
}

fn long(delay: Duration) -> Option<String> {
    (delay > LONGEST_DELAY)
        .then(|| format!("a delay is at most {LONGEST_DELAY:?} each way, not {delay:?}"))
}

fn improbable(probabilities: &[f64]) -> Option<String> {
    probabilities
        .iter()
        .find(|probability| !(0.0..=1.0).contains(*probability))
        .map(|probability| format!("a probability is 0 to 1 (0 to 100 %), not {probability}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const LONGEST_DELAY: Duration = Duration::from_secs(60);
const MIN_MBITS: f64 = 0.001;
/// More than the link forwards.
const MAX_MBITS: f64 = 100_000.0;
const MAX_QUEUE: u64 = 1 << 30;
const MIN_MTU: u16 = 576;
const MAX_MTU: u16 = 1_500;
const MIN_PERIOD: Duration = Duration::from_millis(1);
const MAX_PERIOD: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_queue_is_a_round_trip_a_tenth_of_a_second_or_two_windows() {
        let queue = |mbits, ms| CellSpec::default_queue_bytes(mbits, Duration::from_millis(ms));
        assert_eq!(queue(100.0, 600), 7_500_000);
        assert_eq!(queue(20.0, 4), 250_000);
        assert_eq!(queue(0.256, 800), 30_000);
    }

    #[test]
    fn each_bound_is_named() {
        let ms = Duration::from_millis;
        let jitter = |hold, distribution| CellSpec::Jitter {
            delay: ms(1),
            distribution,
            hold,
            overtakes: false,
        };
        let flat = || Distribution::Uniform { spread_ms: 1.0 };
        let rate = |mbits, queue_bytes| CellSpec::Rate { mbits, queue_bytes, burst_bytes: 0 };
        let reconfiguration = |period, outage| CellSpec::Reconfiguration {
            delay: ms(1),
            distribution: flat(),
            period,
            outage,
        };
        let cases = [
            (CellSpec::Delay { delay: ms(60_001) }, "at most 60s"),
            (jitter(ms(60_001), flat()), "at most 60s"),
            (jitter(ms(0), Distribution::Normal { sd_ms: -1.0 }), "standard deviation"),
            (rate(0.0, 0), "0.001 to 100000 Mbit/s"),
            (rate(f64::NAN, 0), "0.001 to 100000 Mbit/s"),
            (rate(1.0, MAX_QUEUE + 1), "queue"),
            (CellSpec::Loss { probability: 1.1 }, "0 to 1"),
            (
                CellSpec::BurstyLoss { enter: 0.0, leave: f64::NAN, good_loss: 0.0, bad_loss: 1.0 },
                "0 to 1",
            ),
            (CellSpec::Reorder { probability: -0.1, by: ms(1) }, "0 to 1"),
            (CellSpec::Mtu { bytes: 500, too_big: TooBig::Icmp }, "576 to 1500"),
            (reconfiguration(ms(0), ms(0)), "a period is"),
            (reconfiguration(ms(10), ms(11)), "longer than the period"),
        ];
        for (spec, reason) in cases {
            let said = spec.check().expect_err("out of bounds").to_string();
            assert!(said.contains(reason) && said.contains(spec.name()), "{said}");
        }
        assert!(reconfiguration(ms(15_000), ms(30)).check().is_ok());
    }

    #[test]
    fn cells_are_said_in_words() {
        let ms = Duration::from_millis;
        let words = |spec: CellSpec| spec.to_string();
        assert_eq!(words(CellSpec::Delay { delay: ms(10) }), "delay 10ms");
        assert_eq!(words(CellSpec::Loss { probability: 0.07 }), "loss 7 %");
        let rate = CellSpec::Rate { mbits: 1.5, queue_bytes: 30_000, burst_bytes: 0 };
        assert_eq!(words(rate), "rate 1.5 Mbit/s, queue 30000 bytes");
        assert_eq!(words(CellSpec::Middlebox(Middlebox::DropTfo)), "middlebox drop-tfo");
    }
}
