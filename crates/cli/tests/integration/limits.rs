//! The `[limits]` of `firstflight serve`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use firstflight_testkit::skipped_without;

use crate::quic::aioquic;
use crate::support::peer::certificate;
use crate::support::program::{Serve, TEST_TIMEOUT, fetch, fields, site, until};

/// The number of pieces of a response, sent every 200 ms.
const PIECES: usize = 40;

/// An upstream whose responses take five seconds.
fn slow_upstream() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || respond_slowly(client));
        }
    });
    url
}

fn respond_slowly(mut client: TcpStream) {
    let lines = BufReader::new(client.try_clone().unwrap()).lines();
    if lines.map_while(Result::ok).take_while(|line| !line.is_empty()).count() == 0 {
        return;
    }
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let _ = client.write_all(head.as_bytes());
    for _ in 0..PIECES {
        thread::sleep(Duration::from_millis(200));
        if client.write_all(b"2\r\ngo\r\n").is_err() {
            return;
        }
    }
    let _ = client.write_all(b"0\r\n\r\n");
}

/// A server with this upstream and these settings.
fn serve(dir: &Path, upstream: &str, limits: &str, pool: &str) -> Serve {
    certificate(dir);
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[[site]]\ncertificate = \"cert.pem\"\n\
         key = \"key.pem\"\n[[site.route]]\npath = \"/\"\nupstream = \"app\"\n\
         [limits]\n{limits}\n[upstream.app]\nservers = [\"{upstream}\"]\n{pool}"
    );
    fs::write(dir.join("config.toml"), config).unwrap();
    Serve::configured(dir)
}

#[test]
fn a_long_response_is_not_cut_off_by_timeouts() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let dir = site();
    // Shorter than the response, and longer than a busy machine pauses.
    let limits = "header_timeout = \"6s\"\nidle_timeout = \"6s\"\nupstream_timeout = \"6s\"";
    let pool = ["connect", "response", "body", "tunnel", "queue"]
        .map(|name| format!("{name}_timeout = \"6s\"\n"))
        .concat();
    let server = serve(dir.path(), &slow_upstream(), limits, &pool);
    thread::scope(|scope| {
        for http in ["--http1.1", "--http2", "--http3-only"] {
            let (dir, server) = (dir.path(), &server);
            scope.spawn(move || {
                let url = format!("https://localhost:{}/", server.port());
                let home = dir.join(&http[2..]);
                fs::create_dir(&home).unwrap();
                let fetched = fetch(&home, &server.cert, &url, &[http]);
                assert_eq!(fetched.ended.out, "go".repeat(PIECES), "{:?}", fetched.ended);
                assert_eq!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
            });
        }
    });
    // The connection accepts another request afterwards.
    let report = aioquic::client(
        dir.path(),
        &server.cert,
        server.address.port(),
        &["--key-update", "--then", "/again", "/"],
    );
    let bodies: Vec<_> =
        report["responses"].as_array().unwrap().iter().map(|a| &a["body"]).collect();
    assert_eq!(bodies, ["go".repeat(PIECES).as_str(); 2], "{report}");
    let log = server.stop();
    let logged: Vec<_> = log.iter().map(|line| fields(line, "status complete")).collect();
    assert_eq!(logged, ["200 true"; 5]);
}

/// An upstream that responds to each GET and waits for the end of each POST. Returns the number of
/// waiting POSTs.
fn counting_upstream() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let posts = Arc::<AtomicUsize>::default();
    let counter = posts.clone();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let posts = counter.clone();
            thread::spawn(move || {
                let reader = BufReader::new(client.try_clone().unwrap());
                let lines = reader.lines().map_while(Result::ok);
                let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                if head.first().is_some_and(|line| line.starts_with("POST")) {
                    posts.fetch_add(1, Ordering::Relaxed);
                    let _ = client.read_to_end(&mut Vec::new());
                }
                let end = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nup";
                let _ = client.write_all(end);
            });
        }
    });
    (url, posts)
}

/// A new HTTP/2 connection.
fn http2(server: &Serve) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&server.cert).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(server.address).unwrap();
    tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    StreamOwned::new(tls, tcp)
}

/// HEADERS of a POST whose body does not end, with a field of 4,000 bytes seven times. The first
/// request adds the field to the dynamic table; later ones use its index (RFC 7541 section 6.1).
fn open_post(stream: u8, first: bool) -> Vec<u8> {
    let mut block = vec![0x83, 0x87, 0x84, 0x01, 9];
    block.extend(b"localhost");
    if first {
        block.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
        block.extend([b'b'; 4000]);
    }
    block.extend(vec![0xbe; if first { 6 } else { 7 }]);
    let length = u32::try_from(block.len()).unwrap().to_be_bytes();
    [&length[1..], &[1, 4, 0, 0, 0, stream], &block].concat()
}

/// Reads frames until `count` response heads have arrived.
fn heads(client: &mut impl Read, count: usize) {
    let mut found = 0;
    while found < count {
        let mut head = [0; 9];
        client.read_exact(&mut head).expect("the server responds");
        let [_, a, b, kind, ..] = head;
        client.read_exact(&mut vec![0; usize::from(a) << 8 | usize::from(b)]).unwrap();
        found += usize::from(kind == 1);
    }
}

#[test]
fn open_requests_hold_bounded_memory() {
    let dir = site();
    let (upstream, posts) = counting_upstream();
    let server = serve(dir.path(), &upstream, "memory = 1048576", "");
    let mut attacker = http2(&server);
    let mut flight = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    (0..100).for_each(|number| flight.extend(open_post(number * 2 + 1, number == 0)));
    attacker.write_all(&flight).unwrap();
    attacker.flush().unwrap();
    // By docs/reference/configuration.md each request counts as 95 KB, so 11 fit.
    heads(&mut attacker, 89);
    assert!(until(|| posts.load(Ordering::Relaxed) > 0), "the others are forwarded");
    assert!(posts.load(Ordering::Relaxed) <= 11, "{posts:?}");
    drop(attacker);
    let url = format!("https://localhost:{}/", server.port());
    let served = until(|| fetch(dir.path(), &server.cert, &url, &[]).ended.out == "up");
    assert!(served, "all of it is free again");
    let log = server.stop();
    let refused = log.iter().filter(|line| line["status"] == 503);
    assert!(refused.clone().count() >= 89);
}

#[test]
fn incomplete_client_hellos_hold_bounded_memory() {
    let dir = site();
    let (upstream, _) = counting_upstream();
    let server = serve(dir.path(), &upstream, "memory = 1048576", "");
    // 5,000 bytes of a ClientHello of 16,000, each in a separate record: 30,000 bytes, which count
    // three times, so 11 clients fit.
    let hello = [&[1, 0, 0x3e, 0x80, 3, 3][..], &[0; 4994]].concat();
    let records: Vec<u8> = hello.iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let mut tcp = TcpStream::connect(server.address).unwrap();
            let _ = tcp.write_all(&records);
            tcp
        })
        .collect();
    let is_closed = |mut tcp: &TcpStream| {
        tcp.set_nonblocking(true).unwrap();
        !matches!(tcp.read(&mut [0; 64]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    };
    let closed = || clients.iter().filter(|tcp| is_closed(tcp)).count();
    assert!(until(|| closed() >= 9), "{} are closed", closed());
    clients.iter().for_each(|tcp| drop(tcp.shutdown(Shutdown::Both)));
    drop(clients);
    let url = format!("https://localhost:{}/", server.port());
    let served = until(|| fetch(dir.path(), &server.cert, &url, &[]).ended.out == "up");
    assert!(served, "all of it is free again");
    server.stop();
}
