//! What packets carry, in the words and colours of a drawing.

use crate::WaterfallPacket;

/// A word, its colour, and how often it comes in a row.
pub(super) type Word = (String, &'static str, usize);

/// What packets carry together, each thing once where that can be said.
pub(super) fn together(packets: &[&WaterfallPacket]) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    // Bytes of streams of requests, a sum for each.
    let mut streams: Vec<(usize, u64)> = Vec::new();
    for packet in packets {
        for word in essential(packet) {
            let class = word_class(packet, &word);
            // What goes on in the next packet is one thing.
            let begun = word.strip_suffix(" (ends)").or(word.strip_suffix(" (goes on)"));
            if begun.is_some_and(|begun| words.iter().any(|(other, ..)| other == begun)) {
                continue;
            }
            if let Some((what, bytes)) = stream(packet, &word) {
                let known = streams.iter_mut().find(|(place, _)| words[*place].0.starts_with(what));
                match known {
                    Some((_, sum)) => *sum += bytes,
                    None => {
                        streams.push((words.len(), bytes));
                        words.push((what.to_owned(), class, 1));
                    }
                }
                continue;
            }
            let word = word.strip_suffix(" (begins)").unwrap_or(&word).to_owned();
            match words.last_mut() {
                Some((last, _, times)) if *last == word => *times += 1,
                _ => words.push((word, class, 1)),
            }
        }
    }
    for (place, bytes) in streams {
        words[place].0 = format!("{} {bytes} B", words[place].0);
    }
    words
}

/// What a packet carries, for a reader who hovers over it.
pub(super) fn words_of(packet: &WaterfallPacket) -> Vec<String> {
    let mut words = packet.what.clone();
    if words.is_empty() {
        words.push(if packet.payload > 0 { "data" } else { "ACK" }.to_owned());
    }
    if packet.again {
        words[0].insert_str(0, "again: ");
    }
    words
}

/// Whether a packet does more than to acknowledge and to keep the connection going.
pub(super) fn tells(packet: &WaterfallPacket) -> bool {
    let begins = |what: &String| what.starts_with("SYN") || what == "RST";
    match packet.what.iter().any(|what| what.contains(" packet")) {
        true => !essential(packet).is_empty(),
        false => packet.payload > 0 || packet.what.iter().any(begins),
    }
}

/// The same without what only keeps the connection going; the tables have it all.
fn essential(packet: &WaterfallPacket) -> Vec<String> {
    let mut kept = Vec::new();
    for word in words_of(packet) {
        // A datagram says what its packets are.
        match word.split_once(" packet").map(|(kind, _)| kind) {
            Some("Initial") if kept.is_empty() => kept.push("Initial".to_owned()),
            Some("0-RTT") => kept.push("0-RTT".to_owned()),
            Some(_) => {}
            None if is_upkeep(packet, &word) => {}
            None => kept.push(word),
        }
    }
    // An Initial packet that brings nothing is but an acknowledgement.
    if kept == ["Initial"] {
        kept.clear();
    }
    if let Some(first) = kept.first_mut().filter(|word| packet.again && !word.contains("again")) {
        first.insert_str(0, "again: ");
    }
    kept
}

fn is_upkeep(packet: &WaterfallPacket, word: &str) -> bool {
    const UPKEEP: [&str; 5] =
        ["PING", "NEW_CONNECTION_ID", "RETIRE_CONNECTION_ID", "HANDSHAKE_DONE", "PADDING"];
    // TLS 1.3 sends ChangeCipherSpec for the sake of middleboxes alone.
    let many = packet.what.len() > 1;
    UPKEEP.contains(&word)
        || word.starts_with("frame 0x")
        || (many && (word == "ACK" || word == "ChangeCipherSpec"))
        || stream_id(word).is_some_and(|(_, id, _)| id % 4 != 0)
}

/// Request or answer, and how much of it, if the word is bytes of a request's stream (RFC 9000
/// section 2.1: the client's bidirectional ones).
fn stream(packet: &WaterfallPacket, word: &str) -> Option<(&'static str, u64)> {
    let (early, _, bytes) = stream_id(word).filter(|_| !packet.again)?;
    let what = match (early, packet.up) {
        (true, _) => "early data",
        (false, true) => "request",
        (false, false) => "answer",
    };
    Some((what, bytes))
}

/// Whether it is early, the stream's number and the bytes in words such as `stream 0 1170 B, FIN`.
fn stream_id(word: &str) -> Option<(bool, u64, u64)> {
    let early = word.strip_prefix("early data, ");
    let mut rest = early.unwrap_or(word).strip_prefix("stream ")?.split(' ');
    let (id, bytes) = (rest.next()?.parse().ok()?, rest.next()?.parse().ok()?);
    Some((early.is_some(), id, bytes))
}

/// The colour of a packet: of the most telling thing in it.
pub(super) fn class(packet: &WaterfallPacket) -> &'static str {
    let essential = essential(packet);
    let classes = || essential.iter().map(|word| word_class(packet, word));
    let telling = ["p-dropped", "p-early", "p-data", "p-tls"];
    let found = telling.into_iter().find(|class| classes().any(|other| other == *class));
    let nothing_said = packet.what.is_empty() && packet.payload > 0;
    found.unwrap_or(if nothing_said { "p-tls" } else { "p-tcp" })
}

fn word_class(packet: &WaterfallPacket, word: &str) -> &'static str {
    const TRANSPORT: [&str; 16] = [
        "SYN",
        "SYN-ACK",
        "SYN, ACK",
        "ACK",
        "FIN",
        "RST",
        "Initial",
        "Handshake",
        "0-RTT",
        "1-RTT",
        "Retry",
        "PING",
        "NEW_CONNECTION_ID",
        "RETIRE_CONNECTION_ID",
        "HANDSHAKE_DONE",
        "PADDING",
    ];
    const DATA: [&str; 5] = ["application data", "response", "request", "HTTP", "stream "];
    let bare = word.trim_start_matches("again: ");
    let is_transport = TRANSPORT.contains(&bare)
        || ["NEW_TOKEN", "CONNECTION_CLOSE", "frame 0x", "Retry"]
            .iter()
            .any(|w| bare.starts_with(w));
    match () {
        () if packet.delivered_ms.is_none() => "p-dropped",
        () if packet.up && word.contains("early data") => "p-early",
        () if DATA.iter().any(|data| word.contains(data)) => "p-data",
        () if is_transport => "p-tcp",
        () => "p-tls",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(up: bool, what: &[&str]) -> WaterfallPacket {
        WaterfallPacket {
            up,
            delivered_ms: Some(1.0),
            what: what.iter().map(|&what| what.to_owned()).collect(),
            payload: 1200,
            ..WaterfallPacket::default()
        }
    }

    fn said(packets: &[WaterfallPacket]) -> Vec<(String, &'static str)> {
        let packets: Vec<&WaterfallPacket> = packets.iter().collect();
        together(&packets).into_iter().map(|(word, class, _)| (word, class)).collect()
    }

    #[test]
    fn a_quic_flight_is_told_by_what_it_brings() {
        let first = packet(
            true,
            &[
                "Initial packet 0",
                "ClientHello",
                "0-RTT packet 0",
                "early data, stream 2 22 B",
                "early data, stream 0 35 B, FIN",
            ],
        );
        let expected = [
            ("Initial", "p-tcp"),
            ("ClientHello", "p-tls"),
            ("0-RTT", "p-tcp"),
            ("early data 35 B", "p-early"),
        ];
        let expected = expected.map(|(word, class)| (word.to_owned(), class));
        assert_eq!(said(std::slice::from_ref(&first)), expected);
        assert_eq!(class(&first), "p-early");
        let response = |what: &str| packet(false, &["1-RTT packet 4", "ACK", what]);
        let responses = [response("stream 0 1172 B"), response("stream 0 981 B, FIN")];
        assert_eq!(said(&responses), [("answer 2153 B".to_owned(), "p-data")]);
        let upkeep = packet(false, &["1-RTT packet 1", "NEW_CONNECTION_ID", "NEW_CONNECTION_ID"]);
        assert_eq!(class(&upkeep), "p-tcp");
        assert!(!tells(&upkeep) && tells(&first));
    }
}
