//! `[limits]` of `firstflight serve`, at their smallest and at their largest use.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::peers::certificate;
use crate::quic::aioquic;
use crate::running::{Serve, fetch, fields, site};

/// Pieces of a response, one each fifth of a second.
const PIECES: usize = 25;

/// An upstream whose responses take five seconds.
fn slow_upstream() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || drip(client));
        }
    });
    url
}

fn drip(mut client: TcpStream) {
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

/// A server before this upstream, with these settings.
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
fn a_response_that_goes_on_outlasts_every_timeout_while_its_client_is_silent() {
    let dir = site();
    // As short as a busy machine may be trusted to keep.
    let limits = "header_timeout = \"1s\"\nidle_timeout = \"1s\"\nupstream_timeout = \"1s\"";
    let pool = ["connect", "answer", "body", "tunnel", "queue"]
        .map(|name| format!("{name}_timeout = \"1s\"\n"))
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
    // And the connection takes a further request.
    let said = aioquic::client(
        dir.path(),
        &server.cert,
        server.address.port(),
        &["--key-update", "--then", "/again", "/"],
    );
    let bodies: Vec<_> = said["answers"].as_array().unwrap().iter().map(|a| &a["body"]).collect();
    assert_eq!(bodies, ["go".repeat(PIECES).as_str(); 2], "{said}");
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, "status complete")).collect();
    assert_eq!(seen, ["200 true"; 5]);
}
