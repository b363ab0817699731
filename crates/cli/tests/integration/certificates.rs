//! Several certificates for a site and compressed ones, with OpenSSL, curl and rustls as clients.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    CertificateCompressionAlgorithm, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};

use crate::support::peer;
use crate::support::program::{Ended, Serve, TEST_TIMEOUT, fetch, run, self_signed, site};

/// Writes a self-signed certificate for `localhost` with an RSA key: `rsa.pem` and `rsa.key`.
fn rsa(dir: &Path) {
    let mut command = Command::new("openssl");
    command.current_dir(dir).args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=x"]);
    command.args(["-addext", "subjectAltName=DNS:localhost", "-newkey", "rsa:2048"]);
    let ended = run(command.args(["-keyout", "rsa.key", "-out", "rsa.pem"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Serves with an ECDSA certificate, this `[tls]` table, and further certificates of the site.
fn serve(dir: &Path, tls: &str, certificates: &str) -> Serve {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let files = "certificate = \"ecdsa.pem\"\nkey = \"ecdsa.key\"\n";
    let route = "[[site.route]]\nroot = \"root\"\n";
    let text = format!("{listener}{tls}[[site]]\n{files}{certificates}{route}");
    fs::write(dir.join("config.toml"), text).unwrap();
    Serve::configured(dir)
}

fn ecdsa(dir: &Path) {
    peer::certificate(dir);
    fs::rename(dir.join("cert.pem"), dir.join("ecdsa.pem")).unwrap();
    fs::rename(dir.join("key.pem"), dir.join("ecdsa.key")).unwrap();
}

/// Connects with OpenSSL's client.
fn s_client(dir: &Path, server: &Serve, arguments: &[&str]) -> Ended {
    let mut command = Command::new("openssl");
    command.current_dir(dir).args(["s_client", "-servername", "localhost", "-connect"]);
    command.arg(server.address.to_string()).args(arguments).stdin(Stdio::null());
    run(&mut command)
}

#[test]
fn rfc8446_4_4_2_2_the_clients_signature_algorithms_choose_the_certificate() {
    let site = site();
    let dir = site.path();
    ecdsa(dir);
    rsa(dir);
    let both = ["ecdsa.pem", "rsa.pem"].map(|file| fs::read_to_string(dir.join(file)).unwrap());
    fs::write(dir.join("both.pem"), both.concat()).unwrap();
    let others = "other_certificates = [{ certificate = \"rsa.pem\", key = \"rsa.key\" }]\n";
    let server = serve(dir, "", others);
    for (version, algorithms, expected) in [
        ("-tls1_3", "ECDSA+SHA256:RSA-PSS+SHA256", "ECDSA"),
        ("-tls1_3", "RSA-PSS+SHA256:ECDSA+SHA256", "ECDSA"),
        ("-tls1_3", "RSA-PSS+SHA256", "RSA-PSS"),
        ("-tls1_2", "RSA+SHA256", "RSA"),
        ("-tls1_2", "ECDSA+SHA256", "ECDSA"),
    ] {
        let seen =
            s_client(dir, &server, &[version, "-sigalgs", algorithms, "-CAfile", "both.pem"]);
        let signed = format!("Peer signature type: {expected}\n");
        assert!(seen.out.contains(&signed), "{version} {algorithms}: {seen:?}");
        assert!(seen.out.contains("Verify return code: 0 (ok)"), "{seen:?}");
    }
    // Sessions with either certificate are resumed, and early data is accepted.
    let url = format!("https://localhost:{}/", server.port());
    let early = |_| fetch(dir, &dir.join("ecdsa.pem"), &url, &["--tls-earlydata"]);
    let fetched: Vec<_> = (0..2).map(early).collect();
    assert_eq!(fetched[1].facts["early_data"], "accepted", "{:?}", fetched[1].ended);
    for algorithm in ["RSA-PSS+SHA256", "ECDSA+SHA256"] {
        let flags = ["-tls1_2", "-sigalgs", &algorithm.replace("RSA-PSS", "RSA")];
        s_client(dir, &server, &[&flags[..], &["-sess_out", "session"]].concat());
        let again = s_client(dir, &server, &[&flags[..], &["-sess_in", "session"]].concat());
        assert!(again.out.contains("\nReused, TLSv1.2"), "{algorithm}: {again:?}");
    }
    server.stop();
    // Without the RSA certificate, such a client gets none.
    let server = serve(dir, "", "");
    let refused = s_client(dir, &server, &["-tls1_3", "-sigalgs", "RSA-PSS+SHA256"]);
    assert!(refused.out.contains("no peer certificate available"), "{refused:?}");
}

/// A decompressor for rustls that records each compressed input and its decompressed length.
#[derive(Debug)]
struct Decompressor {
    algorithm: CertificateCompressionAlgorithm,
    seen: Mutex<Vec<(Vec<u8>, usize)>>,
}

impl CertDecompressor for Decompressor {
    fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        let mut whole = Vec::new();
        let read = match self.algorithm {
            CertificateCompressionAlgorithm::Brotli => {
                brotli::Decompressor::new(input, 4096).read_to_end(&mut whole)
            }
            _ => flate2::read::ZlibDecoder::new(input).read_to_end(&mut whole),
        };
        self.seen.lock().unwrap().push((input.to_vec(), whole.len()));
        match read.is_ok() && whole.len() == output.len() {
            true => output.copy_from_slice(&whole),
            false => return Err(DecompressionFailed),
        }
        Ok(())
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.algorithm
    }
}

/// Fetches the page with rustls, which offers these algorithms and verifies the certificate.
fn get(dir: &Path, server: &Serve, offered: &[&'static Decompressor]) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ecdsa.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.cert_decompressors =
        offered.iter().map(|&offer| offer as &dyn CertDecompressor).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(server.address).unwrap();
    tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut stream = StreamOwned::new(tls, tcp);
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    // Another test checks whether the server sends close_notify.
    let _ = stream.read_to_string(&mut response);
    response
}

#[test]
fn rfc8879_certificates_are_compressed_once_for_clients_that_offer_it() {
    let site = site();
    let dir = site.path();
    ecdsa(dir);
    let decompressor = |algorithm| -> &'static Decompressor {
        Box::leak(Box::new(Decompressor { algorithm, seen: Mutex::default() }))
    };
    let brotli = decompressor(CertificateCompressionAlgorithm::Brotli);
    let zlib = decompressor(CertificateCompressionAlgorithm::Zlib);
    let taken = |from: &Decompressor| std::mem::take(&mut *from.seen.lock().unwrap());
    let server = serve(dir, "[tls]\ncompress_certificates = true\n", "");
    for (offered, used, unused) in
        [(&[zlib, brotli][..], brotli, zlib), (&[brotli], brotli, zlib), (&[zlib], zlib, brotli)]
    {
        for _ in 0..2 {
            assert!(get(dir, &server, offered).starts_with("HTTP/1.1 200"));
        }
        let seen = taken(used);
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0], seen[1], "the same bytes");
        assert!(seen[0].0.len() < seen[0].1, "{} of {} bytes", seen[0].0.len(), seen[0].1);
        assert!(taken(unused).is_empty());
    }
    assert!(get(dir, &server, &[]).starts_with("HTTP/1.1 200"));
    server.stop();
    let server = serve(dir, "", "");
    assert!(get(dir, &server, &[zlib, brotli]).starts_with("HTTP/1.1 200"));
    assert!(taken(brotli).is_empty() && taken(zlib).is_empty(), "off by default");
}

/// The sites, as names and further settings of the route, and the names that their certificate
/// covers.
type SiteSet<'a> = (&'a [(&'a [&'a str], &'a str)], &'a [&'a str]);

/// Serves sites with one certificate, and `other.site.test` with another. Fetches from each of
/// `hosts` in turn, with one jar, and returns the outcomes of early data.
fn visits((sites, covered): SiteSet<'_>, across: bool, hosts: &[&str]) -> Vec<String> {
    let site = site();
    let dir = site.path();
    let mut text =
        format!("[[listener]]\naddress = \"127.0.0.1:0\"\n[tickets]\nacross_names = {across}\n");
    let mut trusted = String::new();
    for (file, names) in [("one", covered), ("two", &["other.site.test"][..])] {
        let (certificate, key) = self_signed(names);
        trusted += &certificate;
        fs::write(dir.join(format!("{file}.pem")), certificate).unwrap();
        fs::write(dir.join(format!("{file}.key")), key).unwrap();
    }
    let other: (&[&str], _) = (&["other.site.test"], "");
    for ((names, rules), file) in sites.iter().map(|site| (site, "one")).chain([(&other, "two")]) {
        text += &format!(
            "[[site]]\nnames = {names:?}\ncertificate = \"{file}.pem\"\nkey = \"{file}.key\"\n\
             [[site.route]]\nroot = \"root\"\n{rules}\n"
        );
    }
    fs::write(dir.join("trusted.pem"), trusted).unwrap();
    fs::write(dir.join("config.toml"), text).unwrap();
    let server = Serve::configured(dir);
    let visit = |host: &&str| {
        let port = server.port();
        let resolve = format!("{host}:{port}:127.0.0.1");
        let url = format!("https://{host}:{port}/");
        let arguments = ["--tls-earlydata", "--resolve", &resolve];
        let fetched = fetch(dir, &dir.join("trusted.pem"), &url, &arguments);
        assert_eq!(fetched.ended.code, Some(0), "{host}: {:?}", fetched.ended);
        fetched.facts["early_data"].as_str().unwrap().to_owned()
    };
    hosts.iter().map(visit).collect()
}

#[test]
fn a_ticket_is_offered_under_all_names_of_its_certificate_if_they_share_a_policy() {
    let both = ["www.site.test", "static.site.test"];
    let one_site: &[(&[&str], _)] = &[(&both, "")];
    let two_sites: &[(&[&str], _)] = &[(&both[..1], ""), (&both[1..], "")];
    let hosts = [
        "www.site.test",
        "static.site.test",
        "other.site.test",
        "www.site.test",
        "static.site.test",
    ];
    // Of five visits to two names and a third, three have early data instead of two: also the first
    // visit to the second name.
    let shared = ["none", "accepted", "none", "accepted", "accepted"];
    let separate = ["none", "none", "none", "accepted", "accepted"];
    for sites in [one_site, two_sites] {
        assert_eq!(visits((sites, &both), true, &hosts), shared);
        assert_eq!(visits((sites, &both), false, &hosts), separate);
    }
    // Tickets are not shared if `static.site.test` has another policy, or if the certificate covers
    // further names, whose policy may differ.
    let stricter: &[(&[&str], _)] = &[(&both[..1], ""), (&both[1..], "early_data = \"strict\"")];
    assert_eq!(visits((stricter, &both), true, &hosts), separate);
    for more in [&["other.site.test"][..], &["*.site.test"]] {
        let covered = [&both[..], more].concat();
        assert_eq!(visits((one_site, &covered), true, &hosts), separate, "{covered:?}");
    }
}
