//! Profiles: named networks, built in or from a file.

mod file;

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::path::base_delay;
use crate::{CellSpec, Distribution, JitterSpec, LinkError};

/// The effects of a network on packets, each way, with the source of its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The name by which it is requested.
    pub name: String,
    /// The source of its figures.
    pub source: String,
    /// What the source leaves open and how that was filled in; may be empty.
    pub description: String,
    /// The kind of profile.
    pub kind: ProfileKind,
    /// The cells for packets from client to server, in order.
    pub up: Vec<CellSpec>,
    /// The cells for packets from server to client, in order.
    pub down: Vec<CellSpec>,
}

/// The kind of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileKind {
    /// A network that people use.
    #[default]
    Network,
    /// An addition to a network, such as Wi-Fi; not a path by itself.
    Addition,
    /// The path of a published experiment, for reproducing it.
    Experiment,
}

impl Profile {
    /// All built-in profiles, in the order in which they are listed.
    pub fn built_in() -> &'static [Self] {
        static BUILT_IN: LazyLock<Vec<Profile>> = LazyLock::new(|| {
            file::parse("profiles.toml", include_str!("profiles.toml"))
                .expect("a test parses the built-in profiles")
        });
        &BUILT_IN
    }

    /// The built-in networks; additions are combined with fibre and cable.
    pub fn networks() -> Vec<Self> {
        let expand = |profile: &Self| match profile.kind {
            ProfileKind::Network => vec![profile.clone()],
            ProfileKind::Experiment => vec![],
            ProfileKind::Addition => {
                let bases =
                    Self::built_in().iter().filter(|base| ADDITION_BASES.contains(&&*base.name));
                bases.map(|base| base.plus(profile)).collect()
            }
        };
        Self::built_in().iter().flat_map(expand).collect()
    }

    /// Parses the name of a built-in profile; a round-trip time of at least 0.01 milliseconds, such
    /// as `20`, `0.2` or `20ms`; or either with additions, such as `cable+wifi`.
    ///
    /// # Errors
    /// If the text is none of these; the message lists the profiles.
    pub fn parse(text: &str) -> Result<Self, LinkError> {
        Self::find(text, &[])
    }

    /// Like [`Profile::parse`], with custom profiles, which take precedence over built-in ones.
    ///
    /// # Errors
    /// If there is no such profile; the message lists the profiles.
    pub fn find(text: &str, custom: &[Self]) -> Result<Self, LinkError> {
        let mut parts = text.split('+').map(str::trim);
        let all = || custom.iter().chain(Self::built_in());
        let named = |name: &str| all().find(|profile| profile.name == name);
        let base = parts.next().unwrap_or_default();
        let base = named(base)
            .filter(|profile| profile.kind != ProfileKind::Addition)
            .cloned()
            .or_else(|| parse_milliseconds(base).map(Self::plain));
        let whole = base.and_then(|base| {
            parts.try_fold(base, |whole, part| {
                named(part)
                    .filter(|profile| profile.kind == ProfileKind::Addition)
                    .map(|addition| whole.plus(addition))
            })
        });
        whole.ok_or_else(|| unknown_profile(text, custom))
    }

    /// Reads the profiles of a TOML file, in its order. The format is that of the built-in file:
    ///
    /// ```toml
    /// [profile.office]
    /// source = "measured on the third floor"
    /// rtt_ms = 12
    /// down = { rate_mbps = 250, queue_bytes = 500000 }
    /// up = { rate_mbps = 50, loss_percent = 0.1, middleboxes = ["strip-tfo"] }
    /// ```
    ///
    /// # Errors
    /// If it cannot be read; the message names the line, and what is allowed.
    pub fn read(path: &Path) -> Result<Vec<Self>, LinkError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| LinkError::system(format!("read the profiles in {name}"), e))?;
        Self::from_toml(&name, &text)
    }

    /// Parses the profiles of a file's text, in its order. `file` is its name in messages.
    ///
    /// # Errors
    /// Like [`Profile::read`].
    pub fn from_toml(file: &str, text: &str) -> Result<Vec<Self>, LinkError> {
        file::parse(file, text)
    }

    /// This network with an addition between it and the client.
    #[must_use]
    pub fn plus(&self, addition: &Self) -> Self {
        let joined = |a: &str, b: &str, by: &str| match (a, b) {
            ("", text) | (text, "") => text.to_owned(),
            (a, b) => format!("{a}{by}{b}"),
        };
        Self {
            name: format!("{}+{}", self.name, addition.name),
            source: joined(&self.source, &addition.source, "; "),
            description: joined(&self.description, &addition.description, "; "),
            kind: self.kind,
            up: [&*addition.up, &*self.up].concat(),
            down: [&*self.down, &*addition.down].concat(),
        }
    }

    /// A path with this round-trip time and no other cells.
    pub fn plain(rtt: Duration) -> Self {
        let config = crate::PathConfig::symmetric(format!("{} ms", rtt.as_secs_f64() * 1e3), rtt);
        Self {
            name: config.name,
            source: "a round-trip time by itself".to_owned(),
            description: String::new(),
            kind: ProfileKind::Experiment,
            up: config.up,
            down: config.down,
        }
    }

    /// The round-trip time, without jitter, queues and reordering.
    pub fn rtt(&self) -> Duration {
        base_delay(&self.up) + base_delay(&self.down)
    }

    /// The round-trip time that half of the packets exceed: [`Profile::rtt`] and the median of the
    /// jitter of both ways together, to a tenth of a millisecond. Reconfigurations vary around the
    /// base and are not counted.
    pub fn median_rtt(&self) -> Duration {
        let jitter: Vec<&Distribution> =
            self.up.iter().chain(&self.down).filter_map(jitter).collect();
        // A sum of symmetric distributions is symmetric.
        if jitter.iter().all(|distribution| distribution.is_symmetric()) {
            return self.rtt();
        }
        let mut random = StdRng::seed_from_u64(0);
        let mut sums: Vec<f64> = (0..MEDIAN_DRAWS)
            .map(|_| jitter.iter().map(|distribution| distribution.draw(&mut random)).sum())
            .collect();
        sums.sort_unstable_by(f64::total_cmp);
        let tenths = (10.0 * sums[sums.len() / 2].max(0.0)).round();
        self.rtt() + Duration::from_micros(100 * tenths as u64)
    }
}

/// The distribution of a cell that draws delays packet by packet.
fn jitter(cell: &CellSpec) -> Option<&Distribution> {
    match cell {
        CellSpec::Jitter(JitterSpec { distribution, .. }) => Some(distribution),
        _ => None,
    }
}

fn parse_milliseconds(text: &str) -> Option<Duration> {
    let number = text.strip_suffix("ms").unwrap_or(text).trim();
    let ms: f64 = number.parse().ok()?;
    // To the nanosecond, without floating-point noise.
    let nanoseconds = (ms * 1e6).round();
    (MIN_RTT_MS * 1e6..=MAX_RTT_MS * 1e6)
        .contains(&nanoseconds)
        .then(|| Duration::from_nanos(nanoseconds as u64))
}

fn unknown_profile(name: &str, custom: &[Profile]) -> LinkError {
    let names = |addition: bool| {
        let all = custom.iter().chain(Profile::built_in());
        let profiles = all.filter(|p| (p.kind == ProfileKind::Addition) == addition);
        profiles.map(|profile| &*profile.name).collect::<Vec<_>>().join(", ")
    };
    LinkError::NoSuchProfile { name: name.to_owned(), known: names(false), additions: names(true) }
}

/// The networks that additions are combined with.
const ADDITION_BASES: [&str; 2] = ["fibre", "cable"];
/// How many draws a median is computed from: enough for a tenth of a millisecond.
const MEDIAN_DRAWS: usize = 100_001;
/// The minimum round-trip time of a network. Not 0, because times are also given in round trips.
pub(crate) const MIN_RTT_MS: f64 = 0.01;
/// A minute each way.
pub(crate) const MAX_RTT_MS: f64 = 120_000.0;

#[cfg(test)]
mod tests;
