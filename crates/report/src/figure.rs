//! How figures are written: as many digits as they are worth, the same everywhere.

/// Milliseconds with their unit, three significant digits or more.
pub(crate) fn milliseconds(ms: f64) -> String {
    match ms.abs() {
        size if size >= 100.0 => format!("{ms:.1} ms"),
        size if size >= 1.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.3} ms"),
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
        assert_eq!([milliseconds(0.2), milliseconds(20.0)], ["0.200 ms", "20.00 ms"]);
        assert_eq!(
            [count(999.0), count(1_234_567.0), count(-1000.0)],
            ["999", "1,234,567", "-1,000"]
        );
        assert_eq!(count(0.5), "0.50");
    }
}
