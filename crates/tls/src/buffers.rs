use std::io::{self, Read, Write};

/// The two buffers under the library. Both give their memory back when they run empty, so that an
/// idle connection holds none.
#[derive(Default)]
pub(crate) struct Wire {
    /// From the peer, not yet read by the library.
    pub(crate) incoming: Queue,
    /// For the peer, not yet sent.
    pub(crate) outgoing: Queue,
    /// Whether the peer's socket has ended.
    pub(crate) eof: bool,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.incoming.rest();
        if rest.is_empty() {
            return if self.eof { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.incoming.consume(count);
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.outgoing.append(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes in, bytes out, in order.
#[derive(Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    start: usize,
}

impl Queue {
    pub(crate) fn append(&mut self, more: &[u8]) {
        if self.start > 0 && self.bytes.len() + more.len() > self.bytes.capacity() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(more);
    }

    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.bytes.len() {
            *self = Self::default();
        }
    }
}
