//! Any bytes as what the peer sends, to a server and to a client: an error or a wait, and never a
//! completed handshake, since nobody has proved anything.
#![no_main]

use std::sync::LazyLock;

use firstflight_fuzz::{acceptor, connector};
use firstflight_tls::{ConnectOptions, Connector, Progress, TlsConnection, Version};
use libfuzzer_sys::fuzz_target;

// The first byte's bits.
const SERVER: u8 = 1;
const EARLY_DATA: u8 = 2;
const ENDS: u8 = 4;

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, bytes)) = bytes.split_first() else { return };
    let has = |bit| flags & bit != 0;
    if has(SERVER) {
        let machine = acceptor().connection(has(EARLY_DATA)).expect("a connection");
        talk(machine, bytes, has(ENDS));
        return;
    }
    static CONNECTOR: LazyLock<Connector> = LazyLock::new(|| connector(Version::Tls13, None));
    let offer = ConnectOptions { host: "localhost".into(), ..ConnectOptions::default() };
    let mut machine = CONNECTOR.connection(&offer).expect("a connection");
    // The ClientHello, which the bytes then answer.
    assert_eq!(machine.handshake().expect("a first flight"), Progress::NeedsInput);
    talk(machine, bytes, has(ENDS));
});

fn talk(mut machine: TlsConnection, bytes: &[u8], ends: bool) {
    let mut buffer = [0; 512];
    for chunk in bytes.chunks(600) {
        machine.feed(chunk);
        if machine.handshake().is_err() {
            break;
        }
        if let Ok(Progress::Done(count)) = machine.read(&mut buffer) {
            panic!("{count} bytes of application data without a handshake");
        }
        machine.sent(machine.outgoing().len());
    }
    if ends {
        machine.feed_eof();
        let _ = machine.handshake();
    }
    assert!(!machine.is_complete());
    let _ = (machine.facts(), machine.take_sessions(), machine.close());
}
