//! Findings, compared with those in `docs/measure/browsers.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use firstflight_browser::Installed;
use serde::{Deserialize, Serialize};

use crate::connection::Connection;

/// The findings for a browser, by name.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Browser {
    pub(crate) version: String,
    #[serde(rename = "habits")]
    pub(crate) findings: BTreeMap<String, String>,
}

/// A finding with the connections that show it.
#[derive(Clone, Debug, Serialize)]
struct Evidence {
    #[serde(rename = "response")]
    finding: String,
    connections: Vec<String>,
}

/// Version and findings of each browser, by make.
type Findings = BTreeMap<String, (String, BTreeMap<String, Evidence>)>;

static FINDINGS: Mutex<Findings> = Mutex::new(BTreeMap::new());

/// Records a finding. It is an error if a different one is documented for the same browser version.
pub(crate) fn record_finding(
    installed: &Installed,
    name: &str,
    finding: &str,
    connections: &[Connection],
) -> Result<(), String> {
    let make = installed.kind.to_string();
    let mut all = FINDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, findings) =
        all.entry(make.clone()).or_insert_with(|| (installed.version.clone(), BTreeMap::new()));
    let connections = connections.iter().map(ToString::to_string).collect();
    findings.insert(name.to_owned(), Evidence { finding: finding.to_owned(), connections });
    let documented = documented();
    let Some(documented) = documented.get(&make) else { return Ok(()) };
    match documented.findings.get(name) {
        Some(before) if before == finding => Ok(()),
        Some(before) if documented.version == installed.version && !varies(name) => {
            Err(format!("{name}: {finding:?}, but docs/measure/browsers.toml has {before:?}"))
        }
        Some(before) => {
            let Installed { version, .. } = installed;
            println!(
                "note: {make} {version}: {name}: {finding:?}; {before:?} in {}",
                documented.version
            );
            Ok(())
        }
        None => {
            println!("note: {make}: {name}: {finding:?}, not in docs/measure/browsers.toml");
            Ok(())
        }
    }
}

/// Whether a finding depends on which of several connections is faster.
fn varies(name: &str) -> bool {
    [
        "page-of-six-images",
        "h2-six-returns",
        "two-names",
        "side-by-side",
        "speculation",
        "-next-visit",
    ]
    .iter()
    .any(|part| name.contains(part))
}

/// Writes all findings with their evidence to the directory in the environment variable
/// BROWSERS_RESULTS.
pub(crate) fn write_results() {
    let Some(directory) = std::env::var_os("BROWSERS_RESULTS") else { return };
    let all = FINDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut summary: BTreeMap<&String, Browser> = BTreeMap::new();
    let mut evidence = serde_json::Map::new();
    for (make, (version, findings)) in &*all {
        let named =
            findings.iter().map(|(name, evidence)| (name.clone(), evidence.finding.clone()));
        summary.insert(make, Browser { version: version.clone(), findings: named.collect() });
        let value = serde_json::json!({ "version": version, "habits": findings });
        evidence.insert(make.clone(), value);
    }
    let directory = Path::new(&directory);
    let evidence = serde_json::to_string_pretty(&evidence).unwrap();
    fs::write(directory.join("browsers-habits.json"), evidence + "\n").unwrap();
    let text = toml::to_string(&summary).unwrap();
    fs::write(directory.join("browsers-habits.toml"), text).unwrap();
}

/// The findings in `docs/measure/browsers.toml`.
fn documented() -> BTreeMap<String, Browser> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/measure/browsers.toml");
    let text = fs::read_to_string(path).unwrap_or_default();
    toml::from_str(&text).expect("docs/measure/browsers.toml holds findings")
}
