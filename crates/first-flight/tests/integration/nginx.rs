//! nginx, which accepts early data and keeps no record of it.

use std::fs;

use firstflight_first_flight::FlightPlan;
use firstflight_testkit::skipped_without;

use crate::support::{
    ACCEPTED, FULL, HOUR_MS, REFUSED, REQUEST, RETRIED, Server, failure, response, treatment,
};

fn start() -> Server {
    Server::start("nginx", &["http/1.1"], |dir, port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{ }}\nhttp {{\n\
             access_log off;\n{temporary}server {{\nlisten 127.0.0.1:{port} ssl;\n\
             ssl_certificate cert.pem;\nssl_certificate_key key.pem;\n\
             ssl_protocols TLSv1.3;\nssl_early_data on;\nlocation / {{\n\
             return 200 \"early=$ssl_early_data;\\n\";\n}}\n}}\n}}\n"
        );
        fs::write(dir.join("nginx.conf"), config).unwrap();
        ["-e", "stderr", "-p", ".", "-c", "nginx.conf"].map(str::to_owned).to_vec()
    })
}

#[test]
fn rfc8446_8_a_copy_is_executed_as_the_original_is() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let nginx = start();
    let flight = nginx.build(nginx.early(REQUEST));
    for _ in 0..3 {
        let mut copy = nginx.send(&flight);
        assert_eq!(treatment(&mut copy), ACCEPTED);
        assert!(response(&mut copy, "early=1;"), "the response comes before our Finished");
    }
    let mut original = nginx.send(&flight);
    assert_eq!(treatment(&mut original), ACCEPTED);
    assert!(response(&mut original, "early=1;"));
    assert!(original.connection().finish());
    assert!(original.connection().send(REQUEST));
    assert!(!response(&mut original, "early=;"), "a second request, after the handshake");
}

#[test]
fn rfc8446_4_2_10_refused_early_data_is_resent_after_the_handshake() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let nginx = start();
    let without_share = FlightPlan::resume(nginx.hello().without_key_share(), &nginx.ticket());
    for (plan, expected) in [
        (nginx.early(REQUEST).flip_ticket_bit(77), FULL),
        (nginx.early(REQUEST).flip_ticket_bit(1300), FULL),
        (without_share.early_data(REQUEST), RETRIED),
    ] {
        let mut refused = nginx.send(&nginx.build(plan));
        assert_eq!(treatment(&mut refused), expected);
        assert!(refused.connection().finish());
        assert!(refused.connection().send(REQUEST));
        assert!(!response(&mut refused, "early=;"));
    }
    // OpenSSL compares the age also where its protection against replays is switched off.
    let shifted = nginx.build(nginx.early(REQUEST).shift_age(HOUR_MS));
    assert_eq!(treatment(&mut nginx.send(&shifted)), REFUSED);
}

#[test]
fn rfc8446_4_2_11_a_wrong_binder_ends_the_connection() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let nginx = start();
    let flight = nginx.build(nginx.early(REQUEST).tamper_with_binder());
    let alert = failure(&mut nginx.send(&flight));
    assert!(matches!(alert, Some("illegal_parameter" | "decrypt_error")), "{alert:?}");
}

#[test]
fn rfc8446_4_2_10_too_much_early_data_ends_the_connection() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let nginx = start();
    let ticket = nginx.ticket();
    let max = ticket.max_early_data.unwrap() as usize;
    let body = "x".repeat(max + 1);
    let plan = FlightPlan::resume(nginx.hello(), &ticket).early_data(body.as_bytes());
    let mut flight = nginx.send(&nginx.build(plan));
    // nginx may reject the nonsense before it has read all of it.
    let ended = flight.wait_for(firstflight_testkit::TEST_TIMEOUT, |_| false);
    assert_eq!(ended, Err(firstflight_first_flight::Ended::Closed));
}
