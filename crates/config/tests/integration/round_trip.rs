//! A written configuration file is read as the same configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_config::{
    AccessLogFormat, AccessLogSettings, AcmeConfig, Action, AdminSettings, CertificateSource,
    ChallengeKind, Content, EarlyRules, FileSettings, KeySource, Limits, Listener,
    ListenerProtocol, LogFormat, LogSettings, Mode, Nonce, Policy, ProcessSettings, RateLimit,
    Redirect, Route, ServerConfig, Site, Sites, TicketSettings, Timestamp, TlsSettings,
    WhenNotAllowed,
};
use firstflight_store::{Address, StoreConfig, StoreTls, Topology};
use firstflight_telemetry::otlp::TelemetrySettings;
use firstflight_tickets::Schedule;
use firstflight_tls::{CipherPreference, Version};
use firstflight_upstream::{Balance, EjectionRule, HealthCheck, PoolConfig, Protocol};
use http::{HeaderName, HeaderValue, StatusCode};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// The longest period of a rate limit.
const DAY: Duration = Duration::from_secs(24 * 3600);

fn duration() -> impl Strategy<Value = Duration> {
    (1..100_000u64).prop_map(Duration::from_millis)
}

fn record_lifetime() -> impl Strategy<Value = Duration> {
    (60..100_000u64).prop_map(Duration::from_secs)
}

fn path() -> impl Strategy<Value = PathBuf> {
    "/[a-z]{1,8}(/[a-z .ä]{1,8})?".prop_map(PathBuf::from)
}

fn mode() -> impl Strategy<Value = Mode> {
    select(&Mode::ALL)
}

fn fields() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    btree_map("x-[a-z]{1,5}", vec("[ -~]{0,9}", 1..3), 0..3).prop_map(|fields| {
        let pairs = fields.into_iter().flat_map(|(name, values)| {
            let name = HeaderName::try_from(name).unwrap();
            values
                .into_iter()
                .map(move |value| (name.clone(), HeaderValue::try_from(value).unwrap()))
        });
        pairs.collect()
    })
}

fn listener() -> impl Strategy<Value = Listener> {
    (any::<[u8; 4]>(), any::<bool>(), any::<bool>()).prop_map(|(ip, http3, proxied)| Listener {
        http3,
        proxy_protocol_from: match proxied {
            true => vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
            false => Vec::new(),
        },
        ..Listener::new((ip, 0).into())
    })
}

fn certificate() -> impl Strategy<Value = CertificateSource> {
    prop_oneof![
        (path(), path()).prop_map(|(cert, key)| CertificateSource::Files { cert, key }),
        Just(CertificateSource::Development),
        (vec("[a-z]{1,5}", 1..3), option::of(path()))
            .prop_map(|(names, save)| CertificateSource::SelfSigned { names, save }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let files = (path(), any::<bool>(), any::<bool>()).prop_map(
        |(root, precompressed, follow_symlinks)| {
            let precompressed = if precompressed { vec!["br".to_owned()] } else { Vec::new() };
            Action::Files(FileSettings { root, precompressed, follow_symlinks })
        },
    );
    let redirect = select(vec![301u16, 302, 303, 307, 308]).prop_map(|status| {
        let keep_path = status == 301;
        let to = if keep_path { "https://example.test/" } else { "https://example.test/?a=b" };
        Action::Redirect(Redirect {
            to: HeaderValue::from_static(to),
            keep_path,
            status: StatusCode::from_u16(status).unwrap(),
        })
    });
    prop_oneof![
        files,
        redirect,
        Just(Action::Upstream("app".to_owned())),
        (200..600u16).prop_map(|code| Action::Status(StatusCode::from_u16(code).unwrap())),
    ]
}

fn route() -> impl Strategy<Value = Route> {
    let early = (
        option::of(mode()),
        option::of(record_lifetime()),
        option::of(record_lifetime()),
        any::<bool>(),
    );
    (action(), fields(), early).prop_map(|(action, headers, (mode, key, window, flight))| {
        let header = HeaderName::from_static("x-header");
        let to_upstream = matches!(action, Action::Upstream(_));
        Route {
            headers,
            early: EarlyRules {
                mode,
                idempotency_key: key,
                timestamp: window.map(|window| Timestamp { header: header.clone(), window }),
                nonce: window.map(|lifetime| Nonce { header: header.clone(), lifetime }),
                flight_header: (flight && to_upstream).then_some(header),
            },
            rewrite: (flight && to_upstream).then(|| "/v2".to_owned()),
            compress: flight,
            early_hints: flight && to_upstream,
            users: flight.then(|| "/users".into()),
            rate_limit: key.map(|per| RateLimit { requests: 3, per: per.min(DAY), burst: None }),
            ..Route::new("/", action)
        }
    })
}

fn site() -> impl Strategy<Value = Site> {
    (vec(route(), 1..4), fields(), option::of((path(), path())), option::of(path())).prop_map(
        |(mut routes, headers, files, ocsp)| {
            for (at, route) in routes.iter_mut().enumerate() {
                route.path = format!("/{at}/ä b");
            }
            let certificate = files.map(|(cert, key)| CertificateSource::Files { cert, key });
            let other_certificates = match &certificate {
                Some(_) => vec![("/rsa.pem".into(), "/rsa.key".into())],
                None => Vec::new(),
            };
            Site { headers, certificate, other_certificates, ocsp, ..Site::new(routes) }
        },
    )
}

fn pool() -> impl Strategy<Value = PoolConfig> {
    let times = (duration(), duration(), option::of(duration()));
    let rules = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (times, rules, 1..9usize).prop_map(|((connect, interval, response), (a, b, c, d), number)| {
        PoolConfig {
            protocol: if a { Protocol::Http2 } else { Protocol::Http1 },
            balance: if b { Balance::RoundRobin } else { Balance::LeastRequests },
            connect_timeout: connect,
            response_timeout: response,
            idle_connections: number,
            requests: number,
            health_check: d.then(|| HealthCheck {
                host: c.then(|| "app.test".to_owned()),
                interval,
                ..HealthCheck::new("/health?x".parse().unwrap())
            }),
            ejection: c
                .then(|| EjectionRule { most: Duration::from_secs(7), ..EjectionRule::default() }),
            proxy_protocol: a.then(Default::default),
            ca: b.then(|| "/ca.pem".into()),
            ..PoolConfig::new(vec![
                "https://app.test:1".parse().unwrap(),
                "unix:/run/app".parse().unwrap(),
            ])
        }
    })
}

fn content() -> impl Strategy<Value = Content> {
    (vec(site(), 1..3), pool()).prop_map(|(mut sites, pool)| {
        for (at, site) in sites.iter_mut().enumerate() {
            site.names = vec![format!("a{at}.test"), format!("*.a{at}.test")];
        }
        Content::Sites(Sites { sites, upstreams: [("app".to_owned(), pool)].into() })
    })
}

fn tls() -> impl Strategy<Value = TlsSettings> {
    let versions = select(vec![Version::Tls10, Version::Tls11, Version::Tls12]);
    (versions, option::of("[A-Z:]{1,9}"), any::<bool>(), 0..5usize).prop_map(
        |(min_version, list, switch, tickets)| {
            let mut tls = TlsSettings { min_version, tickets, http2: switch, ..Default::default() };
            tls.ciphers.ciphers = list.clone();
            tls.ciphers.groups = list;
            if switch {
                tls.cipher_preference = CipherPreference::Client;
            }
            tls
        },
    )
}

fn store() -> impl Strategy<Value = StoreConfig> {
    let address = |port| Address::Tcp("store.test".to_owned(), port);
    let topology = prop_oneof![
        Just(Topology::Single(Address::Unix("/run/store".into()))),
        Just(Topology::Single(address(1))),
        Just(Topology::Sentinel { sentinels: vec![address(1), address(2)], master: "m".into() }),
        Just(Topology::Cluster { seeds: vec![address(3)] }),
    ];
    (topology, any::<bool>(), 1..60u64).prop_map(|(topology, tls, number)| {
        let unix = matches!(topology, Topology::Single(Address::Unix(_)));
        let mut store = StoreConfig::new(topology);
        store.tls = (tls && !unix).then(|| StoreTls {
            ca_file: Some("/ca.pem".into()),
            server_name: Some("name".to_owned()),
        });
        store.budget = Duration::from_micros(number * 100);
        store.replicas = number as u32;
        store.connections = number as usize;
        store.shared.clock_margin = Duration::from_secs(number);
        store
    })
}

fn keys(has_store: bool) -> impl Strategy<Value = KeySource> {
    (path(), 60..10_000u64, 0..4).prop_map(move |(path, seconds, kind)| match kind {
        0 => KeySource::Process,
        3 if !has_store => KeySource::Punctured,
        1 if has_store => {
            let time = Duration::from_secs(seconds);
            let schedule = Schedule::new(time, 2 * time).unwrap();
            KeySource::Store { key_encryption: path, schedule }
        }
        _ => KeySource::File(path),
    })
}

fn config() -> impl Strategy<Value = ServerConfig> {
    let served = (vec(listener(), 0..3), certificate(), content(), tls());
    let early = (any::<bool>(), mode(), mode(), duration());
    let shared = option::of(store()).prop_flat_map(|store| {
        let keys = keys(store.is_some());
        (Just(store), keys, any::<bool>())
    });
    let rest = (option::of(path()), option::of(duration()), any::<bool>(), 1..9u16);
    (served, early, shared, rest).prop_map(|(served, early, shared, rest)| {
        let mut config = ServerConfig::default();
        (config.listeners, config.certificate, config.content, config.tls) = served;
        config.listeners.extend(
            config
                .listeners
                .first()
                .cloned()
                .map(|listener| Listener { protocol: ListenerProtocol::Redirect, ..listener }),
        );
        let settings = &mut config.early_data;
        settings.enabled = early.0;
        settings.policy =
            Policy::new(early.1).rule("/a b", early.2).unwrap().rule("/a/ä", early.1).unwrap();
        settings.freshness = early.3.min(Duration::from_secs(60));
        settings.when_not_allowed = WhenNotAllowed::TooEarly;
        let (store, keys, switch) = shared;
        config.store = store.map(|mut store| {
            store.shared.freshness = settings.freshness;
            store
        });
        let single_use = switch && config.store.is_some();
        let name = switch.then(|| "eu-west".to_owned());
        config.tickets = TicketSettings {
            keys,
            zone: name.clone(),
            node: name,
            single_use,
            across_names: switch,
        };
        let (path, time, switch, number) = rest;
        config.http3.alt_svc = time;
        config.http3.token_lifetime = time;
        config.limits = Limits {
            idle_timeout: time.unwrap_or(Duration::from_secs(7)),
            keep_alive: switch,
            streams: number.into(),
            ..Limits::default()
        };
        let format = if switch { LogFormat::Json } else { LogFormat::Text };
        config.access_log = switch
            .then(|| AccessLogSettings { file: path.clone(), format: AccessLogFormat::Combined });
        config.log = LogSettings { format, level: "warn,a=debug".to_owned() };
        config.admin = path.map(|path| {
            let mut admin = AdminSettings::new(format!("unix:{}", path.display()).parse().unwrap());
            admin.token_file = switch.then_some(path);
            admin
        });
        if let (true, Content::Sites(sites)) = (switch, &mut config.content)
            && let Some(site) = sites.sites.first_mut()
        {
            site.names = vec!["acme.test".to_owned()];
            site.certificate = Some(CertificateSource::Acme);
            site.other_certificates.clear();
            config.acme = Some(AcmeConfig {
                contact: vec!["ops@example.test".to_owned()],
                terms_agreed: true,
                state: "/state".into(),
                challenges: vec![ChallengeKind::Http01],
                authority: config.tls.key_log.clone(),
                ..AcmeConfig::default()
            });
        }
        config.telemetry = switch.then(|| TelemetrySettings {
            otlp: Some("http://127.0.0.1:4318".parse().unwrap()),
            traces_sampled: 0.25,
            metrics_interval: time
                .map(|time| time.clamp(Duration::from_secs(1), Duration::from_secs(86_400))),
            ..TelemetrySettings::default()
        });
        config.process = ProcessSettings {
            workers: switch.then_some(number),
            user: switch.then(|| "nobody".to_owned()),
            watch: switch,
            ..ProcessSettings::default()
        };
        config
    })
}

proptest! {
    #[test]
    fn a_written_file_is_read_as_the_same_configuration(config in config()) {
        let text = config.to_toml();
        let read = ServerConfig::parse(&text, Path::new("written.toml"));
        prop_assert!(read.is_ok(), "{}\n{text}", read.unwrap_err());
        prop_assert_eq!(read.unwrap(), config);
    }
}
