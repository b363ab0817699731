use std::collections::VecDeque;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use crate::buffers::Queue;

/// What a stream's reader has been given: early data first, then, and never in one read with it,
/// all else.
pub(crate) struct DeliveredBytes {
    /// Data that was read before the application asked for it.
    kept: VecDeque<Kept>,
    phase: Phase,
}

struct Kept {
    early: bool,
    bytes: Queue,
}

/// Which bytes the application has been given (server only; a client is `Late` from the start).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Early,
    /// All early bytes are given, and the reader was asked to come again once.
    GaveWay,
    Late,
}

impl DeliveredBytes {
    pub(crate) fn new(phase: Phase) -> Self {
        Self { kept: VecDeque::new(), phase }
    }

    /// Whether every byte given so far was early data.
    pub(crate) fn is_early(&self) -> bool {
        self.phase != Phase::Late
    }

    /// There is no early data: all that is read from now on is late.
    pub(crate) fn begin_late(&mut self) {
        self.phase = Phase::Late;
    }

    /// Keeps bytes for the reader.
    pub(crate) fn keep(&mut self, early: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.kept.back_mut() {
            Some(last) if last.early == early => last.bytes.append(bytes),
            _ => {
                let mut queue = Queue::default();
                queue.append(bytes);
                self.kept.push_back(Kept { early, bytes: queue });
            }
        }
    }

    /// Moves kept bytes to the reader. `None`: there are none.
    pub(crate) fn read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Option<Poll<()>> {
        let early = self.kept.front()?.early;
        if !early && !self.may_go_late(cx) {
            return Some(Poll::Pending);
        }
        let front = self.kept.front_mut()?;
        let rest = front.bytes.rest();
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        front.bytes.consume(count);
        if front.bytes.rest().is_empty() {
            self.kept.pop_front();
        }
        Some(Poll::Ready(()))
    }

    /// Whether the reader may have bytes that were not early data: only after it has been asked to
    /// come again once, so that it looked through all early ones first.
    fn may_go_late(&mut self, cx: &mut Context<'_>) -> bool {
        match self.phase {
            Phase::Early => {
                self.phase = Phase::GaveWay;
                cx.waker().wake_by_ref();
                false
            }
            Phase::GaveWay | Phase::Late => {
                self.phase = Phase::Late;
                true
            }
        }
    }
}
