//! Built-in profiles against published figures, and errors in files.

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::{
    BurstyLossSpec, DelaySpec, Distribution, DuplicateSpec, JitterSpec, LossSpec, Middlebox,
    MtuSpec, PathConfig, RateSpec, ReconfigurationSpec, ReorderSpec, TooBig,
};

fn rate(cells: &[CellSpec]) -> Option<f64> {
    cells.iter().find_map(|cell| match cell {
        CellSpec::Rate(RateSpec { mbits, .. }) => Some(*mbits),
        _ => None,
    })
}

fn ms(profile: &Profile) -> f64 {
    profile.rtt().as_secs_f64() * 1e3
}

#[test]
fn built_in_profiles_have_the_published_figures_with_sources() {
    let expected = [
        ("lan", 0.2, None),
        ("datacenter", 0.5, None),
        ("same-region", 2.0, Some((1_000.0, 1_000.0))),
        ("cross-region", 70.0, Some((1_000.0, 1_000.0))),
        ("fibre", 4.0, Some((20.0, 5.0))),
        ("cable", 28.0, Some((5.0, 1.0))),
        ("adsl", 50.0, Some((1.5, 0.384))),
        ("fibre+wifi", 4.0, Some((20.0, 5.0))),
        ("cable+wifi", 28.0, Some((5.0, 1.0))),
        ("4g", 53.0, Some((29.5, 7.6))),
        ("5g", 19.0, Some((129.9, 14.7))),
        ("4g-slow", 170.0, Some((9.0, 9.0))),
        ("3g", 300.0, Some((1.6, 0.768))),
        ("2g", 800.0, Some((0.28, 0.256))),
        ("leo", 50.0, Some((150.0, 20.0))),
        ("geo", 600.0, Some((100.0, 10.0))),
    ];
    let networks = Profile::networks();
    assert_eq!(networks.len(), expected.len());
    for (profile, (name, rtt_ms, rates)) in networks.iter().zip(expected) {
        assert_eq!(profile.name, name);
        assert_eq!(ms(profile), rtt_ms, "{name}");
        assert_eq!(rate(&profile.down).zip(rate(&profile.up)), rates, "{name}");
        assert!(!profile.source.is_empty(), "{name} has a source");
        assert_eq!(&Profile::parse(name).expect("found"), profile);
    }
    for (name, rtt_ms) in [("curl-18", 18.0), ("curl-260", 260.0), ("walkthrough", 112.0)] {
        let profile = Profile::parse(name).expect("found");
        assert_eq!((ms(&profile), profile.up.len()), (rtt_ms, 1), "{name}");
    }
}

#[test]
fn the_median_rtt_includes_the_jitter_of_both_ways() {
    for (name, expected) in
        [("20", 20.0), ("adsl", 50.0), ("leo", 50.0), ("fibre+wifi", 14.0), ("cable+wifi", 38.0)]
    {
        let median = Profile::parse(name).expect("found").median_rtt().as_secs_f64() * 1e3;
        assert!((median - expected).abs() <= 0.1, "{name}: {median}");
    }
}

/// The RTTs that result from the delay distribution of each way, in ascending order.
fn rtts(profile: &Profile, correlated: bool) -> Vec<f64> {
    let mut random = StdRng::seed_from_u64(1);
    let mut other = StdRng::seed_from_u64(if correlated { 1 } else { 2 });
    let distribution = |cells: &[CellSpec]| {
        cells
            .iter()
            .find_map(|cell| match cell {
                CellSpec::Jitter(JitterSpec { distribution, .. })
                | CellSpec::Reconfiguration(ReconfigurationSpec { distribution, .. }) => {
                    Some(distribution.clone())
                }
                _ => None,
            })
            .expect("a random delay")
    };
    let (up, down): (Distribution, Distribution) =
        (distribution(&profile.up), distribution(&profile.down));
    let mut all: Vec<f64> = (0..100_000)
        .map(|_| {
            let there = up.draw(&mut random);
            let back = down.draw(&mut other);
            ms(profile) + there + back
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all
}

#[test]
fn random_delays_have_the_published_quantiles() {
    let at = |all: &[f64], quantile: f64| all[(quantile * all.len() as f64) as usize];
    let close = |found: f64, expected: f64, tolerance: f64| {
        assert!((found - expected).abs() < tolerance, "{found} instead of {expected}");
    };
    let adsl = rtts(&Profile::parse("adsl").expect("found"), false);
    close(at(&adsl, 0.5), 50.0, 0.1);
    close(at(&adsl, 0.8413) - 50.0, 6.0, 0.15);
    let leo = rtts(&Profile::parse("leo").expect("found"), true);
    close(at(&leo, 0.25), 40.0, 0.2);
    close(at(&leo, 0.5), 50.0, 0.2);
    close(at(&leo, 0.75), 60.0, 0.6);
    let wifi = rtts(&Profile::parse("fibre+wifi").expect("found"), false);
    close(at(&wifi, 0.5) - 4.0, 10.0, 0.3);
    close(at(&wifi, 0.75) - 4.0, 20.0, 2.0);
}

#[test]
fn numbers_are_round_trip_times() {
    for (text, rtt_ms) in [("20", 20.0), ("20ms", 20.0), (" 0.2 ms", 0.2), ("0.01", 0.01)] {
        let profile = Profile::parse(text).expect("a number");
        assert_eq!((ms(&profile), profile.up.len(), profile.down.len()), (rtt_ms, 1, 1), "{text}");
    }
    let both = Profile::parse("20+wifi").expect("a sum");
    assert_eq!((both.name.as_str(), both.up.len()), ("20 ms+wifi", 2));
}

#[test]
fn an_unknown_name_lists_the_profiles() {
    for text in [
        "fiber",
        "",
        "-1",
        "0",
        "0.009",
        "0+wifi",
        "NaN",
        "inf",
        "120001",
        "wifi",
        "fibre+cable",
        "fibre+",
        "+wifi",
    ] {
        let text = Profile::parse(text).expect_err(text).to_string();
        assert!(text.contains("fibre, cable, adsl") && text.contains("(wifi may"), "{text}");
        assert!(text.contains("0.01 to 120000 milliseconds"), "{text}");
    }
}

#[test]
fn networks_have_a_minimum_rtt_and_additions_do_not() {
    let parse = |fields: &str| file::parse("net.toml", &format!("\n[profile.a]\n{fields}"));
    for fields in ["rtt_ms = 0", "rtt_ms = 0.009", "rtt_ms = 0\nkind = \"experiment\""] {
        let text = parse(fields).expect_err(fields).to_string();
        assert!(text.contains("net.toml, line 2:") && text.contains("at least 0.01;"), "{text}");
    }
    for fields in
        ["rtt_ms = 0.01", "rtt_ms = 0\nup = { delay_ms = 5 }", "rtt_ms = 0\nkind = \"addition\""]
    {
        parse(fields).expect(fields);
    }
}

#[test]
fn an_addition_is_between_the_client_and_the_network() {
    let profile = Profile::parse("cable+wifi").expect("a sum");
    let names = |cells: &[CellSpec]| cells.iter().map(CellSpec::name).collect::<Vec<_>>();
    assert_eq!(names(&profile.up), ["jitter", "rate", "delay"]);
    assert_eq!(names(&profile.down), ["rate", "delay", "jitter"]);
    let config = PathConfig::from(&profile);
    assert_eq!((config.name.as_str(), &config.up), ("cable+wifi", &profile.up));
}

#[test]
fn a_file_can_configure_all_cells() {
    let text = r#"
        [profile.zoo]
        rtt_ms = 30
        [profile.zoo.each_way]
        middleboxes = ["strip-tfo", "drop-large-hello"]
        loss_percent = 1
        mtu = 1400
        [profile.zoo.up]
        delay_ms = 20
        rate_mbps = 8
        burst_bytes = 3000
        too_big = "black-hole"
        bursty_loss = { enter_percent = 1, leave_percent = 25 }
        reorder = { percent = 2, by_ms = 3 }
        duplicate_percent = 4
        [profile.zoo.down]
        rate_mbps = 80
        queue_bytes = 64000
        loss_percent = 0
        middleboxes = []
        jitter = { distribution = "uniform", spread_ms = 2, hold_ms = 5, overtakes = true }
        reconfiguration = { distribution = "quantiles", points = [[0, -1], [1, 1]], every_s = 2 }
        [profile.aviary]
        rtt_ms = 5
    "#;
    let profiles = file::parse("zoo.toml", text).expect("right");
    assert_eq!(profiles.iter().map(|p| &*p.name).collect::<Vec<_>>(), ["zoo", "aviary"]);
    let millis = Duration::from_millis;
    let queue_bytes = 100_000;
    assert_eq!(
        profiles[0].up,
        [
            CellSpec::Middlebox(Middlebox::StripTfo),
            CellSpec::Middlebox(Middlebox::DropLargeHello),
            CellSpec::Mtu(MtuSpec { bytes: 1_400, too_big: TooBig::BlackHole }),
            CellSpec::Loss(LossSpec { probability: 0.01 }),
            CellSpec::BurstyLoss(BurstyLossSpec {
                enter: 0.01,
                leave: 0.25,
                good_loss: 0.0,
                bad_loss: 1.0
            }),
            CellSpec::Rate(RateSpec { mbits: 8.0, queue_bytes, burst_bytes: 3_000 }),
            CellSpec::Delay(DelaySpec { delay: millis(20) }),
            CellSpec::Reorder(ReorderSpec { probability: 0.02, by: millis(3) }),
            CellSpec::Duplicate(DuplicateSpec { probability: 0.04 }),
        ]
    );
    let half = Duration::from_micros(7_500);
    assert_eq!(
        profiles[0].down,
        [
            CellSpec::Mtu(MtuSpec { bytes: 1_400, too_big: TooBig::Icmp }),
            CellSpec::Loss(LossSpec { probability: 0.0 }),
            CellSpec::Rate(RateSpec { mbits: 80.0, queue_bytes: 64_000, burst_bytes: 0 }),
            CellSpec::Reconfiguration(ReconfigurationSpec {
                delay: half,
                distribution: Distribution::Quantiles { points: vec![(0.0, -1.0), (1.0, 1.0)] },
                period: millis(2_000),
                outage: Duration::ZERO,
            }),
            CellSpec::Jitter(JitterSpec {
                delay: half,
                distribution: Distribution::Uniform { spread_ms: 2.0 },
                hold: millis(5),
                overtakes: true,
            }),
        ]
    );
    let combined = Profile::find("aviary+wifi", &profiles).expect("found");
    assert_eq!(ms(&combined), 5.0);
}

#[test]
fn errors_name_file_line_and_what_is_allowed() {
    let fault = |text: &str| file::parse("net.toml", text).expect_err(text).to_string();
    let cases = [
        ("[profile.a]\nrtt_ms = 1\nrtt = 2", "net.toml, line 3:", "expected one of `source`"),
        ("[profile.a]\nrtt_ms = \"1\"", "net.toml, line 2:", "expected f64"),
        ("\n[profile.a]\nsource = \"x\"", "net.toml, line 2:", "missing field `rtt_ms`"),
        ("[profile.a]\nrtt_ms = 1\n[profile.b]\nrtt_ms = -1", "line 3:", "rtt_ms is 0"),
        ("[profile.a]\nrtt_ms = 1\n\nup = { rate_mbits = 1 }", "line 4:", "`rate_mbps`"),
        ("[profile.a]\nrtt_ms = 1\nup = { rate_mbps = 0 }", "line 1:", "0.001 to 100000"),
        ("[profile.a]\nrtt_ms = 1\nup = { queue_bytes = 1 }", "line 1:", "need a rate_mbps"),
        ("[profile.a]\nrtt_ms = 1\nup = { too_big = \"icmp\" }", "line 1:", "needs an mtu"),
        ("[profile.a]\nrtt_ms = 1\nup = { mtu = 100 }", "line 1:", "576 to 1500"),
        ("[profile.a]\nrtt_ms = 1\nup = { loss_percent = 101 }", "line 1:", "0 to 100 %"),
        (
            "[profile.a]\nrtt_ms = 1\nup = { middleboxes = [\"nat\"] }",
            "line 3:",
            "`drop-early-data`",
        ),
        (
            "[profile.a]\nrtt_ms = 1\nup = { jitter = { distribution = \"gauss\" } }",
            "line 3:",
            "`normal`, `uniform`, `pareto`, `quantiles`",
        ),
        (
            "[profile.a]\nrtt_ms = 1\nup = { jitter = { distribution = \"normal\" } }",
            "line 1:",
            "needs sd_ms",
        ),
        (
            "[profile.a]\nrtt_ms = 1\nup = { jitter = { distribution = \"normal\", sd_ms = 1, \
             shape = 2 } }",
            "line 1:",
            "shape belongs to another",
        ),
        ("[profile.20]\nrtt_ms = 1", "line 1:", "cannot be a profile's name"),
        ("[profile.\"a+b\"]\nrtt_ms = 1", "line 1:", "cannot be a profile's name"),
        ("[profiles.a]", "line 1:", "expected `profile`"),
        ("[profile.a", "line 1:", ""),
    ];
    for (toml, line, reason) in cases {
        let message = fault(toml);
        assert!(message.contains(line) && message.contains(reason), "{toml}\n -> {message}");
    }
    let missing = Profile::read(Path::new("/nowhere/net.toml")).expect_err("no file").to_string();
    assert!(missing.contains("/nowhere/net.toml"), "{missing}");
}

#[test]
fn files_use_the_names_of_middleboxes() {
    for kind in Middlebox::ALL {
        let text = format!("[profile.a]\nrtt_ms = 1\nup = {{ middleboxes = [\"{kind}\"] }}");
        let profiles = file::parse("x", &text).expect("right");
        assert_eq!(profiles[0].up[0], CellSpec::Middlebox(kind));
    }
}
