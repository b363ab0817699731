//! Ciphers of TLS 1.2, checked with `openssl s_client`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::program::{Ended, Serve, run, site};

/// A server with a certificate for an RSA key, which every cipher of TLS 1.2 can use.
fn serve(dir: &Path, tls: &str) -> Serve {
    let mut made = Command::new("openssl");
    made.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]);
    made.args(["-keyout", "key.pem", "-out", "cert.pem"]).current_dir(dir);
    assert_eq!(run(&mut made).code, Some(0));
    let config = format!("[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n{tls}");
    fs::write(dir.join("config.toml"), config).unwrap();
    let root = dir.join("root").display().to_string();
    Serve::configured_with(dir, &["--listen", "127.0.0.1:0", "--root", &root], &[])
}

/// Connects with TLS 1.2, these ciphers in this order, and both HTTP versions.
fn offer(server: &Serve, ciphers: &str) -> Ended {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-tls1_2", "-alpn", "h2,http/1.1", "-cipher"]);
    command.arg(format!("{ciphers}:@SECLEVEL=0"));
    run(command.args(["-connect", &server.address.to_string()]).stdin(Stdio::null()))
}

fn chosen(server: &Serve, ciphers: &str) -> Option<(String, bool)> {
    let ended = offer(server, ciphers);
    let line = ended.out.lines().find(|line| line.contains("Cipher is "))?;
    let cipher = line.split("Cipher is ").nth(1).filter(|cipher| *cipher != "(NONE)")?;
    Some((cipher.to_owned(), ended.out.contains("ALPN protocol: h2")))
}

const GCM: &str = "ECDHE-RSA-AES128-GCM-SHA256";
const CBC: &str = "ECDHE-RSA-AES128-SHA";
const STATIC: &str = "AES128-GCM-SHA256";

#[test]
fn default_ciphers_have_forward_secrecy_and_aead() {
    let site = site();
    let server = serve(site.path(), "");
    for good in [GCM, "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"] {
        assert_eq!(chosen(&server, good), Some((good.to_owned(), true)));
    }
    for old in [CBC, STATIC, "AES128-SHA", "ECDHE-RSA-AES256-SHA"] {
        assert_eq!(chosen(&server, old), None, "{old}");
    }
    assert_eq!(chosen(&server, &format!("{STATIC}:{CBC}:{GCM}")), Some((GCM.to_owned(), true)));
}

#[test]
fn rfc9113_appendix_a_older_ciphers_need_configuration_and_exclude_http2() {
    let site = site();
    let server = serve(site.path(), "ciphers = \"ECDHE+AESGCM:ECDHE+CHACHA20:ALL\"\n");
    for old in [CBC, STATIC, "AES128-SHA"] {
        assert_eq!(chosen(&server, old), Some((old.to_owned(), false)));
    }
    assert_eq!(chosen(&server, &format!("{STATIC}:{CBC}:{GCM}")), Some((GCM.to_owned(), true)));
}
