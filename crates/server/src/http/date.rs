//! The `Date` field of HTTP/3 responses (RFC 9110 section 6.6.1). hyper adds its own to others.

use std::cell::RefCell;
use std::time::SystemTime;

use http::HeaderValue;

thread_local! {
    /// The last second for which the field was written, and the field.
    static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// The current time, unless the clock is beyond the calendar. Its text is kept for a second.
pub(crate) fn now() -> Option<HeaderValue> {
    let second = SystemTime::UNIX_EPOCH.elapsed().ok()?.as_secs();
    LAST.with_borrow_mut(|last| match last {
        Some((of, value)) if *of == second => Some(value.clone()),
        _ => {
            let value = written(second)?;
            *last = Some((second, value.clone()));
            Some(value)
        }
    })
}

fn written(second: u64) -> Option<HeaderValue> {
    let time = jiff::Timestamp::from_second(second.try_into().ok()?).ok()?;
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    HeaderValue::from_str(&printer.timestamp_to_rfc9110_string(&time).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_5_6_7_the_date_is_an_imf_fixdate() {
        assert_eq!(written(784_111_777).unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(written(u64::MAX), None);
    }

    #[test]
    fn rfc9110_6_6_1_the_date_is_that_of_the_current_second() {
        let (before, second) = (SystemTime::now(), now());
        LAST.set(Some((0, HeaderValue::from_static("of another second"))));
        let again = now();
        let after = SystemTime::now();
        let times = [before, after]
            .map(|time| written(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()));
        assert!(times.contains(&second) && times.contains(&again), "{second:?} {again:?}");
    }
}
