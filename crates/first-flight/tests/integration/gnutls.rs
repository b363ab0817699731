//! GnuTLS' server.

use firstflight_testkit::skipped_without;

use crate::support::{
    ACCEPTED, FULL, HOUR_MS, REFUSED, REQUEST, Server, failure, response, treatment,
};

fn start() -> Server {
    Server::start("gnutls-serv", &[], |_, port| {
        let port = port.to_string();
        [
            "--http",
            "--earlydata",
            "--disable-client-cert",
            "--x509certfile=cert.pem",
            "--x509keyfile=key.pem",
            "--port",
            &port,
        ]
        .map(str::to_owned)
        .to_vec()
    })
}

#[test]
fn rfc8446_8_2_a_copy_is_refused() {
    if skipped_without(&["gnutls-serv"]) {
        return;
    }
    let server = start();
    let flight = server.build(server.early(REQUEST));
    let mut original = server.send(&flight);
    assert_eq!(treatment(&mut original), ACCEPTED);
    let mut copy = server.send(&flight);
    let found = treatment(&mut copy);
    assert!([FULL, REFUSED].contains(&found), "{found:?}");
    assert!(original.connection().finish());
    assert!(original.connection().send(REQUEST));
    response(&mut original, "HTTP/1.0 200 OK");
}

#[test]
fn rfc8446_8_3_a_wrong_ticket_age_is_refused() {
    if skipped_without(&["gnutls-serv"]) {
        return;
    }
    let server = start();
    let shifted = server.build(server.early(REQUEST).shift_age(HOUR_MS));
    assert_eq!(treatment(&mut server.send(&shifted)), REFUSED);
    let tampered = server.build(server.early(REQUEST).tamper_with_binder());
    assert!(failure(&mut server.send(&tampered)).is_some());
}
