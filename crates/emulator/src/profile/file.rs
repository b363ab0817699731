//! Profile files: TOML to cells.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{MIN_RTT_MS, Profile, ProfileKind};
use crate::{
    BurstyLossSpec, CellSpec, DelaySpec, Distribution, DuplicateSpec, JitterSpec, LinkError,
    LossSpec, Middlebox, MtuSpec, RateSpec, ReconfigurationSpec, ReorderSpec, TooBig,
};

/// Parses the text of a file.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Profile>, LinkError> {
    let error = |offset: usize, reason: String| {
        let before = text.get(..offset).unwrap_or(text);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        LinkError::ProfileFile { file: file.to_owned(), line, reason }
    };
    let tables: File = toml::from_str(text).map_err(|e| {
        let offset = e.span().map_or(0, |span| span.start);
        error(offset, e.message().replace('\n', " "))
    })?;
    let mut tables: Vec<_> = tables.profile.into_iter().collect();
    tables.sort_by_key(|(_, table)| table.span().start);
    let profile = |(name, table): (String, Spanned<ProfileTable>)| {
        let offset = table.span().start;
        let bad_name = name.parse::<f64>().is_ok() || name.is_empty() || name.contains(['+', ' ']);
        if bad_name {
            let reason = format!(
                "{name:?} cannot be a profile's name: it would be taken for a number or a sum"
            );
            return Err(error(offset, reason));
        }
        let error_of = |fault: String| error(offset, format!("profile {name:?}: {fault}"));
        let ProfileTable { source, description, kind, rtt_ms, each_way, up, down } =
            table.into_inner();
        let half_ms = rtt_ms / 2.0;
        let channel = |table: DirectionTable| {
            table.with_defaults(&each_way).cells(half_ms, rtt_ms).map_err(error_of)
        };
        let profile = Profile {
            up: channel(up)?,
            down: channel(down)?,
            name: name.clone(),
            source,
            description,
            kind,
        };
        let too_short = (profile.rtt().as_nanos() as f64) < MIN_RTT_MS * 1e6;
        if too_short && kind != ProfileKind::Addition {
            return Err(error_of(format!(
                "rtt_ms is at least {MIN_RTT_MS}; only with kind = \"addition\" it may be less"
            )));
        }
        Ok(profile)
    };
    tables.into_iter().map(profile).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    profile: BTreeMap<String, Spanned<ProfileTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileTable {
    #[serde(default)]
    source: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    kind: ProfileKind,
    rtt_ms: f64,
    #[serde(default)]
    each_way: DirectionTable,
    #[serde(default)]
    up: DirectionTable,
    #[serde(default)]
    down: DirectionTable,
}

/// Defines the table of one direction. All its fields are optional.
macro_rules! direction_table {
    ($($field:ident: $value:ty,)*) => {
        /// The settings of one direction.
        #[derive(Deserialize, Default, Clone)]
        #[serde(deny_unknown_fields)]
        struct DirectionTable {
            $($field: Option<$value>,)*
        }

        impl DirectionTable {
            /// Takes missing values from `each_way`.
            fn with_defaults(self, each_way: &Self) -> Self {
                Self { $($field: self.$field.or_else(|| each_way.$field.clone()),)* }
            }
        }
    };
}

direction_table! {
    delay_ms: f64,
    rate_mbps: f64,
    queue_bytes: u64,
    burst_bytes: u64,
    loss_percent: f64,
    bursty_loss: BurstyLoss,
    jitter: RandomDelayTable,
    reorder: Reorder,
    duplicate_percent: f64,
    reconfiguration: RandomDelayTable,
    mtu: u16,
    too_big: OnTooBig,
    middleboxes: Vec<MiddleboxName>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct BurstyLoss {
    enter_percent: f64,
    leave_percent: f64,
    #[serde(default)]
    good_loss_percent: f64,
    #[serde(default = "hundred_percent")]
    bad_loss_percent: f64,
}

fn hundred_percent() -> f64 {
    100.0
}

#[derive(Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct Reorder {
    percent: f64,
    by_ms: f64,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum OnTooBig {
    Icmp,
    BlackHole,
}

/// A random delay, and when it is drawn.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct RandomDelayTable {
    distribution: DistributionKind,
    sd_ms: Option<f64>,
    spread_ms: Option<f64>,
    scale_ms: Option<f64>,
    shape: Option<f64>,
    longest_ms: Option<f64>,
    points: Option<Vec<(f64, f64)>>,
    hold_ms: Option<f64>,
    overtakes: Option<bool>,
    every_s: Option<f64>,
    outage_ms: Option<f64>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum DistributionKind {
    Normal,
    Uniform,
    Pareto,
    Quantiles,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum MiddleboxName {
    StripTfo,
    DropTfo,
    StripSynData,
    DropSynData,
    DropLargeHello,
    DropEarlyData,
    BlockUdp,
    ThrottleUdp,
}

impl From<MiddleboxName> for Middlebox {
    fn from(name: MiddleboxName) -> Self {
        match name {
            MiddleboxName::StripTfo => Self::StripTfo,
            MiddleboxName::DropTfo => Self::DropTfo,
            MiddleboxName::StripSynData => Self::StripSynData,
            MiddleboxName::DropSynData => Self::DropSynData,
            MiddleboxName::DropLargeHello => Self::DropLargeHello,
            MiddleboxName::DropEarlyData => Self::DropEarlyData,
            MiddleboxName::BlockUdp => Self::BlockUdp,
            MiddleboxName::ThrottleUdp => Self::ThrottleUdp,
        }
    }
}

impl DirectionTable {
    /// The cells in the order in which a packet passes them: middleboxes and loss, the bottleneck,
    /// the delay, and reordering.
    fn cells(self, half_ms: f64, rtt_ms: f64) -> Result<Vec<CellSpec>, String> {
        let rtt = duration("rtt_ms", rtt_ms)?;
        let delay = match self.delay_ms {
            Some(ms) => duration("delay_ms", ms)?,
            None => duration("rtt_ms", half_ms)?,
        };
        let mut cells = Vec::new();
        let middleboxes = self.middleboxes.iter().flatten().copied();
        cells.extend(middleboxes.map(|name| CellSpec::Middlebox(name.into())));
        cells.extend(self.mtu()?);
        if let Some(percent) = self.loss_percent {
            cells.push(CellSpec::Loss(LossSpec { probability: percent / 100.0 }));
        }
        if let Some(loss) = self.bursty_loss {
            cells.push(CellSpec::BurstyLoss(BurstyLossSpec {
                enter: loss.enter_percent / 100.0,
                leave: loss.leave_percent / 100.0,
                good_loss: loss.good_loss_percent / 100.0,
                bad_loss: loss.bad_loss_percent / 100.0,
            }));
        }
        cells.extend(self.rate(rtt)?);
        cells.extend(self.delay_cells(delay)?);
        if let Some(Reorder { percent, by_ms }) = self.reorder {
            let by = duration("reorder.by_ms", by_ms)?;
            cells.push(CellSpec::Reorder(ReorderSpec { probability: percent / 100.0, by }));
        }
        if let Some(percent) = self.duplicate_percent {
            cells.push(CellSpec::Duplicate(DuplicateSpec { probability: percent / 100.0 }));
        }
        match cells.iter().find_map(|cell| Some((cell.name(), cell.fault()?))) {
            Some((cell, fault)) => Err(format!("{cell}: {fault}")),
            None => Ok(cells),
        }
    }

    fn mtu(&self) -> Result<Option<CellSpec>, String> {
        let too_big = match self.too_big {
            Some(OnTooBig::BlackHole) => TooBig::BlackHole,
            Some(OnTooBig::Icmp) | None => TooBig::Icmp,
        };
        match self.mtu {
            Some(bytes) => Ok(Some(CellSpec::Mtu(MtuSpec { bytes, too_big }))),
            None if self.too_big.is_some() => Err("too_big needs an mtu".to_owned()),
            None => Ok(None),
        }
    }

    fn rate(&self, rtt: Duration) -> Result<Option<CellSpec>, String> {
        let Some(mbits) = self.rate_mbps else {
            return match self.queue_bytes.or(self.burst_bytes) {
                Some(_) => Err("queue_bytes and burst_bytes need a rate_mbps".to_owned()),
                None => Ok(None),
            };
        };
        let queue_bytes =
            self.queue_bytes.unwrap_or_else(|| RateSpec::default_queue_bytes(mbits, rtt));
        let burst_bytes = self.burst_bytes.unwrap_or(0);
        Ok(Some(CellSpec::Rate(RateSpec { mbits, queue_bytes, burst_bytes })))
    }

    /// The delay, fixed or random. If jitter and reconfiguration are both configured, each has half
    /// of the delay, so that each can shorten it.
    fn delay_cells(&self, delay: Duration) -> Result<Vec<CellSpec>, String> {
        let mut cells = Vec::new();
        let (jitter, reconfiguration) = (&self.jitter, &self.reconfiguration);
        let parts = u32::from(jitter.is_some()) + u32::from(reconfiguration.is_some());
        let share = delay / parts.max(1);
        if let Some(table) = reconfiguration {
            cells.push(table.reconfiguration(share)?);
        }
        if let Some(table) = jitter {
            cells.push(table.jitter(delay - share * (parts - 1))?);
        }
        if parts == 0 && !delay.is_zero() {
            cells.push(CellSpec::Delay(DelaySpec { delay }));
        }
        Ok(cells)
    }
}

impl RandomDelayTable {
    fn jitter(&self, delay: Duration) -> Result<CellSpec, String> {
        if self.every_s.is_some() || self.outage_ms.is_some() {
            return Err("jitter: every_s and outage_ms belong to reconfiguration".to_owned());
        }
        Ok(CellSpec::Jitter(JitterSpec {
            delay,
            distribution: self.distribution().map_err(|fault| format!("jitter: {fault}"))?,
            hold: duration("jitter.hold_ms", self.hold_ms.unwrap_or(0.0))?,
            overtakes: self.overtakes.unwrap_or(false),
        }))
    }

    fn reconfiguration(&self, delay: Duration) -> Result<CellSpec, String> {
        if self.hold_ms.is_some() || self.overtakes.is_some() {
            return Err("reconfiguration: hold_ms and overtakes belong to jitter".to_owned());
        }
        let every_s = self.every_s.ok_or("reconfiguration: every_s is missing")?;
        let outage_ms = self.outage_ms.unwrap_or(0.0);
        Ok(CellSpec::Reconfiguration(ReconfigurationSpec {
            delay,
            distribution: self
                .distribution()
                .map_err(|fault| format!("reconfiguration: {fault}"))?,
            period: duration("reconfiguration.every_s", every_s * 1e3)?,
            outage: duration("reconfiguration.outage_ms", outage_ms)?,
        }))
    }

    fn distribution(&self) -> Result<Distribution, String> {
        let fields = [
            ("sd_ms", self.sd_ms.is_some(), DistributionKind::Normal),
            ("spread_ms", self.spread_ms.is_some(), DistributionKind::Uniform),
            ("scale_ms", self.scale_ms.is_some(), DistributionKind::Pareto),
            ("shape", self.shape.is_some(), DistributionKind::Pareto),
            ("longest_ms", self.longest_ms.is_some(), DistributionKind::Pareto),
            ("points", self.points.is_some(), DistributionKind::Quantiles),
        ];
        if let Some((name, ..)) =
            fields.iter().find(|(_, present, kind)| *present && *kind != self.distribution)
        {
            return Err(format!("{name} belongs to another distribution"));
        }
        let missing = |name: &str| format!("this distribution needs {name}");
        let need = |value: Option<f64>, name: &str| value.ok_or_else(|| missing(name));
        Ok(match self.distribution {
            DistributionKind::Normal => Distribution::Normal { sd_ms: need(self.sd_ms, "sd_ms")? },
            DistributionKind::Uniform => {
                Distribution::Uniform { spread_ms: need(self.spread_ms, "spread_ms")? }
            }
            DistributionKind::Pareto => Distribution::Pareto {
                scale_ms: need(self.scale_ms, "scale_ms")?,
                shape: need(self.shape, "shape")?,
                longest_ms: need(self.longest_ms, "longest_ms")?,
            },
            DistributionKind::Quantiles => Distribution::Quantiles {
                points: self.points.clone().ok_or_else(|| missing("points"))?,
            },
        })
    }
}

fn duration(field: &str, ms: f64) -> Result<Duration, String> {
    let nanoseconds = (ms * 1e6).round();
    if (0.0..=MAX_NS).contains(&nanoseconds) {
        Ok(Duration::from_nanos(nanoseconds as u64))
    } else {
        Err(format!("{field} is 0 to {} hours, not {ms} ms", MAX_NS / 3.6e12))
    }
}

/// Longer than the limit of any cell, whose error is more specific.
const MAX_NS: f64 = 24.0 * 3.6e12;
