//! Human-readable figures with units.

/// Bytes with a decimal prefix.
pub(crate) fn bytes(value: f64) -> String {
    unit(value, "B")
}

/// Bytes per second, shown in bits per second.
pub(crate) fn bits(value: f64) -> String {
    unit(value * 8.0, "bit/s")
}

/// Three digits, a prefix and a unit: 1.23 GB.
fn unit(value: f64, unit: &str) -> String {
    let short = short(value);
    match short.contains(' ') {
        true => short + unit,
        false => format!("{short} {unit}"),
    }
}

/// Three digits and a prefix: 1.23 G.
pub(crate) fn short(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        1e15.. => (value / 1e15, "P"),
        1e12.. => (value / 1e12, "T"),
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        100.0.. => 0,
        10.0.. if scaled.fract() == 0.0 => 0,
        10.0.. => 1,
        _ if scaled.fract() == 0.0 => 0,
        _ => 2,
    };
    format!("{scaled:.digits$} {prefix}").trim_end().to_owned()
}
