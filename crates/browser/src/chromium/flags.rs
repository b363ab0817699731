//! Command line flags and preferences of Chromium.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::{Quic, Settings};

/// All flags except [`DRIVER_FLAGS`].
pub(super) fn all(data: &Path, settings: &Settings) -> Vec<String> {
    let mut flags: Vec<_> = QUIET_FLAGS.iter().map(|&flag| flag.to_owned()).collect();
    flags.push(format!("--user-data-dir={}", data.display()));
    flags.push(format!("--host-resolver-rules={}", resolver_rules(settings)));
    flags.extend(quic(settings));
    let enabled: &[&str] = if settings.early_data { &["EnableTLS13EarlyData"] } else { &[] };
    let mut extra = settings.extra.clone();
    flags.extend(features("--enable-features=", enabled, &mut extra));
    flags.extend(features("--disable-features=", &DISABLED_FEATURES, &mut extra));
    flags.extend(extra);
    flags
}

/// Merges `ours` and the features of the same flag in `extra` into one flag, and removes the latter
/// from `extra`: Chromium reads only the last flag of a name.
fn features(flag: &str, ours: &[&str], extra: &mut Vec<String>) -> Option<String> {
    let mut all: Vec<String> = ours.iter().map(|&feature| feature.to_owned()).collect();
    extra.retain(|other| match other.strip_prefix(flag) {
        Some(features) => {
            all.push(features.to_owned());
            false
        }
        None => true,
    });
    (!all.is_empty()).then(|| format!("{flag}{}", all.join(",")))
}

/// Over QUIC, Chromium refuses certificates of additional roots except for hosts with forced QUIC. So
/// each host is listed as forced, with a port that nobody listens on.
fn quic(settings: &Settings) -> Vec<String> {
    let known = match &settings.quic {
        Quic::Off => return vec!["--disable-quic".to_owned()],
        Quic::Known(origins) => origins.as_slice(),
        Quic::Advertised => &[],
    };
    let allowed = settings.hosts.iter().map(|(name, _)| format!("{name}:1"));
    let origins: Vec<_> = known.iter().cloned().chain(allowed).collect();
    let origins = format!("--origin-to-force-quic-on={}", origins.join(","));
    let mut flags = vec!["--enable-quic".to_owned(), origins];
    if !settings.early_data {
        // Over QUIC, early data is a field trial parameter, and enabled by default.
        flags.push("--force-fieldtrials=QUIC/Enabled/".to_owned());
        let parameter = "QUIC.Enabled:disable_tls_zero_rtt/true";
        flags.push(format!("--force-fieldtrial-params={parameter}"));
    }
    flags
}

/// The settings in `Default/Preferences`.
pub(super) fn preferences(settings: &Settings) -> Value {
    // 2 means never.
    let prediction = if settings.speculation { 0 } else { 2 };
    json!({
        "net": { "network_prediction_options": prediction },
        "dns_over_https": { "mode": "off" },
        "search": { "suggest_enabled": false },
        "alternate_error_pages": { "enabled": false },
        "safebrowsing": { "enabled": false },
        "signin": { "allowed": false },
    })
}

/// Resolver rules: the hosts of the settings, and no other names. IP addresses count as names here.
fn resolver_rules(settings: &Settings) -> String {
    let mut rules = String::new();
    for (name, address) in &settings.hosts {
        // Writing to a string cannot fail.
        let _ = write!(rules, "MAP {name} {address}, ");
    }
    rules.push_str("MAP * ~NOTFOUND");
    for (_, address) in &settings.hosts {
        let _ = write!(rules, ", EXCLUDE {address}");
    }
    rules
}

/// Headless, driven by pipes.
pub(super) const DRIVER_FLAGS: [&str; 4] =
    ["--headless", "--no-startup-window", "--remote-debugging-pipe", "--window-size=1280,800"];

/// Disables traffic that no page causes.
const QUIET_FLAGS: [&str; 18] = [
    // The sandbox needs privileges that do not exist in a user namespace.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-pings",
    "--password-store=basic",
];

const DISABLED_FEATURES: [&str; 5] = [
    "DialMediaRouteProvider",
    "MediaRouter",
    "OptimizationHints",
    "Translate",
    "CertificateTransparencyComponentUpdater",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_given_hosts_are_resolved() {
        let hosts = vec![("lab.test".to_owned(), "10.0.0.2".parse().unwrap())];
        let settings = Settings { hosts, ..Settings::default() };
        assert_eq!(
            resolver_rules(&settings),
            "MAP lab.test 10.0.0.2, MAP * ~NOTFOUND, EXCLUDE 10.0.0.2"
        );
        assert_eq!(resolver_rules(&Settings::default()), "MAP * ~NOTFOUND");
    }

    #[test]
    fn early_data_and_quic_are_off_by_default() {
        let flags = all(Path::new("/p"), &Settings::default());
        assert!(flags.iter().any(|flag| flag == "--disable-quic"));
        assert!(!flags.iter().any(|flag| flag.contains("EarlyData")));
        let quic = Quic::Known(vec!["lab.test:443".to_owned()]);
        let settings = Settings { early_data: true, quic, ..Settings::default() };
        let flags = all(Path::new("/p"), &settings);
        assert!(flags.iter().any(|flag| flag == "--enable-features=EnableTLS13EarlyData"));
        assert!(flags.iter().any(|flag| flag == "--origin-to-force-quic-on=lab.test:443"));
        let hosts = vec![("lab.test".to_owned(), "10.0.0.2".parse().unwrap())];
        let settings = Settings { quic: Quic::Advertised, hosts, ..Settings::default() };
        let flags = all(Path::new("/p"), &settings);
        assert!(flags.iter().any(|flag| flag == "--origin-to-force-quic-on=lab.test:1"));
    }

    #[test]
    fn extra_features_are_added_to_ours() {
        let extra = ["--enable-features=A,B", "--x", "--disable-features=C"].map(str::to_owned);
        let settings = Settings { early_data: true, extra: extra.into(), ..Settings::default() };
        let flags = all(Path::new("/p"), &settings);
        let named = |name: &str| {
            let named = flags.iter().filter(|flag| flag.starts_with(name));
            named.cloned().collect::<Vec<_>>()
        };
        assert_eq!(named("--enable-f"), ["--enable-features=EnableTLS13EarlyData,A,B"]);
        let disabled = named("--disable-features");
        assert_eq!(disabled.len(), 1);
        assert!(disabled[0].contains("Translate,") && disabled[0].ends_with(",C"), "{disabled:?}");
        assert_eq!(flags.last().map(String::as_str), Some("--x"));
        let none = Settings { extra: vec!["--enable-features=A".to_owned()], ..settings };
        let flags = all(Path::new("/p"), &Settings { early_data: false, ..none });
        assert!(flags.iter().any(|flag| flag == "--enable-features=A"));
    }
}
