//! Experiments other than the matrix: replays, middleboxes, load, processor time.

use super::Table;
use crate::axes::named_version;
use crate::format::{count, format_ms, format_us};
use crate::{Cost, Figures, Load, Record};

/// Replays.
pub(crate) fn replays(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Replay attack",
        "Captured first flights, resent byte for byte without keys; executions by the servers' \
         logs.",
        &[
            "server",
            ">flights",
            ">resent",
            ">executed",
            ">originals executed",
            ">bytes per attempt",
        ],
    );
    for replay in &record.replays {
        table.rows.push(vec![
            replay.name(),
            replay.flights.to_string(),
            count(replay.tries as f64),
            count(replay.executed as f64),
            replay.originals.to_string(),
            count(replay.bytes_per_try.round()),
        ]);
        if replay.failed > 0 {
            let (name, failed) = (replay.name(), count(replay.failed as f64));
            table.notes.push(format!("{name}: {failed} more flights did not reach the server."));
        }
    }
    table.filled()
}

/// Middleboxes.
pub(crate) fn middleboxes(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Middleboxes",
        "ms to the first byte through a box that interferes, beside the same without it.",
        &["middlebox", "connection", "what happened", ">p50", ">undisturbed", ">failed"],
    );
    for outcome in &record.middleboxes {
        let tfo = if outcome.tfo { " + TFO" } else { "" };
        let quic = if outcome.transport == "quic" { " over QUIC" } else { "" };
        let labels: Vec<String> =
            outcome.labels.iter().map(|(label, n)| format!("{n} \u{d7} {label}")).collect();
        let mut happened = labels.join("; ");
        if let Some(failure) = &outcome.failure {
            happened.push_str(if happened.is_empty() { "" } else { "; " });
            happened.push_str(failure);
        }
        table.rows.push(vec![
            outcome.middlebox.clone(),
            format!("{} {}{tfo}{quic}, {}", outcome.server, outcome.kind, outcome.group),
            happened,
            outcome.first_byte.as_ref().map_or("-".to_owned(), |figures| format_ms(figures.p50_ms)),
            outcome.undisturbed_p50_ms.map_or("-".to_owned(), format_ms),
            format!("{} of {}", outcome.failed, outcome.tries),
        ]);
    }
    table.filled()
}

/// Early data behind middleboxes and proxies.
pub(crate) fn stalls(record: &Record) -> Option<Table> {
    let first = record.stalls.first()?;
    let mut table = Table::new(
        "Early data behind boxes and proxies",
        &format!(
            "Fetches with early data at {} ms, without and with a second connection after 200 ms of \
             silence: ms from the first packet to the response's first byte, for {} s at most.",
            first.rtt_ms,
            first.limit_ms / 1e3,
        ),
        &[
            "on the way",
            "tickets of",
            "second connection",
            "what happened",
            ">p50",
            ">max",
            ">no response",
        ],
    );
    for stall in &record.stalls {
        let happened: Vec<String> =
            stall.happened.iter().map(|(what, n)| format!("{n} \u{d7} {what}")).collect();
        let of = |pick: fn(&Figures) -> f64| {
            stall.first_byte.as_ref().map_or("-".to_owned(), |figures| format_ms(pick(figures)))
        };
        table.rows.push(vec![
            stall.on_the_way.clone(),
            stall.tickets_of.clone(),
            if stall.second_connection { "yes" } else { "no" }.to_owned(),
            happened.join("; "),
            of(|figures| figures.p50_ms),
            of(|figures| figures.max_ms),
            format!("{} of {}", stall.failed, stall.tries),
        ]);
    }
    table.filled()
}

/// Restarts of the server.
pub(crate) fn cold_starts(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Cold starts",
        "What a client with a session from before finds at a restarted server, by where the ticket keys \
         are: ms from the start of the process until it got a response, and until its early data was \
         accepted, by the packets; and the server's processor time until then.",
        &[
            "keys",
            "first connection",
            ">connections",
            ">response p50",
            ">early data p50",
            ">max",
            ">CPU p50",
        ],
    );
    for start in &record.cold_starts {
        let first: Vec<String> =
            start.first.iter().map(|(what, n)| format!("{n} \u{d7} {what}")).collect();
        let of = |figures: &Option<Figures>, pick: fn(&Figures) -> f64| {
            figures.as_ref().map_or("-".to_owned(), |figures| format_ms(pick(figures)))
        };
        table.rows.push(vec![
            start.keys.clone(),
            first.join("; "),
            start.connections.to_string(),
            of(&start.response, |figures| figures.p50_ms),
            of(&start.early, |figures| figures.p50_ms),
            of(&start.early, |figures| figures.max_ms),
            of(&start.server_cpu, |figures| figures.p50_ms),
        ]);
    }
    table.filled()
}

/// Load runs.
pub(crate) fn loads(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Load",
        "Connections a second, and ms to the first byte. Open: from the intended start. Closed: a \
         new connection when another has ended, so queueing is not visible.",
        &[
            "server",
            "model",
            "HTTP",
            "kind",
            ">/s",
            ">p50",
            ">p95",
            ">p99",
            ">max",
            ">client us",
            ">server us",
        ],
    );
    for load in &record.loads {
        let of = |pick: fn(&crate::LoadLatency) -> Option<f64>| {
            load.first_byte.as_ref().and_then(pick).map_or("-".to_owned(), format_ms)
        };
        table.rows.push(vec![
            load.server.clone(),
            model(load),
            load.http.clone(),
            load.kind.clone(),
            count(load.rate.round()),
            of(|latency| Some(latency.p50_ms)),
            of(|latency| latency.p95_ms),
            of(|latency| latency.p99_ms),
            of(|latency| Some(latency.max_ms)),
            format_us(load.client_us),
            load.server_us.map_or("-".to_owned(), format_us),
        ]);
        for (error, times) in &load.errors {
            table.notes.push(format!("{}: {times} \u{d7} {error}", name(load)));
        }
        for warning in &load.warnings {
            table.notes.push(format!("{}: {warning}", name(load)));
        }
        if load.not_begun > 0 {
            let late = load.not_begun;
            table.notes.push(format!("{}: {late} were due and not started", name(load)));
        }
    }
    table.filled()
}

/// The name of a load run: `server full`, or `server HTTP/3 full`.
pub(crate) fn name(load: &Load) -> String {
    match load.http.as_str() {
        "3" => format!("{} HTTP/3 {}", load.server, load.kind),
        _ => format!("{} {}", load.server, load.kind),
    }
}

/// The model of a load run: `open, 2,000/s on 2 threads`.
pub(crate) fn model(load: &Load) -> String {
    let threads = match load.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    match (load.rate_wanted, load.connections) {
        (Some(rate), _) => format!("{}, {}/s on {threads}", load.model, count(rate)),
        (None, Some(connections)) => {
            format!("{}, {connections} at a time on {threads}", load.model)
        }
        (None, None) => format!("{}, {threads}", load.model),
    }
}

/// Processor time of a connection.
pub(crate) fn costs(record: &Record) -> Option<Table> {
    let counted = record.costs.iter().any(|cost| cost.client_cycles.is_some());
    let mut head = vec!["server", "workload", "TLS", "kind", ">client us", ">server us"];
    if counted {
        head.extend([">client cycles", ">client instr.", ">server cycles", ">server instr."]);
    }
    let mut table = Table::new(
        "Processor time of a connection",
        "Microseconds a connection, kernel included, one connection after the other.",
        &head,
    );
    for cost in &record.costs {
        let mut row = vec![
            cost.server.clone(),
            cost.workload.clone(),
            with_variant(record, cost, &named_version(&cost.transport, &cost.tls)),
            cost.kind.clone(),
            format_us(cost.client_us),
            format_us(cost.server_us),
        ];
        if counted {
            let cells = [
                cost.client_cycles,
                cost.client_instructions,
                cost.server_cycles,
                cost.server_instructions,
            ];
            row.extend(cells.map(|v| v.map_or("-".to_owned(), |v| count(v.round()))));
        }
        table.rows.push(row);
    }
    if let (false, Some(why)) = (counted, &record.machine.no_counters) {
        table.notes.push(format!("No cycles and instructions: {why}."));
    }
    table.filled()
}

/// A word about a cost, and its group, cipher and certificate as far as they vary in the record:
/// `1.3, X25519, rsa-2048`. Costs with other HTTP versions or sizes share a row.
pub(crate) fn with_variant(record: &Record, cost: &Cost, word: &str) -> String {
    let varying = variant(cost).into_iter().enumerate().filter(|(place, value)| {
        !value.is_empty() && record.costs.iter().any(|other| variant(other)[*place] != *value)
    });
    let words: Vec<&str> = std::iter::once(word).chain(varying.map(|(_, value)| value)).collect();
    words.join(", ")
}

fn variant(cost: &Cost) -> [&str; 3] {
    [&cost.group, &cost.cipher, &cost.certificate]
}
