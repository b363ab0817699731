//! Any CRYPTO bytes and any datagrams to a client over QUIC: an error or a wait, and never a
//! completed handshake that a server has not proved. Any bytes as remembered transport parameters.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use firstflight_fuzz::quic::{
    Peer, Wire, client_crypto, pieces, resumption, server_initial, spoilt,
};
use firstflight_quic::{Remembered, Resumption};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let resumes = (how / 5 % 2 == 1).then(|| RESUMPTION.clone());
    match how % 5 {
        0 => {
            let (mut client, inbox) = Peer::client(resumes);
            let _ = pieces(bytes).all(|piece| client.read(piece));
            assert!(client.session.is_handshaking(), "a handshake that nobody proved");
            assert!(inbox.take_resumptions().is_empty());
        }
        1 => answered(resumes, bytes),
        2 => {
            let (mut wire, _) = Wire::client(resumes);
            pieces(bytes).for_each(|datagram| wire.take(datagram));
        }
        3 => {
            let (mut wire, named) = Wire::client(resumes);
            for (number, payload) in pieces(bytes).enumerate() {
                let mut payload = payload.to_vec();
                payload.resize(payload.len().max(4), 0);
                wire.take(&server_initial(&named, number as u32, &payload));
            }
        }
        _ => {
            let transport_parameters = Bytes::copy_from_slice(bytes);
            let resumption = Resumption { transport_parameters, ..RESUMPTION.clone() };
            let remembered =
                Remembered { resumption: Some(resumption), token: None, early_data: true };
            let _ = client_crypto().for_connection("localhost", remembered);
        }
    }
});

static RESUMPTION: LazyLock<Resumption> = LazyLock::new(resumption);

/// A genuine answer of a server, spoilt; then it does not complete unless nothing was changed.
fn answered(resumes: Option<Resumption>, edits: &[u8]) {
    let (mut client, _) = Peer::client(resumes);
    let mut server = Peer::server(true);
    assert!(server.read(&std::mem::take(&mut client.written[0])), "a genuine ClientHello");
    let genuine = std::mem::take(&mut server.written);
    let all = spoilt(genuine.concat(), edits);
    let changed = all[..genuine[0].len() + genuine[1].len()] != genuine[..2].concat();
    let mut at = 0;
    for part in &genuine {
        if !client.read(&all[at..at + part.len()]) {
            break;
        }
        at += part.len();
    }
    assert!(!changed || client.session.is_handshaking(), "a handshake with a changed byte");
}
