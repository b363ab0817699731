//! Any bytes as a stored session: refused, or fit to be written again and offered to a server.
#![no_main]

use std::sync::LazyLock;

use firstflight_fuzz::{acceptor, connector};
use firstflight_tls::{ConnectOptions, Connector, Session, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(session) = Session::from_bytes(bytes) else { return };
    let written = session.to_bytes().expect("a session that was read can be written");
    let again = Session::from_bytes(&written).expect("what was written can be read");
    assert_eq!(again.to_bytes().expect("a session"), written);
    assert_eq!(again.version(), session.version());
    assert_eq!(again.early_data_capable(), session.early_data_capable());
    assert_eq!(again.issued_and_lifetime(), session.issued_and_lifetime());
    let _ = (session.single_use(), format!("{session:?}"));

    static CONNECTOR: LazyLock<Connector> = LazyLock::new(|| connector(Version::Tls13, None));
    let offer =
        ConnectOptions { host: "localhost".into(), session: Some(session), early_data: true };
    // A session that cannot be used here is refused; any other makes a first flight, which a
    // server takes or answers with an alert.
    let Ok(mut client) = CONNECTOR.connection(&offer) else { return };
    let _ = client.handshake();
    let _ = client.write(b"GET / HTTP/1.1\r\n\r\n");
    let mut server = acceptor().connection(true).expect("a connection");
    server.feed(client.outgoing());
    let _ = server.handshake();
    let _ = server.read(&mut [0; 64]);
    client.feed(server.outgoing());
    let _ = client.handshake();
});
