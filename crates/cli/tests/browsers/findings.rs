//! What was found, beside what `docs/browsers.toml` says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use firstflight_browser::Installed;
use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// What was found of one make, by the experiments' names for it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Browser {
    pub(crate) version: String,
    pub(crate) habits: BTreeMap<String, String>,
}

/// A finding with what it was read from.
#[derive(Clone, Debug, Serialize)]
struct Evidence {
    response: String,
    connections: Vec<String>,
}

/// By make and by name.
type All = BTreeMap<String, (String, BTreeMap<String, Evidence>)>;

static FOUND: Mutex<All> = Mutex::new(BTreeMap::new());

/// Takes down what was found of a browser; where another response is known of this very version,
/// that is an error.
pub(crate) fn found(
    installed: &Installed,
    habit: &str,
    response: &str,
    seen: &[Seen],
) -> Result<(), String> {
    let make = installed.make.to_string();
    let mut all = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, habits) =
        all.entry(make.clone()).or_insert_with(|| (installed.version.clone(), BTreeMap::new()));
    let connections = seen.iter().map(ToString::to_string).collect();
    habits.insert(habit.to_owned(), Evidence { response: response.to_owned(), connections });
    let known = known();
    let Some(known) = known.get(&make) else { return Ok(()) };
    match known.habits.get(habit) {
        Some(before) if before == response => Ok(()),
        Some(before) if known.version == installed.version && !varies(habit) => {
            Err(format!("{habit}: {response:?}, not {before:?} as docs/browsers.toml has it"))
        }
        Some(before) => {
            let Installed { version, .. } = installed;
            println!(
                "note: {make} {version}: {habit}: {response:?}; {before:?} in {}",
                known.version
            );
            Ok(())
        }
        None => {
            println!(
                "note: {make}: {habit}: {response:?}, of which docs/browsers.toml says nothing"
            );
            Ok(())
        }
    }
}

/// Whether it depends on which of several connections is faster.
fn varies(habit: &str) -> bool {
    ["page-of-six-images", "six-returns", "two-names", "side-by-side", "speculation", "-next-visit"]
        .iter()
        .any(|part| habit.contains(part))
}

/// Writes all that was found, and what it was read from, to the directory that the environment
/// variable BROWSERS_RESULTS names.
pub(crate) fn publish() {
    let Some(directory) = std::env::var_os("BROWSERS_RESULTS") else { return };
    let all = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let mut summary: BTreeMap<&String, Browser> = BTreeMap::new();
    let mut evidence = serde_json::Map::new();
    for (make, (version, habits)) in &*all {
        let responses = habits.iter().map(|(name, found)| (name.clone(), found.response.clone()));
        summary.insert(make, Browser { version: version.clone(), habits: responses.collect() });
        let value = serde_json::json!({ "version": version, "habits": habits });
        evidence.insert(make.clone(), value);
    }
    let directory = Path::new(&directory);
    let evidence = serde_json::to_string_pretty(&evidence).unwrap();
    fs::write(directory.join("browsers-habits.json"), evidence + "\n").unwrap();
    let text = toml::to_string(&summary).unwrap();
    fs::write(directory.join("browsers-habits.toml"), text).unwrap();
}

/// What `docs/browsers.toml` says.
fn known() -> BTreeMap<String, Browser> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/browsers.toml");
    let text = fs::read_to_string(path).unwrap_or_default();
    toml::from_str(&text).expect("docs/browsers.toml is what was found once")
}
