//! What was seen, and the table that tells it.

use std::fmt::{self, Write};

use serde::Serialize;

/// What a tour has seen.
#[derive(Clone, Debug, Serialize)]
pub struct Story {
    /// What was requested.
    pub path: String,
    /// The visit of a client that comes for the first time.
    pub first: Visit,
    /// The visit of the same one afterwards.
    pub returning: Visit,
    /// Its first flight once more; `None`: there was no early data in it.
    pub copy: Option<Copy>,
}

/// One visit.
#[derive(Clone, Debug, Serialize)]
pub struct Visit {
    /// The status of the response.
    pub status: u16,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// Whether the request was early data, and accepted.
    pub early_data: bool,
    /// What TLS says of early data.
    pub early_data_says: String,
    /// Bytes of the request that were sent as early data.
    pub early_bytes: usize,
    /// Bytes that had left before the server said a word.
    pub first_flight_bytes: usize,
    /// Round trips until the response started, TCP's included: what the relay saw.
    pub round_trips: usize,
    /// From the start to the first byte of the response, in milliseconds, on loopback.
    pub first_byte_ms: f64,
}

/// The first flight once more, from somebody who has recorded it.
#[derive(Clone, Debug, Serialize)]
pub struct Copy {
    /// Its bytes.
    pub bytes: usize,
    /// What the server sent back: its side of a handshake that nobody can finish.
    pub answer_bytes: usize,
    /// Whether the server says that it has stopped it.
    pub seen: bool,
    /// Whether the request in it was run again.
    pub executed: bool,
}

impl Story {
    /// Whether early data was accepted, and did not run twice.
    pub fn is_good(&self) -> bool {
        self.returning.early_data && self.copy.as_ref().is_some_and(|copy| !copy.executed)
    }
}

impl fmt::Display for Story {
    /// Lines of 100 columns at most, each with its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, ["GET", "TLS", "round trips", "answer after"].map(str::to_owned), &self.path)?;
        for (name, visit) in [("first visit", &self.first), ("returning", &self.returning)] {
            let time = format!("{:.1} ms", visit.first_byte_ms);
            let cells = [name.to_owned(), visit.tls(), visit.round_trips.to_string(), time];
            row(f, cells, "")?;
        }
        if let Some(copy) = &self.copy {
            let became = match (copy.executed, copy.seen) {
                (true, _) => "its request was run again",
                (false, true) => "stopped: its request was not run again",
                (false, false) => "not run again",
            };
            row(
                f,
                ["a copy of it".to_owned(), became.to_owned(), String::new(), String::new()],
                "",
            )?;
        }
        self.lesson(f)
    }
}

impl Story {
    fn lesson(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, returning) = (&self.first, &self.returning);
        f.write_char('\n')?;
        if !returning.early_data {
            return writeln!(
                f,
                "The returning visit's early data was not accepted: {}.",
                returning.early_data_says
            );
        }
        writeln!(
            f,
            "The returning visit's request left in its first flight: {} bytes before the server \
             spoke.",
            returning.first_flight_bytes
        )?;
        let saved = first.round_trips.saturating_sub(returning.round_trips);
        writeln!(
            f,
            "That is {saved} round trip{} less. On a path of {PATH_MS} ms the response would begin \
             after {} ms, not {} ms.",
            if saved == 1 { "" } else { "s" },
            returning.round_trips * PATH_MS,
            first.round_trips * PATH_MS,
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

/// A row of the table; `path`: what comes after its first cell.
fn row(f: &mut fmt::Formatter<'_>, cells: [String; 4], path: &str) -> fmt::Result {
    let [name, tls, trips, time] = cells;
    let name = match path {
        "" => name,
        path => format!("{name} {}", shortened(path, NAME - name.len() - 2)),
    };
    let line = format!("{name:<NAME$}{tls:<42}{trips:>12}{time:>16}");
    writeln!(f, "{}", line.trim_end())
}

/// At most so many characters of a path, which are ASCII.
fn shortened(path: &str, most: usize) -> String {
    match path.len() > most {
        true => format!("{}...", path.chars().take(most - 3).collect::<String>()),
        false => path.to_owned(),
    }
}

/// The columns of a row's first cell.
const NAME: usize = 24;

/// A path as from here to another continent's near end, in milliseconds and both ways.
const PATH_MS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(early: bool) -> Visit {
        Visit {
            status: 200,
            resumed: early,
            early_data: early,
            early_data_says: "accepted".to_owned(),
            early_bytes: if early { 83 } else { 0 },
            first_flight_bytes: if early { 612 } else { 300 },
            round_trips: if early { 2 } else { 3 },
            first_byte_ms: if early { 0.94 } else { 2.26 },
        }
    }

    fn story() -> Story {
        let copy = Copy { bytes: 612, answer_bytes: 300, seen: true, executed: false };
        Story {
            path: "/a/path/that/is/longer/than/its/place.html".to_owned(),
            first: visit(false),
            returning: visit(true),
            copy: Some(copy),
        }
    }

    #[test]
    fn the_table() {
        let text = story().to_string();
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert_eq!(
            text,
            "\
GET /a/path/that/is/... TLS                                        round trips    response after
first visit             full handshake                                       3          2.3 ms
returning               resumed, 83 bytes of early data accepted             2          0.9 ms
a copy of it            stopped: its request was not run again

The returning visit's request left in its first flight: 612 bytes before the server spoke.
That is 1 round trip less. On a path of 50 ms the response would begin after 100 ms, not 150 ms.
"
        );
    }

    #[test]
    fn it_is_good_if_early_data_ran_once() {
        assert!(story().is_good());
        let mut twice = story();
        twice.copy.as_mut().unwrap().executed = true;
        assert!(!twice.is_good() && twice.to_string().contains("was run again"));
        let refused = Story { returning: visit(false), copy: None, ..story() };
        assert!(!refused.is_good() && refused.to_string().contains("not accepted: accepted"));
    }
}
