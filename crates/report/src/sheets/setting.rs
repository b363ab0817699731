//! With what, and how exactly, it was measured.

use super::Sheet;
use crate::Record;
use crate::figure::microseconds;

/// What UDP echoes say of the link.
pub(crate) fn calibrations(record: &Record) -> Option<Sheet> {
    let link = record.link.as_ref()?;
    let mut sheet = Sheet::new(
        "The link's own error",
        "UDP echoes over each path: time there and back less the configured RTT, in microseconds.",
        &["network", "when", ">echoes", ">min us", ">p50 us", ">p99 us"],
    );
    for calibration in &link.calibrations {
        sheet.rows.push(vec![
            calibration.profile.clone(),
            if calibration.before { "before" } else { "after" }.to_owned(),
            calibration.probes.to_string(),
            microseconds(calibration.min_us),
            microseconds(calibration.p50_us),
            microseconds(calibration.p99_us),
        ]);
    }
    sheet.filled()
}

/// The networks.
pub(crate) fn profiles(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "Networks",
        "",
        &["name", ">RTT ms", ">down Mbit/s", ">up Mbit/s", "more", "source"],
    );
    for profile in &record.profiles {
        let rate = |mbps: Option<f64>| mbps.map_or("\u{2013}".to_owned(), |mbps| mbps.to_string());
        sheet.rows.push(vec![
            profile.name.clone(),
            profile.rtt_ms.to_string(),
            rate(profile.down_mbps),
            rate(profile.up_mbps),
            profile.more.clone(),
            profile.source.clone(),
        ]);
    }
    sheet.filled()
}

/// The servers under test.
pub(crate) fn servers(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new("Servers", "", &["name", "version", "to know"]);
    for server in &record.servers {
        sheet.rows.push(vec![server.name.clone(), server.version.clone(), server.notes.join("; ")]);
    }
    sheet.filled()
}

/// The captures beside the record.
pub(crate) fn captures(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "Captures",
        "pcapng with the TLS secrets embedded: they open decrypted in Wireshark.",
        &["file", "what", ">connections"],
    );
    for capture in &record.captures {
        sheet.rows.push(vec![
            capture.file.clone(),
            capture.what.clone(),
            capture.connections.to_string(),
        ]);
    }
    sheet.filled()
}
