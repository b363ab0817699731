//! The settings of any cell, checked and built.

use std::fmt;
use std::time::Duration;

use super::{Cell, CellSpec, Seeds};
use crate::LinkError;

/// Defines [`CellSpec`] from the settings of all cells.
macro_rules! cells {
    ($($variant:ident($settings:ty)),* $(,)?) => {
        /// A cell of one direction of a path. Packets pass the cells of a direction in order.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum CellSpec {
            $(#[doc = concat!("See [`", stringify!($settings), "`].")] $variant($settings),)*
        }

        impl CellSpec {
            fn settings(&self) -> &dyn CellSettings {
                match self {
                    $(Self::$variant(settings) => settings,)*
                }
            }
        }

        $(impl From<$settings> for CellSpec {
            fn from(settings: $settings) -> Self {
                Self::$variant(settings)
            }
        })*
    };
}
pub(super) use cells;

impl CellSpec {
    /// The name in counters and in the tap.
    pub fn name(&self) -> &'static str {
        self.settings().name()
    }

    /// The delay that it adds without jitter, queues or reordering.
    pub fn base_delay(&self) -> Duration {
        self.settings().base_delay()
    }

    /// Whether the delays of two packets may differ, apart from queues.
    pub fn varies_delay(&self) -> bool {
        self.settings().varies_delay()
    }

    /// Whether it drops packets, or may make a sender assume that they were dropped.
    pub fn may_drop(&self) -> bool {
        self.settings().may_drop()
    }

    /// # Errors
    /// If a value is out of range.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        match self.fault() {
            Some(fault) => Err(LinkError::Config(format!("the cell {}: {fault}", self.name()))),
            None => Ok(()),
        }
    }

    /// Why the settings are invalid, as a clause.
    pub(crate) fn fault(&self) -> Option<String> {
        self.settings().fault()
    }

    /// Builds the cell.
    pub(crate) fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        self.settings().build(seeds)
    }
}

impl fmt::Display for CellSpec {
    /// Describes the cell for reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.settings().describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::*;

    #[test]
    fn the_default_queue_is_a_round_trip_within_bounds() {
        let queue = |mbits, ms| RateSpec::default_queue_bytes(mbits, Duration::from_millis(ms));
        assert_eq!(queue(100.0, 600), 7_500_000);
        assert_eq!(queue(20.0, 4), 250_000);
        assert_eq!(queue(0.256, 800), 30_000);
        assert_eq!(queue(1_000.0, 600), 64 << 20);
    }

    #[test]
    fn each_invalid_value_is_reported() {
        let ms = Duration::from_millis;
        let jitter = |hold, distribution| {
            CellSpec::Jitter(JitterSpec { delay: ms(1), distribution, hold, overtakes: false })
        };
        let flat = || Distribution::Uniform { spread_ms: 1.0 };
        let rate =
            |mbits, queue_bytes| CellSpec::Rate(RateSpec { mbits, queue_bytes, burst_bytes: 0 });
        let reconfiguration = |period, outage| {
            CellSpec::Reconfiguration(ReconfigurationSpec {
                delay: ms(1),
                distribution: flat(),
                period,
                outage,
            })
        };
        let cases = [
            (CellSpec::Delay(DelaySpec { delay: ms(60_001) }), "at most 60s"),
            (jitter(ms(60_001), flat()), "at most 60s"),
            (jitter(ms(0), Distribution::Normal { sd_ms: -1.0 }), "standard deviation"),
            (rate(0.0, 0), "0.001 to 100000 Mbit/s"),
            (rate(f64::NAN, 0), "0.001 to 100000 Mbit/s"),
            (rate(1.0, (64 << 20) + 1), "67108864 bytes, which all paths share"),
            (CellSpec::Loss(LossSpec { probability: 1.1 }), "0 to 1"),
            (
                CellSpec::BurstyLoss(BurstyLossSpec {
                    enter: 0.0,
                    leave: f64::NAN,
                    good_loss: 0.0,
                    bad_loss: 1.0,
                }),
                "0 to 1",
            ),
            (CellSpec::Reorder(ReorderSpec { probability: -0.1, by: ms(1) }), "0 to 1"),
            (CellSpec::Mtu(MtuSpec { bytes: 500, too_big: TooBig::Icmp }), "576 to 1500"),
            (reconfiguration(ms(0), ms(0)), "a period is"),
            (reconfiguration(ms(10), ms(11)), "longer than the period"),
        ];
        for (spec, reason) in cases {
            let text = spec.check().expect_err("out of bounds").to_string();
            assert!(text.contains(reason) && text.contains(spec.name()), "{text}");
        }
        assert!(reconfiguration(ms(15_000), ms(30)).check().is_ok());
        assert!(rate(1.0, 64 << 20).check().is_ok());
    }

    #[test]
    fn cells_are_described() {
        let ms = Duration::from_millis;
        let describe = |spec: CellSpec| spec.to_string();
        assert_eq!(describe(CellSpec::Delay(DelaySpec { delay: ms(10) })), "delay 10ms");
        assert_eq!(describe(CellSpec::Loss(LossSpec { probability: 0.07 })), "loss 7 %");
        let rate = CellSpec::Rate(RateSpec { mbits: 1.5, queue_bytes: 30_000, burst_bytes: 0 });
        assert_eq!(describe(rate), "rate 1.5 Mbit/s, queue 30000 bytes");
        assert_eq!(describe(CellSpec::Middlebox(Middlebox::DropTfo)), "middlebox drop-tfo");
        let rate = CellSpec::Rate(RateSpec { mbits: 1.5, queue_bytes: 9, burst_bytes: 3_000 });
        assert_eq!(describe(rate), "rate 1.5 Mbit/s, queue 9 bytes, burst 3000 bytes");
        let distribution = || Distribution::Uniform { spread_ms: 1.0 };
        let jitter = |hold, overtakes| {
            let distribution = distribution();
            CellSpec::Jitter(JitterSpec { delay: ms(4), distribution, hold, overtakes })
        };
        let text = "delay 4ms, jitter uniform, +-1 ms";
        assert_eq!(describe(jitter(ms(0), false)), text);
        assert_eq!(describe(jitter(ms(10), true)), format!("{text}, held 10ms, overtakes"));
        let reconfiguration = |outage| {
            let (delay, period) = (ms(4), ms(15_000));
            let distribution = distribution();
            let spec = ReconfigurationSpec { delay, distribution, period, outage };
            CellSpec::Reconfiguration(spec)
        };
        let text = "delay 4ms, every 15s moved by uniform, +-1 ms";
        assert_eq!(describe(reconfiguration(ms(0))), text);
        assert_eq!(describe(reconfiguration(ms(30))), format!("{text}, outage 30ms"));
    }
}
