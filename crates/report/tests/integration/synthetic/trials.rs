//! Experiments other than the matrix, and the packets of samples.

use firstflight_report::{
    ColdStart, Cost, Figures, Load, LoadLatency, MiddleboxOutcome, Replay, Stall, Waterfall,
    WaterfallPacket,
};

pub(super) fn replay(server: &str, executed: usize) -> Replay {
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

pub(super) fn middleboxes() -> Vec<MiddleboxOutcome> {
    let outcome =
        |middlebox: &str, kind: &str, tfo: bool, label: &str, p50_ms: f64| MiddleboxOutcome {
            middlebox: middlebox.to_owned(),
            server: "firstflight".to_owned(),
            kind: kind.to_owned(),
            tfo,
            group: "X25519".to_owned(),
            rtt_ms: 20.0,
            tries: 10,
            labels: vec![(label.to_owned(), 10)],
            first_byte: Some(Figures { p50_ms, ..Figures::default() }),
            undisturbed_p50_ms: Some(20.5),
            packets_hit: 1.0,
            ..MiddleboxOutcome::default()
        };
    vec![
        outcome("strips TFO", "0-RTT", true, "TLS 1.3, early data accepted, TFO off", 40.6),
        outcome(
            "drops SYN data",
            "0-RTT",
            true,
            "TLS 1.3, early data accepted, TFO fallen back",
            1043.9,
        ),
        MiddleboxOutcome {
            labels: Vec::new(),
            first_byte: None,
            failed: 10,
            failure: Some("no answer within 15 s".to_owned()),
            ..outcome("drops early data", "0-RTT", false, "", 0.0)
        },
    ]
}

pub(super) fn stalls() -> Vec<Stall> {
    let stall = |second_connection, happened: &str, p50_ms: Option<f64>| Stall {
        on_the_way: "drop-early-data".to_owned(),
        tickets_of: "server".to_owned(),
        second_connection,
        rtt_ms: 20.0,
        limit_ms: 5000.0,
        tries: 5,
        happened: vec![(happened.to_owned(), 5)],
        failed: if p50_ms.is_none() { 5 } else { 0 },
        first_byte: p50_ms.map(|p50_ms| Figures {
            p50_ms,
            max_ms: p50_ms + 1.0,
            ..Figures::default()
        }),
    };
    vec![
        stall(false, "early data dropped", None),
        stall(true, "early data dropped, then full", Some(282.3)),
    ]
}

pub(super) fn cold_starts() -> Vec<ColdStart> {
    let figures = |p50_ms| Some(Figures { p50_ms, max_ms: p50_ms + 4.0, ..Figures::default() });
    let start = |keys: &str, first: &str, connections, early_ms| ColdStart {
        keys: keys.to_owned(),
        restarts: 10,
        first: vec![(first.to_owned(), 10)],
        connections,
        response: figures(21.4),
        early: figures(early_ms),
        server_cpu: figures(9.8),
    };
    vec![
        start("file", "resumed, early data refused", 2, 25.9),
        start("store", "early data accepted", 1, 21.4),
    ]
}

pub(super) fn costs() -> Vec<Cost> {
    let cost = |server: &str, kind: &str, client_us: f64, server_us: f64| Cost {
        server: server.to_owned(),
        workload: "get".to_owned(),
        tls: "1.3".to_owned(),
        kind: kind.to_owned(),
        group: "X25519".to_owned(),
        certificate: "ecdsa-p256".to_owned(),
        connections: 200,
        client_us,
        server_us,
        ..Cost::default()
    };
    vec![
        cost("firstflight", "full", 243.1, 181.7),
        cost("firstflight", "resumed", 171.4, 150.2),
        cost("firstflight", "0-RTT", 176.9, 152.8),
        cost("nginx", "full", 244.0, 389.5),
        cost("nginx", "resumed", 172.0, 330.1),
        cost("nginx", "0-RTT", 177.3, 281.4),
    ]
}

pub(super) fn loads() -> Vec<Load> {
    let latency = |p50_ms: f64| {
        Some(LoadLatency {
            min_ms: 0.4 * p50_ms,
            p50_ms,
            p90_ms: 1.6 * p50_ms,
            p95_ms: Some(2.1 * p50_ms),
            p99_ms: Some(4.4 * p50_ms),
            p999_ms: Some(9.0 * p50_ms),
            max_ms: 14.0 * p50_ms,
        })
    };
    let load = |kind: &str, rate: f64, rate_wanted: Option<f64>| Load {
        server: "firstflight".to_owned(),
        model: if rate_wanted.is_some() { "open" } else { "closed" }.to_owned(),
        http: "1.1".to_owned(),
        kind: kind.to_owned(),
        threads: 1,
        connections: if rate_wanted.is_some() { None } else { Some(64) },
        rate_wanted,
        rate,
        seconds: 10.0,
        completed: (10.0 * rate) as u64,
        as_requested: Some((10.0 * rate) as u64),
        handshakes: vec![(format!("{kind} TLS 1.3"), (10.0 * rate) as u64)],
        setup: latency(0.8),
        first_byte: latency(1.1),
        total: latency(1.2),
        client_us: 1e6 / rate,
        server_us: Some(131.0),
        ..Load::default()
    };
    let failing = Load {
        errors: vec![("connection reset".to_owned(), 3)],
        not_begun: 12,
        ..load("full", 1996.4, Some(2000.0))
    };
    vec![
        load("full", 4930.0, None),
        load("resumed", 7710.5, None),
        load("0-RTT", 7420.0, None),
        Load { http: "3".to_owned(), ..load("0-RTT", 5310.0, None) },
        failing,
    ]
}

/// The packets of one connection over 20 ms.
pub(super) fn waterfall(cell: usize, kind: &str, tfo: bool) -> Waterfall {
    let mut packets = Vec::new();
    let mut packet = |up: bool, sent_ms: f64, what: &[&str], payload: u32, depth: u32| {
        packets.push(WaterfallPacket {
            up,
            sent_ms,
            delivered_ms: Some(sent_ms + 10.02),
            what: what.iter().map(|&what| what.to_owned()).collect(),
            payload,
            again: false,
            depth: Some(depth),
        });
    };
    let early = kind == "0-RTT";
    let hello: &[&str] = match early {
        true => &["ClientHello", "early data 142 B"],
        false => &["ClientHello"],
    };
    let mut t = 0.0;
    if tfo {
        packet(true, 0.0, &["SYN", hello[0], hello[1]], 610, 1);
        t += 10.3;
        packet(false, t - 0.2, &["SYN, ACK"], 0, 1);
    } else {
        packet(true, 0.0, &["SYN"], 0, 1);
        packet(false, 10.1, &["SYN, ACK"], 0, 1);
        t += 20.3;
        packet(true, t, hello, if early { 610 } else { 250 }, 2);
        packet(true, t - 0.1, &[], 0, 2);
        t += 10.4;
    }
    let depth = if tfo { 1 } else { 2 };
    let flight: &[&str] = match kind {
        "full" => {
            &["ServerHello", "EncryptedExtensions", "Certificate", "CertificateVerify", "Finished"]
        }
        _ => &["ServerHello", "EncryptedExtensions", "Finished"],
    };
    packet(false, t, flight, if kind == "full" { 890 } else { 240 }, depth);
    if early {
        packet(false, t + 0.15, &["application data 1180 B"], 1202, depth);
    }
    let first_byte = if early { t + 10.17 } else { t + 30.7 };
    t += 10.3;
    match early {
        true => packet(true, t, &["EndOfEarlyData", "Finished"], 80, depth + 1),
        false => {
            packet(true, t, &["Finished"], 74, depth + 1);
            packet(true, t + 0.1, &["application data 142 B"], 164, depth + 1);
            packet(false, t + 10.3, &["NewSessionTicket", "NewSessionTicket"], 480, depth + 1);
            packet(false, t + 10.38, &["application data 1180 B"], 1202, depth + 1);
        }
    }
    packet(true, first_byte + 0.3, &["close_notify"], 24, depth + 2);
    packet(true, first_byte + 0.4, &["FIN"], 0, depth + 2);
    Waterfall {
        cell,
        label: format!("TLS 1.3 {kind}{}", if tfo { ", TFO used" } else { "" }),
        first_byte_ms: first_byte,
        last_byte_ms: first_byte,
        packets,
        capture: Some(format!("captures/firstflight-{kind}.pcapng")),
    }
}
