//! The upstream that servers forward to. It runs on the load's core.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Starts the upstream on threads. It responds with the size that the path ends with, `1k` or `1m`,
/// and keeps connections open.
pub(crate) fn start() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // An error ends the connection.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    Ok(address)
}

fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let [small, large] = [1 << 10, 1 << 20].map(response);
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut wants_large = false;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line == "\r\n" {
            writer.write_all(if wants_large { &large } else { &small })?;
        } else if line.starts_with("GET ") {
            wants_large = line.contains("/1m ");
        }
    }
}

fn response(bytes: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {bytes}\r\n\r\n"
    );
    let mut response = head.into_bytes();
    response.resize(response.len() + bytes, b'x');
    response
}
