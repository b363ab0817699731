//! Buffers between the socket, BoringSSL and the reader.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

/// The two buffers below BoringSSL. An empty buffer frees its memory, so an idle connection holds
/// none.
#[derive(Default)]
pub(crate) struct Wire {
    /// From the peer, not yet read by BoringSSL.
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

/// A FIFO of bytes.
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

/// What a stream has decrypted for its reader: first early data, then all later data. One read
/// never returns both.
pub(crate) struct DeliveredBytes {
    /// Data that was decrypted before the application read it.
    segments: VecDeque<Segment>,
    phase: Phase,
}

struct Segment {
    early: bool,
    bytes: Queue,
}

/// Which data the application reads (servers only; a client is always `Late`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Early,
    /// All early data was read, and the reader has been told once to poll again.
    Yielded,
    Late,
}

impl DeliveredBytes {
    pub(crate) fn new(phase: Phase) -> Self {
        Self { segments: VecDeque::new(), phase }
    }

    /// Whether every byte read so far was early data.
    pub(crate) fn is_early(&self) -> bool {
        self.phase != Phase::Late
    }

    /// From now on all data is late, because there is no early data.
    pub(crate) fn set_late(&mut self) {
        self.phase = Phase::Late;
    }

    /// Buffers bytes for the reader.
    pub(crate) fn push(&mut self, early: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.segments.back_mut() {
            Some(last) if last.early == early => last.bytes.append(bytes),
            _ => {
                let mut queue = Queue::default();
                queue.append(bytes);
                self.segments.push_back(Segment { early, bytes: queue });
            }
        }
    }

    /// Moves buffered bytes to the reader. Returns `None` if there are none.
    pub(crate) fn read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Option<Poll<()>> {
        let early = self.segments.front()?.early;
        if !early && !self.may_read_late(cx) {
            return Some(Poll::Pending);
        }
        let front = self.segments.front_mut()?;
        let rest = front.bytes.rest();
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        front.bytes.consume(count);
        if front.bytes.rest().is_empty() {
            self.segments.pop_front();
        }
        Some(Poll::Ready(()))
    }

    /// Whether the reader may read bytes that were not early data. It has to poll once more first,
    /// so that it has parsed all early data by then.
    fn may_read_late(&mut self, cx: &mut Context<'_>) -> bool {
        match self.phase {
            Phase::Early => {
                self.phase = Phase::Yielded;
                cx.waker().wake_by_ref();
                false
            }
            Phase::Yielded | Phase::Late => {
                self.phase = Phase::Late;
                true
            }
        }
    }
}
