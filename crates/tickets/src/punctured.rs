//! Tickets that are used up when they are opened.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use firstflight_puncture::{Counts, Limits, PuncturableFunction, TicketIndex, Value, wipe_stack};
use zeroize::Zeroizing;

pub use firstflight_puncture::InvalidSnapshot;

/// Seals each ticket under a key of its own, and destroys the key when the ticket is used. `Send +
/// Sync`; share it in an `Arc`.
///
/// The key is the value of a puncturable pseudorandom function at the ticket's index
/// ([`firstflight_puncture`]). After the use nobody can open the ticket: neither this process, nor a
/// thief of its memory. So of all copies of a first flight exactly one can be accepted, and recorded
/// early data stays secret.
///
/// A ticket is `kind (1) | epoch (8) | number (4) | ciphertext | tag (16)`, sealed by
/// ChaCha20-Poly1305 with the 13 bytes before the ciphertext as associated data. Each key seals one
/// ticket, so the nonce is zero. The ciphertext is that of `seconds (8) | content`.
///
/// Times are by a clock that is never set, such as the machine's monotonic one. A process that
/// takes over the keys has to read the same clock.
#[derive(Debug)]
pub struct PuncturedTickets {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Owned(Box<PuncturableFunction>),
    /// Another process has the function.
    HandedOver,
}

/// The outcome of [`PuncturedTickets::read`] and [`PuncturedTickets::open`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenOutcome {
    /// The ticket was opened, and by [`PuncturedTickets::open`] also used up.
    Session {
        /// The content that was sealed.
        content: Zeroizing<Vec<u8>>,
        /// When it was sealed, in whole seconds.
        sealed_at: Duration,
    },
    /// The client has not proved that it knows the session. The ticket is unchanged.
    Unproven,
    /// The ticket was used before, or discarded because of the memory limit. It is unknown whether
    /// it was genuine.
    Used,
    /// The ticket has expired, or was not issued by this process.
    Unknown,
    /// The ticket's index is not used, but the ticket was not sealed under it.
    Forged,
    /// Another process has the keys. The ticket is unchanged.
    HandedOver,
}

/// The outcome of [`PuncturedTickets::use_up`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseOutcome {
    /// The ticket is used up, by this call.
    First,
    /// The ticket was used before, has expired, or was discarded because of the memory limit.
    Again,
    /// Another process has the keys. The ticket is unchanged.
    HandedOver,
}

impl PuncturedTickets {
    /// The bytes that a ticket is longer than its content.
    pub const OVERHEAD: usize = HEADER_BYTES + TIME_BYTES + TAG_BYTES;

    /// Creates new keys, for this process alone. Its tickets do not outlive it, unless it hands the
    /// keys over.
    pub fn new(limits: Limits) -> Self {
        let function = Box::new(PuncturableFunction::new(limits));
        Self { limits, state: Mutex::new(State::Owned(function)) }
    }

    /// Seals `content` under the next index. Returns `None` if another process has the keys.
    pub fn seal(&self, content: &[u8], now: Duration) -> Option<Vec<u8>> {
        let ticket = self.seal_under_next_key(content, now);
        wipe_stack::<WIPED_STACK>();
        ticket
    }

    #[inline(never)]
    fn seal_under_next_key(&self, content: &[u8], now: Duration) -> Option<Vec<u8>> {
        let (index, value) = match &mut *self.state() {
            State::Owned(function) => function.issue(now.as_secs()),
            State::HandedOver => return None,
        };
        let dated = Zeroizing::new([&now.as_secs().to_be_bytes()[..], content].concat());
        let mut ticket = Vec::with_capacity(content.len() + Self::OVERHEAD);
        ticket.push(KIND);
        ticket.extend_from_slice(&index.epoch);
        ticket.extend_from_slice(&index.number.to_be_bytes());
        let sealed = cipher(&value)
            .encrypt(&Nonce::default(), Payload { msg: &dated, aad: &ticket })
            .expect("a ticket is shorter than the cipher's limit of 256 GiB");
        ticket.extend_from_slice(&sealed);
        Some(ticket)
    }

    /// Opens a ticket without using it up. The caller has to verify that the client knows the
    /// session's secret, and to call [`PuncturedTickets::use_up`] before it does anything for the client.
    pub fn read(&self, ticket: &[u8]) -> OpenOutcome {
        let outcome = self.read_under_its_key(ticket);
        wipe_stack::<WIPED_STACK>();
        outcome
    }

    #[inline(never)]
    fn read_under_its_key(&self, ticket: &[u8]) -> OpenOutcome {
        let Some((index, sealed)) = parse(ticket) else { return OpenOutcome::Unknown };
        let value = match &mut *self.state() {
            State::Owned(function) => match function.evaluate(&index) {
                Some(value) => value,
                None if function.is_issued(&index) => return OpenOutcome::Used,
                None => return OpenOutcome::Unknown,
            },
            State::HandedOver => return OpenOutcome::HandedOver,
        };
        let payload = Payload { msg: sealed, aad: &ticket[..HEADER_BYTES] };
        let Ok(dated) = cipher(&value).decrypt(&Nonce::default(), payload) else {
            return OpenOutcome::Forged;
        };
        let dated = Zeroizing::new(dated);
        let Some((sealed_at, content)) = dated.split_first_chunk() else {
            return OpenOutcome::Forged;
        };
        OpenOutcome::Session {
            content: Zeroizing::new(content.to_vec()),
            sealed_at: Duration::from_secs(u64::from_be_bytes(*sealed_at)),
        }
    }

    /// Uses up a ticket that was [read](PuncturedTickets::read). Of several concurrent callers with the
    /// same ticket, exactly one gets [`UseOutcome::First`].
    pub fn use_up(&self, ticket: &[u8]) -> UseOutcome {
        let Some((index, _)) = parse(ticket) else { return UseOutcome::Again };
        match &mut *self.state() {
            State::Owned(function) => match function.puncture(&index) {
                true => UseOutcome::First,
                false => UseOutcome::Again,
            },
            State::HandedOver => UseOutcome::HandedOver,
        }
    }

    /// Opens a ticket and uses it up, if `is_proven` returns true for its session: if the client has
    /// proved by its binder that it knows the session's secret (RFC 8446 section 4.2.11.2). An
    /// attacker who has only seen the ticket cannot use it up.
    pub fn open(&self, ticket: &[u8], is_proven: impl FnOnce(&[u8]) -> bool) -> OpenOutcome {
        let opened = self.read(ticket);
        let OpenOutcome::Session { content, .. } = &opened else { return opened };
        if !is_proven(content) {
            return OpenOutcome::Unproven;
        }
        // Another connection may have been faster meanwhile, or the keys handed over.
        match self.use_up(ticket) {
            UseOutcome::First => opened,
            UseOutcome::Again => OpenOutcome::Used,
            UseOutcome::HandedOver => OpenOutcome::HandedOver,
        }
    }

    /// Destroys the keys of each epoch whose tickets were all issued before `time`.
    pub fn expire_before(&self, time: Duration) {
        if let State::Owned(function) = &mut *self.state() {
            function.expire_before(time.as_secs());
        }
    }

    /// Counts of tickets by their state. `None` if another process has the keys.
    pub fn counts(&self) -> Option<Counts> {
        match &*self.state() {
            State::Owned(function) => Some(function.counts()),
            State::HandedOver => None,
        }
    }

    /// Returns the keys for another process, or `None` if another process has them. No key is left
    /// here: until [`take_over`](Self::take_over) or [`replace_keys`](Self::replace_keys), no
    /// ticket is sealed or opened.
    pub fn hand_off(&self) -> Option<Zeroizing<Vec<u8>>> {
        match self.replace(State::HandedOver) {
            State::Owned(function) => Some(function.snapshot()),
            State::HandedOver => None,
        }
    }

    /// Takes keys from another process, in place of this process's own. The other process must not
    /// use them any more.
    ///
    /// # Errors
    /// [`InvalidSnapshot`]: the keys in use stay.
    pub fn take_over(&self, snapshot: &[u8]) -> Result<(), InvalidSnapshot> {
        let function = PuncturableFunction::restore(snapshot, self.limits)?;
        self.replace(State::Owned(Box::new(function)));
        Ok(())
    }

    /// Replaces the keys by new ones, because the process that has the previous ones has ended. Its
    /// tickets cost their clients a full handshake.
    pub fn replace_keys(&self) {
        self.replace(State::Owned(Box::new(PuncturableFunction::new(self.limits))));
    }

    /// Returns the previous state unlocked: handshakes need not wait until its keys, which may take
    /// hundreds of megabytes, are copied or wiped.
    fn replace(&self, state: State) -> State {
        std::mem::replace(&mut *self.state(), state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cipher(value: &Value) -> ChaCha20Poly1305 {
    ChaCha20Poly1305::new(<&Key>::from(&**value))
}

/// The index of a ticket and what is sealed in it.
fn parse(ticket: &[u8]) -> Option<(TicketIndex, &[u8])> {
    let (&[kind], rest) = ticket.split_first_chunk()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let (number, sealed) = rest.split_first_chunk()?;
    let index = TicketIndex { epoch: *epoch, number: u32::from_be_bytes(*number) };
    (kind == KIND && sealed.len() >= TAG_BYTES).then_some((index, sealed))
}

/// Different from the kinds of [`TicketKey`](crate::TicketKey).
const KIND: u8 = 10;
const HEADER_BYTES: usize = 1 + 8 + 4;
const TIME_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

/// More stack than sealing or reading a ticket uses, in units of 16 bytes: the key is moved, and
/// the cipher copies it.
const WIPED_STACK: usize = 512;

#[cfg(test)]
#[path = "punctured_tests.rs"]
mod tests;
