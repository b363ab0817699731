//! How figures are written: as many digits as they are worth, the same everywhere.

/// Milliseconds for tables: two decimals, from 100 on one, so that columns stay narrow.
pub(crate) fn bare(ms: f64) -> String {
    match ms {
        ms if ms.abs() < 100.0 => format!("{ms:.2}"),
        ms => format!("{ms:.1}"),
    }
}

/// Milliseconds with their unit, three significant digits or more.
pub(crate) fn milliseconds(ms: f64) -> String {
    match ms.abs() {
        size if size >= 100.0 => format!("{ms:.1} ms"),
        size if size >= 1.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.3} ms"),
    }
}

/// With a sign: `-20.31`, `+1.20`; a true minus for print.
pub(crate) fn signed(ms: f64) -> String {
    let text = bare(ms.abs());
    match ms {
        // What rounds to nothing has no sign.
        _ if text.trim_matches(|c| c == '0' || c == '.').is_empty() => text,
        ms if ms < 0.0 => format!("\u{2212}{text}"),
        _ => format!("+{text}"),
    }
}

/// Like [`bare`], with a true minus: for what may be less than nothing.
pub(crate) fn plain(ms: f64) -> String {
    signed(ms).trim_start_matches('+').to_owned()
}

/// From one to the other.
pub(crate) fn between((low, high): (f64, f64)) -> String {
    match low < 0.0 {
        true => format!("{} to {}", plain(low), plain(high)),
        false => format!("{}\u{2013}{}", plain(low), plain(high)),
    }
}

/// Microseconds without decimals from 10 on.
pub(crate) fn microseconds(us: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_as_they_are_read() {
        assert_eq!([bare(0.456), bare(99.994), bare(600.55)], ["0.46", "99.99", "600.5"]);
        assert_eq!([milliseconds(0.2), milliseconds(20.0)], ["0.200 ms", "20.00 ms"]);
        assert_eq!(
            [signed(-20.314), signed(1.2), signed(-0.001)],
            ["\u{2212}20.31", "+1.20", "0.00"]
        );
        assert_eq!(between((0.2, 117.0)), "0.20\u{2013}117.0");
        assert_eq!(between((-0.2, 0.0)), "\u{2212}0.20 to 0.00");
        assert_eq!([microseconds(9.94), microseconds(143.2)], ["9.9", "143"]);
        assert_eq!(
            [count(999.0), count(1_234_567.0), count(-1000.0)],
            ["999", "1,234,567", "-1,000"]
        );
        assert_eq!(count(0.5), "0.50");
    }
}
