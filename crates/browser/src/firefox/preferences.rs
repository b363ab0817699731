//! What Firefox is told by its preferences.

use serde_json::{Value, json};

use crate::{Quic, Settings};

/// `user.js` of a profile.
pub(super) fn all(settings: &Settings, more: &[(&str, Value)]) -> String {
    let mut all: Vec<(String, Value)> =
        QUIET.iter().map(|&(name, value)| (name.to_owned(), value.value())).collect();
    let mut set = |name: &str, value: Value| all.push((name.to_owned(), value));
    set("security.tls.enable_0rtt_data", json!(settings.early_data));
    set("network.http.http3.enable_0rtt", json!(settings.early_data));
    set("network.http.http3.enable", json!(settings.quic != Quic::Off));
    if let Quic::Known(origins) = &settings.quic {
        let known: Vec<_> = origins.iter().filter_map(|origin| mapping(origin)).collect();
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
    // Names without an address of their own go to a proxy that is not there.
    let near: Vec<_> = settings
        .hosts
        .iter()
        .flat_map(|(name, address)| [name.clone(), address.to_string()])
        .collect();
    set("network.proxy.no_proxies_on", json!(near.join(", ")));
    for (name, value) in more {
        set(name, value.clone());
    }
    all.extend(settings.more.iter().filter_map(|more| one_more(more)));
    all.iter().map(|(name, value)| format!("user_pref({}, {value});\n", json!(name))).collect()
}

/// How `host:port` is known to speak HTTP/3.
fn mapping(origin: &str) -> Option<String> {
    let (host, port) = origin.rsplit_once(':')?;
    Some(format!("{host};h3=:{port}"))
}

fn one_more(more: &str) -> Option<(String, Value)> {
    let (name, value) = more.split_once('=')?;
    let value = match value {
        "true" => json!(true),
        "false" => json!(false),
        other => other.parse::<i32>().map_or_else(|_| json!(other), |number| json!(number)),
    };
    Some((name.to_owned(), value))
}

/// A preference's value.
#[derive(Clone, Copy)]
enum Set {
    Is(bool),
    Number(i32),
    Text(&'static str),
}

impl Set {
    fn value(self) -> Value {
        match self {
            Self::Is(value) => json!(value),
            Self::Number(value) => json!(value),
            Self::Text(value) => json!(value),
        }
    }
}

/// Nothing that it does by itself, and clocks as they are. Its driver sets more of the kind
/// (`remote.prefs.recommended`), but only after the start.
const QUIET: [(&str, Set); 43] = [
    ("app.normandy.enabled", Set::Is(false)),
    ("app.update.disabledForTesting", Set::Is(true)),
    ("browser.aboutwelcome.enabled", Set::Is(false)),
    ("browser.chrome.site_icons", Set::Is(false)),
    ("browser.ml.enable", Set::Is(false)),
    ("browser.newtabpage.enabled", Set::Is(false)),
    ("browser.region.network.url", Set::Text("")),
    ("browser.region.update.enabled", Set::Is(false)),
    ("browser.safebrowsing.downloads.enabled", Set::Is(false)),
    ("browser.safebrowsing.malware.enabled", Set::Is(false)),
    ("browser.safebrowsing.phishing.enabled", Set::Is(false)),
    ("browser.search.update", Set::Is(false)),
    ("browser.shell.checkDefaultBrowser", Set::Is(false)),
    ("browser.startup.homepage", Set::Text("about:blank")),
    ("browser.startup.page", Set::Number(0)),
    ("browser.startup.homepage_override.mstone", Set::Text("ignore")),
    ("datareporting.policy.dataSubmissionEnabled", Set::Is(false)),
    ("dom.push.connection.enabled", Set::Is(false)),
    ("extensions.getAddons.cache.enabled", Set::Is(false)),
    ("extensions.systemAddon.update.enabled", Set::Is(false)),
    ("extensions.update.enabled", Set::Is(false)),
    ("media.gmp-manager.updateEnabled", Set::Is(false)),
    ("network.captive-portal-service.enabled", Set::Is(false)),
    ("network.connectivity-service.enabled", Set::Is(false)),
    ("network.dns.disablePrefetch", Set::Is(true)),
    // It would ask a name server of its own accord for HTTPS records of every name.
    ("network.dns.native_https_query", Set::Is(false)),
    ("network.dns.upgrade_with_https_rr", Set::Is(false)),
    ("network.dns.use_https_rr_as_altsvc", Set::Is(false)),
    ("network.http.http3.disable_when_third_party_roots_found", Set::Is(false)),
    ("network.manage-offline-status", Set::Is(false)),
    ("network.predictor.enabled", Set::Is(false)),
    ("network.prefetch-next", Set::Is(false)),
    ("network.proxy.http", Set::Text("127.0.0.1")),
    ("network.proxy.http_port", Set::Number(9)),
    ("network.proxy.ssl", Set::Text("127.0.0.1")),
    ("network.proxy.ssl_port", Set::Number(9)),
    ("network.proxy.type", Set::Number(1)),
    ("network.trr.mode", Set::Number(5)),
    ("privacy.reduceTimerPrecision", Set::Is(false)),
    ("security.OCSP.enabled", Set::Number(0)),
    ("security.remote_settings.crlite_filters.enabled", Set::Is(false)),
    ("services.settings.server", Set::Text("data:,#remote-settings-dummy/v1")),
    ("toolkit.telemetry.enabled", Set::Is(false)),
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
            more: vec!["a.b=7".to_owned(), "c=x\"y".to_owned(), "d=false".to_owned()],
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
