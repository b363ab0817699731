//! Formats figures for people.

use crate::status::Moment;

/// Formats a count with thousands separators.
pub(crate) fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a share of a whole, which may be 0. "0 %" and "100 %" are exact.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let share = 100.0 * part as f64 / whole.max(1) as f64;
    match share {
        _ if part == 0 => "0 %".to_owned(),
        _ if part >= whole => "100 %".to_owned(),
        ..0.1 => "< 0.1 %".to_owned(),
        ..9.95 => format!("{share:.1} %"),
        ..99.0 => format!("{share:.0} %"),
        99.9.. => "> 99.9 %".to_owned(),
        _ => format!("{share:.1} %"),
    }
}

/// Formats a rate per second.
pub(crate) fn rate(rate: f64) -> String {
    match rate {
        ..=0.0 => "0".to_owned(),
        ..0.1 => "< 0.1".to_owned(),
        ..9.95 => format!("{rate:.1}"),
        _ => number(rate.round() as u64),
    }
}

/// Formats a duration in seconds with two significant digits.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        ..0.000_999_5 => format!("{:.2} ms", seconds * 1e3),
        ..0.009_95 => format!("{:.1} ms", seconds * 1e3),
        ..0.999_5 => format!("{:.0} ms", seconds * 1e3),
        ..9.95 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Formats how long ago something was.
pub(crate) fn ago(now: Moment, then: Moment) -> String {
    match now.0 - then.0 {
        ..=0 => "just now".to_owned(),
        seconds => format!("{} ago", length(seconds)),
    }
}

/// Formats how long until something is, or how long ago it was.
pub(crate) fn until(now: Moment, then: Moment) -> String {
    match then.0 - now.0 {
        ..=0 => ago(now, then),
        seconds => format!("in {}", length(seconds)),
    }
}

/// Formats a duration in seconds, in the largest unit of which it has at least two.
pub(crate) fn length(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", number((seconds / 86_400) as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_formatted_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        let shares =
            [(0, 0), (0, 9), (9, 9), (1, 5_000), (1, 30), (2, 3), (995, 1_000), (9_999, 10_000)];
        assert_eq!(
            shares.map(|(part, whole)| percent(part, whole)),
            ["0 %", "0 %", "100 %", "< 0.1 %", "3.3 %", "67 %", "99.5 %", "> 99.9 %"]
        );
        assert_eq!([0.0, 0.03, 2.44, 1_999.6].map(rate), ["0", "< 0.1", "2.4", "2,000"]);
        assert_eq!(
            [0.000_42, 0.001_3, 0.025, 0.999_9, 12.0].map(time),
            ["0.42 ms", "1.3 ms", "25 ms", "1.0 s", "12 s"]
        );
        let now = Moment(1_000_000);
        assert_eq!(ago(now, Moment(1_000_001)), "just now");
        assert_eq!(ago(now, Moment(999_881)), "119 s ago");
        assert_eq!(until(now, Moment(1_000_000 + 3 * 86_400)), "in 3 days");
        assert_eq!(until(now, Moment(1_000_000 - 7_200)), "2 h ago");
    }
}
