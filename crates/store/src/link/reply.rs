//! What replies say. All of it is foreign: nothing here trusts a type, a length or a number.

use std::time::Duration;

use firstflight_replay::{Epoch, Unknown};
use redis::Value;

use crate::StoreError;

/// How much of a store's own words goes into an error.
const MAX_WORDS: usize = 160;

/// The error that was answered, if it was one.
pub(crate) fn error_of(value: &Value) -> Option<StoreError> {
    let Value::ServerError(error) = value else { return None };
    let words = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let plain: String = words.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect();
    Some(StoreError::Refused(plain.trim().to_owned()))
}

/// Why a claim that was answered by an error is not known: the store did not record it.
pub(crate) fn refusal(value: &Value) -> Option<Unknown> {
    match value {
        Value::ServerError(error) if error.code() == "NOREPLICAS" => Some(Unknown::Unreplicated),
        Value::ServerError(_) => Some(Unknown::Refused),
        _ => None,
    }
}

/// A number, as integer or as text.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => text(value)?.parse().ok(),
    }
}

/// A text in UTF-8.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK"),
        _ => None,
    }
}

/// `TIME`: seconds and microseconds since 1970.
pub(crate) fn time(value: &Value) -> Option<Duration> {
    let Value::Array(parts) = value else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let seconds = u64::try_from(integer(seconds)?).ok()?;
    let micros = u32::try_from(integer(micros)?).ok().filter(|micros| *micros < 1_000_000)?;
    // So far off that sums with it could overflow is no time.
    (seconds < 1 << 40).then(|| Duration::new(seconds, micros * 1000))
}

/// How long ago the epoch record was written, from the life that is left to it (`PTTL`). Zero for
/// a record without an end, which is none of ours.
pub(crate) fn epoch_age(value: &Value) -> Duration {
    let left = integer(value).and_then(|left| u64::try_from(left).ok());
    left.map_or(Duration::ZERO, |left| Epoch::LIFE.saturating_sub(Duration::from_millis(left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_or_refused() {
        let reply = |parts: &[&str]| {
            Value::Array(parts.iter().map(|p| Value::BulkString(p.as_bytes().to_vec())).collect())
        };
        assert_eq!(time(&reply(&["5", "7"])), Some(Duration::new(5, 7000)));
        for wrong in [&["5"][..], &["-5", "7"], &["5", "1000000"], &["9223372036854775807", "7"]] {
            assert_eq!(time(&reply(wrong)), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_epoch_without_an_end_has_no_age() {
        assert_eq!(epoch_age(&Value::Int(-1)), Duration::ZERO);
        assert_eq!(epoch_age(&Value::Int(-2)), Duration::ZERO);
        assert_eq!(epoch_age(&Value::Int(i64::MAX)), Duration::ZERO);
        let life = i64::try_from(Epoch::LIFE.as_millis()).unwrap();
        assert_eq!(epoch_age(&Value::Int(life - 1500)), Duration::from_millis(1500));
    }
}
