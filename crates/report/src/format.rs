//! Number formats: significant digits only, the same in all reports.

use crate::Bytes;

/// Milliseconds for tables, without unit: two decimals, one from 100 on.
pub(crate) fn format_ms(ms: f64) -> String {
    match ms {
        ms if ms.abs() < 100.0 => format!("{ms:.2}"),
        ms => format!("{ms:.1}"),
    }
}

/// Milliseconds with unit and at least three significant digits.
pub(crate) fn format_ms_unit(ms: f64) -> String {
    match ms.abs() {
        size if size >= 100.0 => format!("{ms:.1} ms"),
        size if size >= 1.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.3} ms"),
    }
}

/// Milliseconds with a sign, such as `−20.31` or `+1.20`, with a typographic minus.
pub(crate) fn format_signed_ms(ms: f64) -> String {
    let text = format_ms(ms.abs());
    match ms {
        // A value that rounds to 0 has no sign.
        _ if text.trim_matches(|c| c == '0' || c == '.').is_empty() => text,
        ms if ms < 0.0 => format!("\u{2212}{text}"),
        _ => format!("+{text}"),
    }
}

/// Like [`format_ms`], with a typographic minus for negative values.
pub(crate) fn format_ms_minus(ms: f64) -> String {
    format_signed_ms(ms).trim_start_matches('+').to_owned()
}

/// A range of milliseconds.
pub(crate) fn format_range((low, high): (f64, f64)) -> String {
    match low < 0.0 {
        true => format!("{} to {}", format_ms_minus(low), format_ms_minus(high)),
        false => format!("{}\u{2013}{}", format_ms_minus(low), format_ms_minus(high)),
    }
}

/// Microseconds without decimals from 10 on.
pub(crate) fn format_us(us: f64) -> String {
    match us.abs() {
        size if size >= 9.95 => format!("{us:.0}"),
        _ => format!("{us:.1}"),
    }
}

/// A count with commas between thousands, or a number with two decimals.
pub(crate) fn count(value: f64) -> String {
    if value.fract() != 0.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Bytes as a field: to the server / to the client.
pub(crate) fn both_ways(bytes: Bytes) -> String {
    format!("{} / {}", count(bytes.up as f64), count(bytes.down as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        assert_eq!(
            [format_ms(0.456), format_ms(99.994), format_ms(600.55)],
            ["0.46", "99.99", "600.5"]
        );
        assert_eq!([format_ms_unit(0.2), format_ms_unit(20.0)], ["0.200 ms", "20.00 ms"]);
        assert_eq!(
            [format_signed_ms(-20.314), format_signed_ms(1.2), format_signed_ms(-0.001)],
            ["\u{2212}20.31", "+1.20", "0.00"]
        );
        assert_eq!(format_range((0.2, 117.0)), "0.20\u{2013}117.0");
        assert_eq!(format_range((-0.2, 0.0)), "\u{2212}0.20 to 0.00");
        assert_eq!([format_us(9.94), format_us(143.2)], ["9.9", "143"]);
        assert_eq!(
            [count(999.0), count(1_234_567.0), count(-1000.0)],
            ["999", "1,234,567", "-1,000"]
        );
        assert_eq!(count(0.5), "0.50");
    }
}
