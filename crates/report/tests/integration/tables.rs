//! The tables of a small record as a terminal shows them.

use std::collections::HashSet;

use firstflight_report::{
    Cell, Cost, Effect, Fault, Figures, LinkFacts, Pictures, Record, Replay, SCHEMA, Sample,
    ServerFacts, Summary, html, markdown, terminal,
};

fn cell(tls: &str, kind: &str, tfo: bool, rtt_ms: f64, summary: Option<Summary>) -> Cell {
    let (server, workload) = ("firstflight".to_owned(), "get".to_owned());
    Cell {
        server,
        workload,
        rtt_ms,
        tls: tls.to_owned(),
        kind: kind.to_owned(),
        tfo,
        summary,
        ..Cell::default()
    }
}

fn figures(p50_ms: f64, p95_ms: Option<f64>, round_trips: Option<u32>) -> Option<Summary> {
    Some(Summary {
        samples: 100,
        first_byte: Figures {
            min_ms: p50_ms - 0.1,
            p50_ms,
            p50_interval_ms: (p50_ms - 0.05, p50_ms + 0.05),
            p95_ms,
            max_ms: p50_ms + 9.0,
            ..Figures::default()
        },
        wire_p50_ms: Some(p50_ms - 0.2),
        round_trips,
        ..Summary::default()
    })
}

fn sample(cell: usize, fault: Option<Fault>) -> Sample {
    Sample {
        cell,
        at_ms: 1.5,
        time_ms: Some(40.5),
        wire_ms: Some(40.25),
        round_trips: Some(2),
        label: Some("TLS 1.3, 0-RTT accepted".to_owned()),
        lateness_us: 20.0,
        fault,
        ..Sample::default()
    }
}

#[test]
fn only_samples_unlike_most_of_their_cell_deviate() {
    let with = |round_trips| Sample { round_trips: Some(round_trips), ..sample(0, None) };
    let samples = [2, 2, 2, 2, 2, 2, 2, 3].map(with).to_vec();
    let summary = Summary::of_samples(samples.iter());
    assert_eq!(summary.as_ref().unwrap().round_trips, None, "fewer than 19 of 20 agree");
    let cells = vec![cell("1.3", "0-RTT", false, 20.0, summary)];
    assert_eq!(Record { cells, samples, ..Record::default() }.deviating(), 1);
}

fn replay(server: &str, executed: usize) -> Replay {
    Replay {
        server: server.to_owned(),
        transport: "tcp".to_owned(),
        flights: 10,
        tries: 1000,
        failed: 0,
        executed,
        bytes_per_try: 1720.5,
        originals: 10,
    }
}

fn record() -> Record {
    Record {
        schema: SCHEMA,
        version: "0.1.0".to_owned(),
        date: "2026-11-21T12:00:00Z".to_owned(),
        seconds: 61.5,
        seed: 7,
        servers: vec![ServerFacts {
            name: "firstflight".to_owned(),
            version: "firstflight 0.1.0".to_owned(),
            notes: Vec::new(),
        }],
        link: Some(LinkFacts {
            congestion_control: "cubic".to_owned(),
            initial_window: 10,
            packets: 1234,
            lateness_p50_us: 23.4,
            lateness_p99_us: 53.6,
            lateness_max_us: 900.0,
            own_lateness_p99_us: None,
            refused_settings: Vec::new(),
            keep_awake: true,
            ..LinkFacts::default()
        }),
        cells: vec![
            cell("1.2", "full", false, 200.0, figures(800.64, Some(801.25), Some(4))),
            cell("1.3", "full", false, 200.0, figures(600.55, Some(601.0), Some(3))),
            cell("1.3", "0-RTT", false, 200.0, figures(400.5, Some(400.95), Some(2))),
            cell("1.3", "0-RTT", true, 200.0, figures(200.4, Some(200.9), Some(1))),
            cell("1.2", "full", false, 0.2, figures(2.125, None, Some(4))),
            cell("1.3", "full", false, 0.2, figures(1.75, None, None)),
            cell("1.3", "0-RTT", false, 0.2, None),
            cell("1.3", "0-RTT", true, 0.2, figures(0.875, None, Some(1))),
        ],
        samples: vec![
            sample(2, None),
            sample(2, Some(Fault::Spoiled("link late by 1.5 ms".to_owned()))),
            sample(3, Some(Fault::Mislabelled("TCP Fast Open fallen back".to_owned()))),
            sample(6, Some(Fault::Failed("connection reset".to_owned()))),
        ],
        replays: vec![replay("firstflight", 0), replay("nginx", 1000)],
        ..Record::default()
    }
}

#[test]
fn all_that_a_terminal_shows() {
    insta::assert_snapshot!(terminal::render(&record()));
}

/// The lines of a table in a terminal's text, below its column heads.
fn rows_of<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let after = text.split(&format!("\n{title}\n")).nth(1).expect(title);
    after.lines().take_while(|line| !line.is_empty()).collect()
}

#[test]
fn every_row_of_the_blueprints_table_has_its_own_name() {
    let mut record = crate::synthetic::record(7);
    let over_quic: Vec<Cell> = (record.cells.iter().filter(|cell| cell.experiment == "blueprint"))
        .map(|cell| Cell { http: "3".to_owned(), transport: "quic".to_owned(), ..cell.clone() })
        .collect();
    record.cells.extend(over_quic);
    let text = terminal::render(&record);
    let rows = rows_of(&text, "Percentiles compared with the blueprint's");
    let names: Vec<String> = rows
        .iter()
        .filter(|row| row.starts_with("firstflight"))
        .map(|row| row.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
        .collect();
    let distinct: HashSet<&String> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (6, 6), "{names:?}");
}

/// The first four columns of a table of a record, in Markdown.
fn names_of(record: &Record, title: &str) -> Vec<String> {
    let page = markdown::render(record);
    let section = page.split(&format!("\n## {title}\n")).nth(1).expect(title);
    let section = section.split("\n## ").next().unwrap();
    // The first two lines are the head and its rule.
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| row.split(" | ").take(4).collect::<Vec<_>>().join(" | ")).collect()
}

#[test]
fn phases_are_named_by_all_that_varies_between_their_rows() {
    let first = Cell {
        experiment: "matrix".to_owned(),
        client: "firstflight".to_owned(),
        http: "1.1".to_owned(),
        group: "X25519".to_owned(),
        certificate: "ecdsa-p256".to_owned(),
        response_bytes: 1 << 10,
        ..cell("1.3", "full", false, 20.0, figures(60.5, None, Some(3)))
    };
    let base = || first.clone();
    let cases = [
        (Cell { kind: "0-RTT".to_owned(), ..base() }, ["", ""]),
        (Cell { group: "P-256".to_owned(), ..base() }, [", X25519", ", P-256"]),
        (Cell { response_bytes: 1 << 20, ..base() }, [", GET of 1 KiB", ", GET of 1 MiB"]),
        (Cell { client: "curl".to_owned(), ..base() }, ["", ", by curl"]),
        (Cell { cipher: "AES-256-GCM".to_owned(), ..base() }, ["", ", AES-256-GCM"]),
        (Cell { certificate: "rsa-2048".to_owned(), ..base() }, [", ecdsa-p256", ", rsa-2048"]),
    ];
    let title = "TLS setup, first byte and total";
    // It has no row, so it lengthens no name.
    let elsewhere = Cell {
        experiment: "get".to_owned(),
        group: "P-384".to_owned(),
        response_bytes: 10 << 10,
        ..base()
    };
    for (second, words) in &cases {
        let cells = vec![base(), second.clone(), elsewhere.clone()];
        let record = Record { schema: SCHEMA, cells, ..Record::default() };
        let expected: Vec<String> = (record.cells.iter().zip(words))
            .map(|(cell, words)| {
                format!("| 20 ms | firstflight | TLS 1.3, HTTP/1.1{words} | {}", cell.kind)
            })
            .collect();
        assert_eq!(names_of(&record, title), expected);
    }
    let cells = cases.into_iter().map(|(cell, _)| cell).chain([base()]).collect();
    let names = names_of(&Record { schema: SCHEMA, cells, ..Record::default() }, title);
    let distinct: HashSet<&String> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (7, 7), "{names:?}");
}

#[test]
fn costs_are_named_by_all_that_varies_between_them() {
    let first = Cost {
        server: "firstflight".to_owned(),
        workload: "get".to_owned(),
        transport: "tcp".to_owned(),
        tls: "1.3".to_owned(),
        kind: "full".to_owned(),
        group: "X25519".to_owned(),
        certificate: "rsa-2048".to_owned(),
        client_us: 243.0,
        server_us: 182.0,
        ..Cost::default()
    };
    let base = || first.clone();
    let compressed = "rsa-2048 compressed".to_owned();
    for (second, words) in [
        (Cost { kind: "0-RTT".to_owned(), ..base() }, ["", ""]),
        (Cost { group: "P-256".to_owned(), ..base() }, [", X25519", ", P-256"]),
        (Cost { cipher: "AES-256-GCM".to_owned(), ..base() }, ["", ", AES-256-GCM"]),
        (Cost { certificate: compressed, ..base() }, [", rsa-2048", ", rsa-2048 compressed"]),
    ] {
        let record = Record { schema: SCHEMA, costs: vec![base(), second], ..Record::default() };
        let named = |name: fn(&str, &str) -> String| -> Vec<String> {
            record.costs.iter().zip(words).map(|(cost, words)| name(&cost.kind, words)).collect()
        };
        let rows = named(|kind, words| format!("| firstflight | get | 1.3{words} | {kind}"));
        assert_eq!(names_of(&record, "Processor time of a connection"), rows);
        let page = html::render(&record, &Pictures::default());
        let section = page.split("<section id=\"costs\"").nth(1).unwrap();
        let section = section.split("</section>").next().unwrap();
        let bars: Vec<&str> = section
            .split("class=\"tick\">")
            .skip(1)
            .map(|text| text.split('<').next().unwrap())
            .collect();
        let of_each_side = named(|kind, words| format!("{kind}{words}"));
        assert_eq!(bars, [&*of_each_side, &*of_each_side].concat(), "client and server");
    }
}

#[test]
fn clients_have_their_own_table_and_no_matrices() {
    let text = terminal::render(&crate::synthetic::record(7));
    let rows = rows_of(&text, "Clients");
    let of = |client: &str| rows.iter().filter(|row| row.starts_with(client)).count();
    assert_eq!((of("firstflight"), of("curl"), of("openssl")), (6, 2, 3), "{rows:?}");
    let timed = rows.iter().filter(|row| row.starts_with("openssl"));
    assert!(timed.clone().all(|row| row.contains(" / ") || row.contains("resumed")), "{rows:?}");
    let matrices = text.split("\nClients\n").next().unwrap();
    assert!(!matrices.contains("by curl") && !matrices.contains("by firstflight"));
}

#[test]
fn each_claim_has_a_verdict_and_a_reason() {
    let record = crate::synthetic::record(7);
    let page = firstflight_report::markdown::render(&record);
    let section = page.split("## What others claim").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let verdict = |claim: &str| {
        let row = section.lines().find(|line| line.contains(claim)).expect(claim);
        let fields: Vec<&str> = row.split(" | ").collect();
        assert!(fields.len() == 4 && fields[3].len() > 20, "{row}");
        fields[2].to_owned()
    };
    // What the synthetic run measures: a satellite before 2G, a page over QUIC in one round trip.
    assert_eq!(verdict("a satellite is slower than 2G"), "not confirmed");
    assert_eq!(verdict("resumption saves 5 to 8 ms"), "not confirmed");
    assert_eq!(verdict("TLS set-up takes 0 ms"), "confirmed");
    assert_eq!(verdict("has its first byte in 1 round trip"), "confirmed");
    assert_eq!(verdict("has a 10 KiB page in 2 round trips"), "not confirmed");
    assert_eq!(verdict("a large image in 3.5 s"), "not comparable");
    assert_eq!(verdict("saves 500 ms of a large image"), "not confirmed");
    // A record without the cells of a claim does not mention it.
    let mut other = record.clone();
    other.cells.retain(|cell| cell.experiment == "get");
    other.samples.clear();
    other.effects.clear();
    other.control = None;
    other.waterfalls.clear();
    assert!(!firstflight_report::markdown::render(&other).contains("What others claim"));
}

#[test]
fn a_claim_that_is_measured_is_confirmed() {
    let mut record = crate::synthetic::record(7);
    for cell in record.cells.iter_mut().filter(|cell| cell.experiment == "access") {
        let summary = cell.summary.as_mut().unwrap();
        if cell.profile == "geo" {
            summary.first_byte.p50_ms = 9_000.0;
        }
    }
    let page = firstflight_report::markdown::render(&record);
    let row = page.lines().find(|line| line.contains("a satellite is slower than 2G")).unwrap();
    assert!(row.contains("| confirmed |"), "{row}");
}

#[test]
fn access_networks_are_in_measured_order_and_differences_are_explained() {
    let text = terminal::render(&crate::synthetic::record(7));
    let rows = rows_of(&text, "Access networks, from the fastest to the slowest");
    let place = |name: &str| rows.iter().position(|row| row.starts_with(name)).expect(name);
    assert!(place("fibre (") < place("fibre+wifi") && place("geo") < place("2g"));
    let notes = rows.join(" ");
    for (first, second) in [("4g", "adsl+wifi"), ("geo", "2g")] {
        let note = notes.split("the other way round: ").find(|note| {
            note.starts_with(&format!("{first} (")) && note.contains(&format!("before {second} ("))
        });
        assert!(note.is_some(), "{first} before {second}: {notes}");
    }
}

#[test]
fn no_line_is_wider_than_100_columns() {
    for line in terminal::render(&crate::synthetic::record(7)).lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn samples_that_a_lossy_network_excluded_are_counted() {
    let lossy = |kind: &str| Cell {
        experiment: "loss".to_owned(),
        profile: "20 ms, 5 % lost".to_owned(),
        ..cell("1.3", kind, false, 20.0, figures(60.5, None, Some(3)))
    };
    let mut record = Record {
        schema: SCHEMA,
        cells: vec![lossy("full"), lossy("0-RTT")],
        samples: vec![sample(0, None), sample(1, None)],
        ..Record::default()
    };
    let text = |record: &Record| {
        let text = terminal::render(record);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        rows_of(&text, "Packet loss and reordering").join(" ")
    };
    assert!(text(&record).ends_with("No sample is excluded because of its network."));
    record.samples.push(sample(1, Some(Fault::Disturbed("2 packets lost: refused".to_owned()))));
    let text = text(&record);
    assert!(text.ends_with(": 1 of 2 TLS 1.3 0-RTT at 20 ms, 5 % lost."), "{text}");
    assert!(!text.contains("No sample"), "{text}");
}

#[test]
fn server_names_cannot_send_escape_sequences_to_the_terminal() {
    let mut record = record();
    record.servers[0].version = "evil\u{1b}[2J".to_owned();
    record.cells[0].server = "evil\u{1b}[2J".to_owned();
    record.left_out = vec!["\u{9b}31m".to_owned()];
    assert!(!terminal::render(&record).contains(['\u{1b}', '\u{9b}']));
}

#[test]
fn what_a_reader_has_to_know() {
    insta::assert_snapshot!(terminal::data_quality(&record()));
}

#[test]
fn ten_failures_are_listed_and_the_rest_counted() {
    let mut record = record();
    let failed = || sample(6, Some(Fault::Failed("connection reset".to_owned())));
    record.samples = (0..25).map(|_| failed()).collect();
    let text = terminal::data_quality(&record);
    assert_eq!(text.matches("WRONG: ").count(), 10, "{text}");
    assert!(text.ends_with("... and 15 more\n"), "{text}");
}

#[test]
fn a_saving_is_that_of_one_client() {
    let by = |client: &str, kind: &str, p50_ms: f64| Cell {
        client: client.to_owned(),
        ..cell("1.3", kind, false, 20.0, figures(p50_ms, None, None))
    };
    let cells =
        vec![by("curl", "full", 50.0), by("openssl", "full", 60.0), by("openssl", "0-RTT", 40.0)];
    let record = Record { schema: SCHEMA, cells, ..Record::default() };
    let text = terminal::render(&record).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("after 40.00 ms instead of 60.00 ms"), "{text}");
}

#[test]
fn a_difference_that_can_be_chance_is_no_saving() {
    let mut record = Record { schema: SCHEMA, ..Record::default() };
    for (profile, rtt_ms, early_ms, significant) in [
        ("geo", 600.0, 1201.0, Some(true)),
        ("leo", 50.0, 173.6, None),
        ("wifi", 14.0, 20.0, Some(false)),
        ("fibre", 4.0, 10.4, Some(true)),
    ] {
        let full = record.cells.len();
        for (kind, p50_ms) in [("full", 3.0 * rtt_ms + 1.0), ("0-RTT", early_ms)] {
            let cell = cell("1.3", kind, false, rtt_ms, figures(p50_ms, None, None));
            record.cells.push(Cell { profile: profile.to_owned(), ..cell });
        }
        let what = "0-RTT instead of full".to_owned();
        // Too few samples for an interval: no effect.
        record.effects.extend(significant.map(|significant| Effect {
            what,
            from: full,
            to: full + 1,
            significant,
            ..Effect::default()
        }));
    }
    let text = terminal::render(&record).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains(
            "Over 2 of 4 networks from fibre (4 ms) to geo (600 ms) it saves 20 to 33 % of the time \
             to the first byte; on 1 there is no difference beyond chance; on 1 there are too few \
             samples to say."
        ),
        "{text}"
    );
    // The network that is closest to a typical one has too few samples.
    assert!(text.contains("round trips later, from too few samples to exclude chance."), "{text}");
    let without = Record { effects: Vec::new(), ..record.clone() };
    assert!(!terminal::render(&without).contains("it saves"));
    record.cells.retain(|cell| cell.profile == "wifi");
    record.effects = vec![Effect { from: 0, to: 1, ..Effect::default() }];
    let text = terminal::render(&record).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("after 20.00 ms instead of 43.00 ms: no difference beyond chance."),
        "{text}"
    );
}
