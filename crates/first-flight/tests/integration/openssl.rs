//! OpenSSL's server, with and without its protection against replays.

use firstflight_first_flight::{FlightPlan, Suite};
use firstflight_testkit::{skipped_without, text, until};

use crate::support::{ACCEPTED, FULL, HOUR_MS, REFUSED, RETRIED, Server, failure, treatment};

fn start(arguments: &'static [&'static str]) -> Server {
    Server::start("openssl", &[], |_, port| {
        let port = port.to_string();
        let fixed = [
            "s_server",
            "-accept",
            &port,
            "-cert",
            "cert.pem",
            "-key",
            "key.pem",
            "-tls1_3",
            "-early_data",
        ];
        fixed.iter().chain(arguments).map(|&argument| argument.to_owned()).collect()
    })
}

#[test]
fn rfc8446_8_1_a_ticket_is_accepted_once() {
    if skipped_without(&["openssl"]) {
        return;
    }
    let server = start(&[]);
    let flight = server.build(server.early(b"the early data"));
    let mut original = server.send(&flight);
    assert_eq!(treatment(&mut original), ACCEPTED);
    assert!(original.connection().finish());
    original.flush();
    assert!(until(|| text(&server.file("out")).contains("the early data")));
    drop(original);
    let copy = treatment(&mut server.send(&flight));
    assert!([FULL, REFUSED].contains(&copy), "{copy:?}");
    assert_eq!(text(&server.file("out")).matches("the early data").count(), 1);
}

#[test]
fn rfc8446_8_without_protection_each_copy_is_accepted() {
    if skipped_without(&["openssl"]) {
        return;
    }
    for (suite, name) in [
        (Suite::Aes128GcmSha256, "TLS_AES_128_GCM_SHA256"),
        (Suite::Aes256GcmSha384, "TLS_AES_256_GCM_SHA384"),
        (Suite::ChaCha20Poly1305Sha256, "TLS_CHACHA20_POLY1305_SHA256"),
    ] {
        let server = start(match name {
            "TLS_AES_128_GCM_SHA256" => {
                &["-no_anti_replay", "-ciphersuites", "TLS_AES_128_GCM_SHA256"]
            }
            "TLS_AES_256_GCM_SHA384" => {
                &["-no_anti_replay", "-ciphersuites", "TLS_AES_256_GCM_SHA384"]
            }
            _ => &["-no_anti_replay", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
        });
        let ticket = server.ticket();
        assert_eq!(ticket.suite, suite);
        let plan = FlightPlan::resume(server.hello(), &ticket).early_data(b"the early data");
        let flight = server.build(plan);
        for _ in 0..2 {
            assert_eq!(treatment(&mut server.send(&flight)), ACCEPTED);
        }
    }
}

#[test]
fn rfc8446_8_3_a_wrong_ticket_age_is_refused() {
    if skipped_without(&["openssl"]) {
        return;
    }
    let server = start(&["-no_anti_replay"]);
    let resume = |hello| FlightPlan::resume(hello, &server.ticket()).early_data(b"data");
    let shifted =
        treatment(&mut server.send(&server.build(resume(server.hello()).shift_age(-HOUR_MS))));
    assert!([FULL, REFUSED].contains(&shifted), "{shifted:?}");
    let mut retried = server.send(&server.build(resume(server.hello().without_key_share())));
    assert_eq!(treatment(&mut retried), RETRIED);
    assert!(retried.connection().finish());
    assert!(retried.connection().send(b"after the retry\n"));
    retried.flush();
    assert!(until(|| text(&server.file("out")).contains("after the retry")));
    drop(retried);
    let tampered = server.build(resume(server.hello()).tamper_with_binder());
    let alert = failure(&mut server.send(&tampered));
    assert!(matches!(alert, Some("illegal_parameter" | "decrypt_error")), "{alert:?}");
}

#[test]
fn rfc8446_4_2_10_too_much_early_data_is_an_error() {
    if skipped_without(&["openssl"]) {
        return;
    }
    let server = start(&["-no_anti_replay", "-max_early_data", "1000"]);
    assert_eq!(server.ticket().max_early_data, Some(1000));
    let flight = server.build(server.early(&[b'x'; 1001]));
    assert_eq!(failure(&mut server.send(&flight)), Some("unexpected_message"));
    let fits = server.build(server.early(&[b'x'; 1000]));
    let mut fits = server.send(&fits);
    assert_eq!(treatment(&mut fits), ACCEPTED);
    assert!(fits.connection().send_early_data(b"y"), "one byte more, in a later record");
    assert_eq!(failure(&mut fits), Some("unexpected_message"));
}
