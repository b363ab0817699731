//! The `Date` field of HTTP/3 responses (RFC 9110 section 6.6.1). hyper sets it on other responses.

use std::cell::RefCell;
use std::time::SystemTime;

use http::HeaderValue;

thread_local! {
    /// The second that was formatted last, and its field.
    static CACHED: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// The current time. Returns `None` if the clock is outside the calendar's range.
pub(crate) fn now() -> Option<HeaderValue> {
    let second = SystemTime::UNIX_EPOCH.elapsed().ok()?.as_secs();
    CACHED.with_borrow_mut(|cached| match cached {
        Some((cached_second, value)) if *cached_second == second => Some(value.clone()),
        _ => {
            let value = format_date(second)?;
            *cached = Some((second, value.clone()));
            Some(value)
        }
    })
}

fn format_date(second: u64) -> Option<HeaderValue> {
    let time = jiff::Timestamp::from_second(second.try_into().ok()?).ok()?;
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    HeaderValue::from_str(&printer.timestamp_to_rfc9110_string(&time).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_5_6_7_the_date_is_an_imf_fixdate() {
        assert_eq!(format_date(784_111_777).unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(format_date(u64::MAX), None);
    }

    #[test]
    fn rfc9110_6_6_1_the_date_is_that_of_the_current_second() {
        let (before, second) = (SystemTime::now(), now());
        CACHED.set(Some((0, HeaderValue::from_static("of another second"))));
        let again = now();
        let after = SystemTime::now();
        let times = [before, after].map(|time| {
            format_date(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
        });
        assert!(times.contains(&second) && times.contains(&again), "{second:?} {again:?}");
    }
}
