//! The section `[tickets]`.

use std::ops::Range;
use std::path::PathBuf;

use firstflight_tickets::Schedule;
use serde::Deserialize;
use toml::Spanned;

use super::{Length, Misplaced};
use crate::{KeySource, TicketSettings};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TicketSection {
    keys: Option<Spanned<Keys>>,
    file: Option<Spanned<PathBuf>>,
    key_encryption_file: Option<Spanned<PathBuf>>,
    rotation: Option<Spanned<Length>>,
    lifetime: Option<Spanned<Length>>,
    zone: Option<Spanned<String>>,
    node: Option<Spanned<String>>,
    single_use: Option<Spanned<bool>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Keys {
    Process,
    File,
    Store,
}

impl TicketSection {
    /// The section that stands at `at`, of a file with or without a section `[store]`.
    pub(super) fn settings(
        self,
        at: &Range<usize>,
        has_store: bool,
    ) -> Result<TicketSettings, Misplaced> {
        self.check_company(has_store)?;
        let single_use = self.single_use.is_some_and(Spanned::into_inner);
        let needs = |reason: &str| Misplaced(at.clone(), reason.to_owned());
        let keys = match self.keys.map(Spanned::into_inner) {
            None | Some(Keys::Process) => KeySource::Process,
            Some(Keys::File) => match self.file {
                Some(file) => KeySource::File(file.into_inner()),
                None => return Err(needs("keys = \"file\" needs file = \"ticket.keys\"")),
            },
            Some(Keys::Store) => {
                let default = Schedule::default();
                let times = self.rotation.as_ref().or(self.lifetime.as_ref());
                let times_at = times.map_or_else(|| at.clone(), Spanned::span);
                let rotation = self.rotation.map_or(default.rotation(), |r| r.into_inner().0);
                let lifetime = self.lifetime.map_or(default.lifetime(), |l| l.into_inner().0);
                let schedule = Schedule::new(rotation, lifetime)
                    .map_err(|error| Misplaced(times_at, error.to_string()))?;
                match self.key_encryption_file {
                    Some(file) => KeySource::Store { key_encryption: file.into_inner(), schedule },
                    None => {
                        return Err(needs(
                            "keys = \"store\" needs key_encryption_file, the file with the key \
                             under which they are sealed there",
                        ));
                    }
                }
            }
        };
        let zone = self.zone.map(|zone| name(zone, "zone")).transpose()?;
        let node = self.node.map(|node| name(node, "node")).transpose()?;
        Ok(TicketSettings { keys, zone, node, single_use })
    }

    /// Keys that need others, or have no meaning beside them.
    fn check_company(&self, has_store: bool) -> Result<(), Misplaced> {
        let keys = self.keys.as_ref().map(Spanned::get_ref);
        let only = |at: Range<usize>, name: &str, source: &str| {
            Err(Misplaced(at, format!("{name} is for keys = \"{source}\" only")))
        };
        if let (Some(file), false) = (&self.file, keys == Some(&Keys::File)) {
            return only(file.span(), "file", "file");
        }
        if keys != Some(&Keys::Store) {
            if let Some(file) = &self.key_encryption_file {
                return only(file.span(), "key_encryption_file", "store");
            }
            let times = [(&self.rotation, "rotation"), (&self.lifetime, "lifetime")];
            for (time, name) in times {
                if let Some(time) = time {
                    return only(time.span(), name, "store");
                }
            }
        }
        if has_store {
            return Ok(());
        }
        let lonely = |at, what| {
            let reason = format!("{what} needs a store; give a section [store] with its url");
            Err(Misplaced(at, reason))
        };
        match (&self.keys, &self.single_use) {
            (Some(keys), _) if *keys.get_ref() == Keys::Store => {
                lonely(keys.span(), "keys = \"store\"")
            }
            (_, Some(single)) if *single.get_ref() => lonely(single.span(), "single_use = true"),
            _ => Ok(()),
        }
    }
}

/// A name that fits into records, tables and log lines.
fn name(text: Spanned<String>, what: &str) -> Result<String, Misplaced> {
    let good = (1..=MAX_NAME).contains(&text.get_ref().len())
        && text.get_ref().bytes().all(|byte| byte.is_ascii_graphic());
    match good {
        true => Ok(text.into_inner()),
        false => Err(Misplaced(
            text.span(),
            format!("{what} is no name; allowed are 1 to {MAX_NAME} printable ASCII characters"),
        )),
    }
}

/// What still fits a line.
const MAX_NAME: usize = 64;
