//! Any bytes as the start of a connection from a load balancer: what is read as a PROXY header
//! was waited for to its last byte, and reads alike when it is written again.
#![no_main]

use firstflight_upstream::proxy_protocol::{Header, MAX_HEADER, Version, read, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (how, bytes) = input;
    // A header's start in front, so that the rest is reached.
    let front: &[u8] = match how % 4 {
        0 => b"",
        1 => b"PROXY TCP4 ",
        2 => b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
        _ => b"\r\n\r\n\0\r\nQUIT\n\x21\x21",
    };
    let bytes = [front, bytes].concat();
    let Ok(Some((header, length))) = read(&bytes) else { return };
    assert!(length <= bytes.len().min(MAX_HEADER));
    for short in 0..length {
        assert_eq!(read(&bytes[..short]), Ok(None), "no byte of what follows is taken");
    }
    for version in [Version::V1, Version::V2] {
        let written = write(version, &header);
        let (again, length) = read(&written).expect("it is one").expect("it is whole");
        assert_eq!(length, written.len());
        let canonical = |header| match header {
            Header::Local => None,
            Header::Proxied(addresses) => Some(
                [addresses.source, addresses.destination]
                    .map(|end| (end.ip().to_canonical(), end.port())),
            ),
        };
        assert_eq!(canonical(again), canonical(header));
    }
});
