//! A baseline for `firstflight serve` over TCP: only an epoll loop on BoringSSL. It has no HTTP:
//! every request gets the same KiB, and the connection ends. Tickets are BoringSSL's own, and early
//! data is accepted without replay protection.
//!
//!     bare_server CERTIFICATE KEY PORT
//!
//! One thread. Reads as much as there is, and writes a flight with one call. `make bench` compares
//! servers with it.
#![allow(unsafe_code, reason = "boring has no early data")]

mod wire;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use boring::ssl::{
    ErrorCode, Ssl, SslContext, SslFiletype, SslMethod, SslSessionCacheMode, SslStream, SslVersion,
};
use foreign_types::ForeignTypeRef;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Socket, Type};

use wire::Wire;

type Failed = Box<dyn std::error::Error>;

struct Connection {
    stream: SslStream<Wire>,
    responded: bool,
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [certificate, key, port] = arguments.as_slice() else {
        return Err("usage: bare_server CERTIFICATE KEY PORT".into());
    };
    let context = context(certificate, key)?;
    let listener = listen(port.parse()?)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    eprintln!("serving on {}", listener.local_addr()?);
    let response = response();
    let mut slots: Vec<Option<Connection>> = Vec::new();
    let mut free = Vec::new();
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            if event.data() != LISTENER {
                let slot = event.data() as usize;
                if let Some(connection) = slots[slot].as_mut()
                    && step(connection, &response).unwrap_or(true)
                {
                    slots[slot] = None;
                    free.push(slot);
                }
                continue;
            }
            while let Ok((socket, _)) = listener.accept() {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                let ssl = Ssl::new(&context)?;
                // SAFETY: the connection is valid and its handshake has not started.
                unsafe { boring_sys::SSL_set_accept_state(ssl.as_ptr()) };
                let stream = SslStream::new(ssl, Wire::new(socket))?;
                let mut connection = Connection { stream, responded: false };
                if step(&mut connection, &response).unwrap_or(true) {
                    continue;
                }
                let slot = free.pop().unwrap_or_else(|| {
                    slots.push(None);
                    slots.len() - 1
                });
                let interest = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
                epoll.add(&connection.stream.get_ref().socket, interest)?;
                slots[slot] = Some(connection);
            }
        }
    }
}

const LISTENER: u64 = u64::MAX;

fn context(certificate: &str, key: &str) -> Result<SslContext, Failed> {
    let mut context = SslContext::builder(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_curves_list("X25519")?;
    context.set_certificate_chain_file(certificate)?;
    context.set_private_key_file(key, SslFiletype::PEM)?;
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    context.set_session_id_context(b"bare")?;
    context.set_alpn_select_callback(|_, offered| {
        boring::ssl::select_next_proto(b"\x08http/1.1", offered)
            .ok_or(boring::ssl::AlpnError::NOACK)
    });
    // SAFETY: the context is valid, and shared with nobody yet.
    unsafe { boring_sys::SSL_CTX_set_early_data_enabled(context.as_ptr(), 1) };
    Ok(context.build())
}

fn listen(port: u16) -> Result<TcpListener, Failed> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn response() -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1024\r\nConnection: close\r\n\r\n";
    [head.as_bytes(), &[b'x'; 1024]].concat()
}

/// Processes input and sends the output. Returns whether the connection has ended.
fn step(connection: &mut Connection, response: &[u8]) -> Result<bool, Failed> {
    let done = advance(connection, response);
    connection.stream.get_mut().send()?;
    done
}

fn advance(connection: &mut Connection, response: &[u8]) -> Result<bool, Failed> {
    let Connection { stream, responded } = connection;
    match stream.do_handshake() {
        Ok(()) => {}
        Err(error) if error.code() == ErrorCode::WANT_READ => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let mut request = [0; 4096];
    loop {
        match stream.read(&mut request) {
            Ok(0) => return Ok(true),
            Ok(_) if *responded => {}
            Ok(count) => {
                if request[..count].ends_with(b"\r\n\r\n") {
                    stream.write_all(response)?;
                    *responded = true;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    // With early data, the request arrives before the client's Finished, and the tickets are sent
    // only after it.
    // SAFETY: the connection is valid; the call only reads.
    let finished = unsafe { boring_sys::SSL_in_early_data(stream.ssl().as_ptr()) } == 0;
    if *responded && finished {
        let _ = stream.shutdown();
        return Ok(true);
    }
    Ok(false)
}
