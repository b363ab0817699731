//! The application behind the nodes. A request that it received was executed.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::runtime;

/// An HTTP server with one port per node, so that it knows which node forwarded a request.
pub(crate) struct Upstream {
    /// The address for each node.
    pub(crate) addresses: Vec<SocketAddr>,
    executions_by_target: ExecutionLog,
}

/// The executions of one target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executions {
    /// The nodes that forwarded it, in order.
    pub(crate) nodes: Vec<usize>,
    /// How many of them were marked `Early-Data: 1` (RFC 8470 section 5.1).
    pub(crate) marked: usize,
}

type ExecutionLog = Arc<Mutex<HashMap<String, Executions>>>;

impl Upstream {
    /// Serves this number of nodes until the program ends.
    pub(crate) fn start(nodes: usize) -> Self {
        let executions_by_target = ExecutionLog::default();
        let listen = async || {
            let mut addresses = Vec::new();
            for node in 0..nodes {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                addresses.push(listener.local_addr().unwrap());
                let executions_by_target = executions_by_target.clone();
                tokio::spawn(async move {
                    while let Ok((tcp, _)) = listener.accept().await {
                        tokio::spawn(response(tcp, node, executions_by_target.clone()));
                    }
                });
            }
            addresses
        };
        let addresses = runtime().block_on(listen());
        Self { addresses, executions_by_target }
    }

    /// The executions of a target.
    pub(crate) fn executions(&self, target: &str) -> Executions {
        self.executions_by_target.lock().unwrap().get(target).cloned().unwrap_or_default()
    }
}

/// Responds to GETs with their target, one after the other.
async fn response(mut tcp: TcpStream, node: usize, executions_by_target: ExecutionLog) {
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
            let mut executions_by_target = executions_by_target.lock().unwrap();
            let executions = executions_by_target.entry(target.clone()).or_default();
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
