//! The application behind the nodes. What it has seen is the judge: a request that came here was
//! executed.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::runtime;

/// An HTTP server with a port of its own for each node, so that it knows who asked.
pub(crate) struct Upstream {
    /// Where each node forwards to.
    pub(crate) addresses: Vec<SocketAddr>,
    seen: Seen,
}

/// How often one target was executed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executions {
    /// By which nodes, in order.
    pub(crate) nodes: Vec<usize>,
    /// How many of them were marked `Early-Data: 1` (RFC 8470 section 5.1).
    pub(crate) marked: usize,
}

type Seen = Arc<Mutex<HashMap<String, Executions>>>;

impl Upstream {
    /// Serves so many nodes until the program ends.
    pub(crate) fn start(nodes: usize) -> Self {
        let seen = Seen::default();
        let listen = async || {
            let mut addresses = Vec::new();
            for node in 0..nodes {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                addresses.push(listener.local_addr().unwrap());
                let seen = seen.clone();
                tokio::spawn(async move {
                    while let Ok((tcp, _)) = listener.accept().await {
                        tokio::spawn(response(tcp, node, seen.clone()));
                    }
                });
            }
            addresses
        };
        let addresses = runtime().block_on(listen());
        Self { addresses, seen }
    }

    /// What was executed of a target.
    pub(crate) fn executions(&self, target: &str) -> Executions {
        self.seen.lock().unwrap().get(target).cloned().unwrap_or_default()
    }
}

/// Answers GETs with their target, one after the other.
async fn response(mut tcp: TcpStream, node: usize, seen: Seen) {
    let _ = tcp.set_nodelay(true);
    let mut buffer = Vec::new();
    loop {
        let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else {
            match tcp.read_buf(&mut buffer).await {
                Ok(1..) => continue,
                _ => return,
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end + 4);
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let marked = head.lines().any(|line| line.eq_ignore_ascii_case("early-data: 1"));
        {
            let mut seen = seen.lock().unwrap();
            let executions = seen.entry(target.clone()).or_default();
            executions.nodes.push(node);
            executions.marked += usize::from(marked);
        }
        let response =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}", target.len());
        if tcp.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}
