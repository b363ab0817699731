//! `keys list`: a ring on a terminal, or as JSON.

use std::process::ExitCode;

use firstflight_tickets::{DatedKey, Ring, UnixTime};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::now;
use super::source::Source;

/// Prints the ring. Exits with 1 if a key is missing or over-age.
///
/// # Errors
/// If the keys cannot be read.
pub(super) fn run(source: &Source, as_json: bool) -> anyhow::Result<ExitCode> {
    let now = now();
    let ring = source.read(now)?;
    match as_json {
        true => println!("{:#}", json(&ring, now)),
        false => print!("{}", table(&ring, now)),
    }
    let warnings = ring.warnings(now);
    for warning in &warnings {
        eprintln!("firstflight: {warning}");
    }
    Ok(ExitCode::from(u8::from(!warnings.is_empty())))
}

fn table(ring: &Ring, now: UnixTime) -> String {
    let mut text =
        format!("{:10}{:10}{:21}OPENS UNTIL (UTC)\n", "KEY", "STATE", "SEALS FROM (UTC)");
    for (at, dated) in ring.keys().iter().enumerate() {
        text += &format!(
            "{:10}{:10}{:21}{}\n",
            &name(dated)[..8],
            state(ring, dated, now),
            utc(dated.not_before),
            utc(end(ring, at)),
        );
    }
    text
}

fn json(ring: &Ring, now: UnixTime) -> Value {
    let schedule = ring.schedule();
    let keys = ring.keys().iter().enumerate().map(|(at, dated)| {
        json!({
            "name": name(dated),
            "state": state(ring, dated, now),
            "not_before": dated.not_before.0,
            "ends": end(ring, at).0,
        })
    });
    json!({
        "now": now.0,
        "rotation_seconds": schedule.rotation().as_secs(),
        "lifetime_seconds": schedule.lifetime().as_secs(),
        "keys": keys.collect::<Vec<_>>(),
        "warnings": ring.warnings(now).iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn name(dated: &DatedKey) -> String {
    dated.key.name().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state(ring: &Ring, dated: &DatedKey, now: UnixTime) -> &'static str {
    let current = ring.current(now).not_before;
    if dated.not_before == current {
        "current"
    } else if dated.not_before > current {
        "next"
    } else if ring.previous(now).iter().any(|other| other.not_before == dated.not_before) {
        "previous"
    } else {
        "dead"
    }
}

/// When the key's last ticket is dead: a lifetime after its successor came, or is to come.
fn end(ring: &Ring, at: usize) -> UnixTime {
    let successor = match ring.keys().get(at + 1) {
        Some(next) => next.not_before,
        None => ring.keys()[at].not_before.after(ring.schedule().rotation()),
    };
    successor.after(ring.schedule().lifetime())
}

fn utc(time: UnixTime) -> String {
    let time = i64::try_from(time.0).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_tickets::{Schedule, TicketKey};

    use super::*;

    fn ring() -> Ring {
        let key = |n, not_before| DatedKey {
            key: TicketKey::new([n; 16], [n; 32]),
            not_before: UnixTime(not_before),
        };
        let schedule = Schedule::new(Duration::from_secs(100), Duration::from_secs(100)).unwrap();
        Ring::new(vec![key(1, 100), key(2, 200), key(3, 300), key(4, 400)], schedule).unwrap()
    }

    #[test]
    fn each_key_has_its_state_and_end() {
        let expected = "\
KEY       STATE     SEALS FROM (UTC)     OPENS UNTIL (UTC)
01010101  dead      1970-01-01 00:01:40  1970-01-01 00:05:00
02020202  previous  1970-01-01 00:03:20  1970-01-01 00:06:40
03030303  current   1970-01-01 00:05:00  1970-01-01 00:08:20
04040404  next      1970-01-01 00:06:40  1970-01-01 00:10:00
";
        assert_eq!(table(&ring(), UnixTime(350)), expected);
    }

    #[test]
    fn json_has_the_same_and_no_secret() {
        let value = json(&ring(), UnixTime(500));
        assert_eq!(value["keys"][3]["state"], "current");
        assert_eq!(value["keys"][3]["ends"], 600);
        assert_eq!(value["warnings"].as_array().unwrap().len(), 1, "there is no next key");
        assert!(!value.to_string().contains(&"04".repeat(17)), "{value}");
    }
}
