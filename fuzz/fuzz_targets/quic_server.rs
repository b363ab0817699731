//! Any CRYPTO bytes and any datagrams to a server over QUIC: an error or a wait, and never a
//! completed handshake. A preview says of each ClientHello what the connection then does.
#![no_main]

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use firstflight_fuzz::quic::{Peer, Wire, pieces, resumption, server_crypto, spoilt};
use firstflight_quic::test_packets::initial_packet;
use firstflight_quic::{FirstFlightPreview, Resumption};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    match how % 5 {
        0 => talk(Peer::server(true), pieces(bytes)),
        // A genuine first flight with early data, and whatever after it.
        1 => {
            let mut server = Peer::server(how / 5 % 2 == 0);
            assert!(server.read(&early_hello()), "a genuine ClientHello");
            talk(server, pieces(bytes));
        }
        2 => preview(&spoilt(early_hello(), bytes)),
        3 => {
            let mut wire = Wire::server();
            pieces(bytes).for_each(|datagram| wire.take(datagram));
        }
        _ => {
            let mut wire = Wire::server();
            for (number, payload) in pieces(bytes).enumerate() {
                let mut payload = payload.to_vec();
                // RFC 9000 section 14.1: 1200 bytes at least.
                payload.resize(payload.len().max(1162), 0);
                wire.take(&initial_packet(b"fuzzing!", &[], number as u32, &payload));
            }
        }
    }
});

fn early_hello() -> Vec<u8> {
    static RESUMPTION: LazyLock<Resumption> = LazyLock::new(resumption);
    let (mut client, _) = Peer::client(Some(RESUMPTION.clone()));
    std::mem::take(&mut client.written[0])
}

fn talk<'a>(mut server: Peer, pieces: impl Iterator<Item = &'a [u8]>) {
    for piece in pieces {
        if !server.read(piece) {
            break;
        }
    }
    assert!(server.session.is_handshaking(), "a handshake that nobody proved");
    let _ = (server.session.handshake_data(), server.session.transport_parameters());
    let _ = server.session.early_crypto();
}

fn preview(hello: &[u8]) {
    let asked = Arc::new(AtomicBool::new(false));
    let seen = asked.clone();
    let mut server = Peer::judged(Box::new(move |_| {
        seen.store(true, Ordering::Relaxed);
        true
    }));
    server.read(hello);
    let preview = server_crypto().preview(hello, None).expect("memory");
    let would = matches!(preview, FirstFlightPreview::EarlyData(_));
    assert_eq!(would, asked.load(Ordering::Relaxed), "the preview was wrong");
}
