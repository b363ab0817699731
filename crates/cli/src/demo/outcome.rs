//! The result of the demonstration, as data and as a table.

use std::fmt::{self, Write};

use serde::Serialize;

/// The result of [`run`](super::run).
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// The requested path.
    pub path: String,
    /// The visit without a session.
    pub first: Visit,
    /// The second visit, with the session of the first.
    pub returning: Visit,
    /// The replay of the second visit's first flight; `None` if its early data was not accepted.
    pub replay: Option<Replay>,
}

/// One visit.
#[derive(Clone, Debug, Serialize)]
pub struct Visit {
    /// The status of the response.
    pub status: u16,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// Whether the request was sent as early data and accepted.
    pub early_data: bool,
    /// Why early data was accepted or refused, as the TLS library reports it.
    pub early_data_reason: String,
    /// Bytes of the request that were sent as early data.
    pub early_bytes: usize,
    /// Bytes sent before the server sent any.
    pub first_flight_bytes: usize,
    /// Round trips until the response started, TCP's included, as the relay counted them.
    pub round_trips: usize,
    /// Milliseconds from the start to the first byte of the response, over loopback.
    pub first_byte_ms: f64,
}

/// A first flight sent a second time, byte for byte.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// Bytes sent.
    pub bytes: usize,
    /// Bytes received: the server's side of a handshake that cannot be finished without the keys.
    pub response_bytes: usize,
    /// Whether the server counted it as a replay.
    pub detected: bool,
    /// Whether the server executed its request again.
    pub executed: bool,
}

impl DemoReport {
    /// Whether early data was accepted, and its request executed once only.
    pub fn passed(&self) -> bool {
        self.returning.early_data && self.replay.as_ref().is_some_and(|replay| !replay.executed)
    }
}

impl fmt::Display for DemoReport {
    /// Writes lines of at most 100 columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_row(
            f,
            ["GET", "TLS", "round trips", "response after"].map(str::to_owned),
            &self.path,
        )?;
        for (name, visit) in [("first visit", &self.first), ("returning", &self.returning)] {
            let time = format!("{:.1} ms", visit.first_byte_ms);
            let cells = [name.to_owned(), visit.tls(), visit.round_trips.to_string(), time];
            write_row(f, cells, "")?;
        }
        if let Some(replay) = &self.replay {
            let outcome = match (replay.executed, replay.detected) {
                (true, _) => "not stopped: its request was executed again",
                (false, true) => "stopped: its request was not executed again",
                (false, false) => "not executed again",
            };
            write_row(
                f,
                ["replay of it".to_owned(), outcome.to_owned(), String::new(), String::new()],
                "",
            )?;
        }
        self.write_summary(f)
    }
}

impl DemoReport {
    fn write_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, returning) = (&self.first, &self.returning);
        f.write_char('\n')?;
        if !returning.early_data {
            return writeln!(
                f,
                "The returning visit's early data was not accepted: {}.",
                returning.early_data_reason
            );
        }
        writeln!(
            f,
            "The returning visit's request left in its first flight: {} bytes before the server \
             sent any.",
            returning.first_flight_bytes
        )?;
        let saved = first.round_trips.saturating_sub(returning.round_trips);
        writeln!(
            f,
            "That saves {saved} round trip{}. With a round-trip time of {EXAMPLE_RTT_MS} ms the \
             response would start after {} ms\ninstead of {} ms.",
            if saved == 1 { "" } else { "s" },
            returning.round_trips * EXAMPLE_RTT_MS,
            first.round_trips * EXAMPLE_RTT_MS,
        )
    }
}

impl Visit {
    fn tls(&self) -> String {
        match (self.resumed, self.early_data) {
            (false, _) => "full handshake".to_owned(),
            (true, false) => "resumed, early data not accepted".to_owned(),
            (true, true) => format!("resumed, {} bytes of early data accepted", self.early_bytes),
        }
    }
}

/// Writes a row of the table; `path` follows the text of its first cell.
fn write_row(f: &mut fmt::Formatter<'_>, cells: [String; 4], path: &str) -> fmt::Result {
    let [name, tls, trips, time] = cells;
    let name = match path {
        "" => name,
        path => format!("{name} {}", shortened(path, NAME_COLUMNS - name.len() - 2)),
    };
    let line = format!("{name:<NAME_COLUMNS$}{tls:<42}{trips:>12}{time:>16}");
    writeln!(f, "{}", line.trim_end())
}

/// Shortens a path, which is ASCII, to at most `max` characters.
fn shortened(path: &str, max: usize) -> String {
    match path.len() > max {
        true => format!("{}...", path.chars().take(max - 3).collect::<String>()),
        false => path.to_owned(),
    }
}

/// Width of a row's first cell.
const NAME_COLUMNS: usize = 24;

/// The round-trip time of the example in the summary: a distance within a continent.
const EXAMPLE_RTT_MS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(early: bool) -> Visit {
        Visit {
            status: 200,
            resumed: early,
            early_data: early,
            early_data_reason: "accepted".to_owned(),
            early_bytes: if early { 83 } else { 0 },
            first_flight_bytes: if early { 612 } else { 300 },
            round_trips: if early { 2 } else { 3 },
            first_byte_ms: if early { 0.94 } else { 2.26 },
        }
    }

    fn report() -> DemoReport {
        let replay = Replay { bytes: 612, response_bytes: 300, detected: true, executed: false };
        DemoReport {
            path: "/a/path/that/is/longer/than/its/place.html".to_owned(),
            first: visit(false),
            returning: visit(true),
            replay: Some(replay),
        }
    }

    #[test]
    fn the_report_is_a_table_and_a_summary() {
        let text = report().to_string();
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert_eq!(
            text,
            "\
GET /a/path/that/is/... TLS                                        round trips  response after
first visit             full handshake                                       3          2.3 ms
returning               resumed, 83 bytes of early data accepted             2          0.9 ms
replay of it            stopped: its request was not executed again

The returning visit's request left in its first flight: 612 bytes before the server sent any.
That saves 1 round trip. With a round-trip time of 50 ms the response would start after 100 ms
instead of 150 ms.
"
        );
    }

    #[test]
    fn the_demo_passes_if_early_data_was_executed_once() {
        assert!(report().passed());
        let mut twice = report();
        twice.replay.as_mut().unwrap().executed = true;
        assert!(!twice.passed() && twice.to_string().contains("was executed again"));
        let refused = DemoReport { returning: visit(false), replay: None, ..report() };
        assert!(!refused.passed() && refused.to_string().contains("not accepted: accepted"));
    }
}
