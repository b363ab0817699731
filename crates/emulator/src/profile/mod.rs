//! Profiles: networks by name, built in or from a file.

mod file;

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use crate::path::base_delay;
use crate::{CellSpec, LinkError};

/// What a network does to packets, each way, and where that is known from.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// As it is requested.
    pub name: String,
    /// Where its figures come from.
    pub source: String,
    /// What the source leaves open and how that was filled; may be empty.
    pub description: String,
    /// What kind of thing it is.
    pub kind: ProfileKind,
    /// What packets from client to server go through, in this order.
    pub up: Vec<CellSpec>,
    /// What packets from server to client go through, in this order.
    pub down: Vec<CellSpec>,
}

/// What a profile is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileKind {
    /// A network that people have.
    #[default]
    Network,
    /// Something that is put onto a network, as Wi-Fi; no path by itself.
    Addition,
    /// The path of a published experiment, to measure it again.
    Experiment,
}

impl Profile {
    /// All that are built in, in the order in which they are listed.
    pub fn built_in() -> &'static [Self] {
        static BUILT_IN: LazyLock<Vec<Profile>> = LazyLock::new(|| {
            file::parse("profiles.toml", include_str!("profiles.toml"))
                .expect("the built-in profiles are right, as a test makes sure")
        });
        &BUILT_IN
    }

    /// The built-in networks; an addition appears as put onto fibre and onto cable.
    pub fn networks() -> Vec<Self> {
        let expand = |profile: &Self| match profile.kind {
            ProfileKind::Network => vec![profile.clone()],
            ProfileKind::Experiment => vec![],
            ProfileKind::Addition => {
                let bases = Self::built_in().iter().filter(|base| CARRIERS.contains(&&*base.name));
                bases.map(|base| base.plus(profile)).collect()
            }
        };
        Self::built_in().iter().flat_map(expand).collect()
    }

    /// The built-in profile of this name; a round-trip time in milliseconds, as `20`, `0.2` or
    /// `20ms`; or either with additions behind it, as `cable+wifi`.
    ///
    /// # Errors
    /// If it is none of these; the message lists what there is.
    pub fn parse(text: &str) -> Result<Self, LinkError> {
        Self::find(text, &[])
    }

    /// As [`Profile::parse`], with profiles of one's own, which go before built-in ones.
    ///
    /// # Errors
    /// If there is none; the message lists what there is.
    pub fn find(text: &str, own: &[Self]) -> Result<Self, LinkError> {
        let mut parts = text.split('+').map(str::trim);
        let all = || own.iter().chain(Self::built_in());
        let named = |name: &str| all().find(|profile| profile.name == name);
        let base = parts.next().unwrap_or_default();
        let base = named(base)
            .filter(|profile| profile.kind != ProfileKind::Addition)
            .cloned()
            .or_else(|| milliseconds(base).map(Self::plain));
        let whole = base.and_then(|base| {
            parts.try_fold(base, |whole, part| {
                named(part)
                    .filter(|profile| profile.kind == ProfileKind::Addition)
                    .map(|addition| whole.plus(addition))
            })
        });
        whole.ok_or_else(|| no_such(text, own))
    }

    /// The profiles of a TOML file, in its order. The file looks like the built-in one:
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
    /// If it cannot be read; the message names the line, and what is allowed there.
    pub fn read(path: &Path) -> Result<Vec<Self>, LinkError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| LinkError::system(format!("read the profiles in {name}"), e))?;
        Self::from_toml(&name, &text)
    }

    /// The profiles of a file's text, in its order; `file` is its name in messages.
    ///
    /// # Errors
    /// As [`Profile::read`].
    pub fn from_toml(file: &str, text: &str) -> Result<Vec<Self>, LinkError> {
        file::parse(file, text)
    }

    /// This network with an addition between it and the client.
    #[must_use]
    pub fn plus(&self, addition: &Self) -> Self {
        let joined = |a: &str, b: &str, by: &str| match (a, b) {
            ("", one) | (one, "") => one.to_owned(),
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

    /// A path of this round-trip time and nothing else.
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

    /// What a packet and its response spend on it together, without what jitter, queues and
    /// reordering add.
    pub fn rtt(&self) -> Duration {
        base_delay(&self.up) + base_delay(&self.down)
    }
}

fn milliseconds(text: &str) -> Option<Duration> {
    let number = text.strip_suffix("ms").unwrap_or(text).trim();
    let ms: f64 = number.parse().ok()?;
    // To the nanosecond, without what a float adds.
    let nanoseconds = (ms * 1e6).round();
    (0.0..=MAX_RTT_MS * 1e6)
        .contains(&nanoseconds)
        .then(|| Duration::from_nanos(nanoseconds as u64))
}

fn no_such(name: &str, own: &[Profile]) -> LinkError {
    let names = |addition: bool| {
        let all = own.iter().chain(Profile::built_in());
        let wanted = all.filter(|p| (p.kind == ProfileKind::Addition) == addition);
        wanted.map(|profile| &*profile.name).collect::<Vec<_>>().join(", ")
    };
    LinkError::NoSuchProfile { name: name.to_owned(), known: names(false), additions: names(true) }
}

/// What additions are shown on.
const CARRIERS: [&str; 2] = ["fibre", "cable"];
/// A minute each way.
const MAX_RTT_MS: f64 = 120_000.0;

#[cfg(test)]
mod tests;
