//! Preferences of Firefox.

use serde_json::{Value, json};

use crate::{Quic, Settings};

/// The content of `user.js` in a profile.
pub(super) fn all(settings: &Settings, extra: &[(&str, Value)]) -> String {
    let mut all: Vec<(String, Value)> =
        QUIET_PREFERENCES.iter().map(|&(name, value)| (name.to_owned(), value.value())).collect();
    let mut set = |name: &str, value: Value| all.push((name.to_owned(), value));
    set("security.tls.enable_0rtt_data", json!(settings.early_data));
    set("network.http.http3.enable_0rtt", json!(settings.early_data));
    set("network.http.http3.enable", json!(settings.quic != Quic::Off));
    if let Quic::Known(origins) = &settings.quic {
        let known: Vec<_> = origins.iter().filter_map(|origin| alt_svc_mapping(origin)).collect();
        set("network.http.http3.alt-svc-mapping-for-testing", json!(known.join(",")));
        set("network.http.http3.force-use-alt-svc-mapping-for-testing", json!(true));
    }
    if let Some(offered) = settings.post_quantum {
        set("security.tls.enable_kyber", json!(offered));
        set("network.http.http3.enable_kyber", json!(offered));
    }
    for name in ["browser.cache.disk.enable", "browser.cache.memory.enable"] {
        set(name, json!(settings.cache));
    }
    if !settings.speculation {
        set("network.http.speculative-parallel-limit", json!(0));
        set("network.early-hints.preconnect.enabled", json!(false));
    }
    // Requests for other names go to a proxy that does not exist.
    let direct: Vec<_> = settings
        .hosts
        .iter()
        .flat_map(|(name, address)| [name.clone(), address.to_string()])
        .collect();
    set("network.proxy.no_proxies_on", json!(direct.join(", ")));
    for (name, value) in extra {
        set(name, value.clone());
    }
    all.extend(settings.extra.iter().filter_map(|extra| parse_extra(extra)));
    all.iter().map(|(name, value)| format!("user_pref({}, {value});\n", json!(name))).collect()
}

/// An Alt-Svc mapping that says that `host:port` supports HTTP/3.
fn alt_svc_mapping(origin: &str) -> Option<String> {
    let (host, port) = origin.rsplit_once(':')?;
    Some(format!("{host};h3=:{port}"))
}

/// Parses `name=value`.
fn parse_extra(extra: &str) -> Option<(String, Value)> {
    let (name, value) = extra.split_once('=')?;
    let value = match value {
        "true" => json!(true),
        "false" => json!(false),
        other => other.parse::<i32>().map_or_else(|_| json!(other), |number| json!(number)),
    };
    Some((name.to_owned(), value))
}

/// The value of a preference.
#[derive(Clone, Copy)]
enum Preference {
    Bool(bool),
    Number(i32),
    Text(&'static str),
}

impl Preference {
    fn value(self) -> Value {
        match self {
            Self::Bool(value) => json!(value),
            Self::Number(value) => json!(value),
            Self::Text(value) => json!(value),
        }
    }
}

/// Disables traffic that no page causes, and rounding of clocks. The driver sets further preferences
/// (`remote.prefs.recommended`), but only after the start.
const QUIET_PREFERENCES: [(&str, Preference); 43] = [
    ("app.normandy.enabled", Preference::Bool(false)),
    ("app.update.disabledForTesting", Preference::Bool(true)),
    ("browser.aboutwelcome.enabled", Preference::Bool(false)),
    ("browser.chrome.site_icons", Preference::Bool(false)),
    ("browser.ml.enable", Preference::Bool(false)),
    ("browser.newtabpage.enabled", Preference::Bool(false)),
    ("browser.region.network.url", Preference::Text("")),
    ("browser.region.update.enabled", Preference::Bool(false)),
    ("browser.safebrowsing.downloads.enabled", Preference::Bool(false)),
    ("browser.safebrowsing.malware.enabled", Preference::Bool(false)),
    ("browser.safebrowsing.phishing.enabled", Preference::Bool(false)),
    ("browser.search.update", Preference::Bool(false)),
    ("browser.shell.checkDefaultBrowser", Preference::Bool(false)),
    ("browser.startup.homepage", Preference::Text("about:blank")),
    ("browser.startup.page", Preference::Number(0)),
    ("browser.startup.homepage_override.mstone", Preference::Text("ignore")),
    ("datareporting.policy.dataSubmissionEnabled", Preference::Bool(false)),
    ("dom.push.connection.enabled", Preference::Bool(false)),
    ("extensions.getAddons.cache.enabled", Preference::Bool(false)),
    ("extensions.systemAddon.update.enabled", Preference::Bool(false)),
    ("extensions.update.enabled", Preference::Bool(false)),
    ("media.gmp-manager.updateEnabled", Preference::Bool(false)),
    ("network.captive-portal-service.enabled", Preference::Bool(false)),
    ("network.connectivity-service.enabled", Preference::Bool(false)),
    ("network.dns.disablePrefetch", Preference::Bool(true)),
    // Otherwise it queries HTTPS records of every name.
    ("network.dns.native_https_query", Preference::Bool(false)),
    ("network.dns.upgrade_with_https_rr", Preference::Bool(false)),
    ("network.dns.use_https_rr_as_altsvc", Preference::Bool(false)),
    ("network.http.http3.disable_when_third_party_roots_found", Preference::Bool(false)),
    ("network.manage-offline-status", Preference::Bool(false)),
    ("network.predictor.enabled", Preference::Bool(false)),
    ("network.prefetch-next", Preference::Bool(false)),
    ("network.proxy.http", Preference::Text("127.0.0.1")),
    ("network.proxy.http_port", Preference::Number(9)),
    ("network.proxy.ssl", Preference::Text("127.0.0.1")),
    ("network.proxy.ssl_port", Preference::Number(9)),
    ("network.proxy.type", Preference::Number(1)),
    ("network.trr.mode", Preference::Number(5)),
    ("privacy.reduceTimerPrecision", Preference::Bool(false)),
    ("security.OCSP.enabled", Preference::Number(0)),
    ("security.remote_settings.crlite_filters.enabled", Preference::Bool(false)),
    ("services.settings.server", Preference::Text("data:,#remote-settings-dummy/v1")),
    ("toolkit.telemetry.enabled", Preference::Bool(false)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences_are_lines_of_a_script() {
        let settings = Settings {
            early_data: true,
            quic: Quic::Known(vec!["lab.test:443".to_owned()]),
            hosts: vec![("lab.test".to_owned(), "10.0.0.2".parse().unwrap())],
            extra: vec!["a.b=7".to_owned(), "c=x\"y".to_owned(), "d=false".to_owned()],
            ..Settings::default()
        };
        let text = all(&settings, &[("e", json!(1))]);
        for line in [
            r#"user_pref("security.tls.enable_0rtt_data", true);"#,
            r#"user_pref("network.http.http3.alt-svc-mapping-for-testing", "lab.test;h3=:443");"#,
            r#"user_pref("network.proxy.no_proxies_on", "lab.test, 10.0.0.2");"#,
            r#"user_pref("a.b", 7);"#,
            r#"user_pref("c", "x\"y");"#,
            r#"user_pref("d", false);"#,
            r#"user_pref("e", 1);"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
