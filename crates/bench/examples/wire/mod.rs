//! The transport below BoringSSL in `bare_loop` and `bare_server`.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Reads ahead and gathers writes. Without this, BoringSSL reads each record header separately and
/// writes ClientHello and early data one after the other, which would be an unfair baseline.
pub(crate) struct Wire {
    pub(crate) socket: TcpStream,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that BoringSSL has read.
    consumed: usize,
    outgoing: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, incoming: Vec::new(), consumed: 0, outgoing: Vec::new() }
    }

    pub(crate) fn send(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.outgoing)?;
        self.outgoing.clear();
        Ok(())
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.consumed == self.incoming.len() {
            let mut ahead = [0; 16 * 1024];
            let count = self.socket.read(&mut ahead)?;
            self.incoming.clear();
            self.incoming.extend_from_slice(&ahead[..count]);
            self.consumed = 0;
        }
        let rest = &self.incoming[self.consumed..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.consumed += count;
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
