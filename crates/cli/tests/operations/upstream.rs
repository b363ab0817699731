//! The application. A request that it received was executed.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    executed: Arc<AtomicU64>,
}

impl Upstream {
    /// Responds until the program ends.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let executed = Arc::new(AtomicU64::new(0));
        let counter = executed.clone();
        thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let counter = counter.clone();
                thread::spawn(move || response(tcp, &counter));
            }
        });
        Self { address, executed }
    }

    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::SeqCst)
    }
}

/// Responds to GETs, one after the other.
fn response(tcp: TcpStream, counter: &AtomicU64) {
    let _ = tcp.set_nodelay(true);
    let Ok(mut writer) = tcp.try_clone() else { return };
    let mut lines = BufReader::new(tcp).lines();
    let mut in_head = false;
    while let Some(Ok(line)) = lines.next() {
        if !line.is_empty() {
            in_head = true;
        } else if in_head {
            in_head = false;
            counter.fetch_add(1, Ordering::SeqCst);
            if writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ndone\n").is_err() {
                return;
            }
        }
    }
}
