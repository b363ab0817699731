//! Spent address tokens, one bit each.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use firstflight_tickets::UnixTime;
use quinn_proto::{TokenLog, TokenReuseError};

use super::{TokenSerial, last_opened};

/// The NEW_TOKEN tokens that this process has accepted. Each is accepted once (RFC 9000 section
/// 8.1.4). Exact: one bit per issued token, in blocks of 32,768, also for tokens of other processes.
///
/// Memory is bounded: if it is full, tokens of new blocks are not accepted. Those clients are then
/// limited to three times the bytes that they sent until their handshake is complete.
///
/// The process does not know which tokens others have accepted. So after a restart with the same keys
/// each earlier token may be accepted once more. With a store, all nodes also check there.
pub struct SpentTokens {
    clock: fn() -> UnixTime,
    blocks: Mutex<Blocks>,
}

struct Blocks {
    limit: usize,
    /// By issuer, and serial number divided by the size of a block.
    known: HashMap<(u64, u64), Block>,
}

struct Block {
    bits: Box<[u64; WORDS]>,
    /// When the last of its spent tokens expires.
    until: UnixTime,
}

impl SpentTokens {
    /// Creates a log of at most `bytes` bytes, but at least one block.
    pub fn new(bytes: usize, clock: fn() -> UnixTime) -> Self {
        let limit = (bytes / (WORDS * 8)).max(1);
        Self { clock, blocks: Mutex::new(Blocks { limit, known: HashMap::new() }) }
    }

    /// Spends a token that expires at `until`. Returns false if it was spent before or there is no
    /// room.
    pub fn spend(&self, serial: TokenSerial, until: UnixTime) -> bool {
        let now = (self.clock)();
        if until <= now {
            return false;
        }
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(block) = blocks.block((serial.issuer, serial.number / BLOCK), now) else {
            return false;
        };
        block.until = block.until.max(until);
        let at = (serial.number % BLOCK) as usize;
        let (word, bit) = (&mut block.bits[at / 64], 1 << (at % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}

impl Blocks {
    fn block(&mut self, key: (u64, u64), now: UnixTime) -> Option<&mut Block> {
        if !self.known.contains_key(&key) {
            if self.known.len() >= self.limit {
                self.known.retain(|_, block| block.until > now);
            }
            if self.known.len() >= self.limit {
                return None;
            }
        }
        let new_block = || Block { bits: Box::new([0; WORDS]), until: now };
        Some(self.known.entry(key).or_insert_with(new_block))
    }
}

impl TokenLog for SpentTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        issued: SystemTime,
        lifetime: Duration,
    ) -> Result<(), TokenReuseError> {
        let serial = last_opened(nonce).ok_or(TokenReuseError)?;
        // Times are in whole seconds: a token is spent for a second longer than it lives.
        let until = UnixTime(UnixTime::from(issued).after(lifetime).0.saturating_add(1));
        if self.spend(serial, until) { Ok(()) } else { Err(TokenReuseError) }
    }
}

impl fmt::Debug for SpentTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpentTokens").finish_non_exhaustive()
    }
}

/// Number of tokens of a block.
const BLOCK: u64 = 32_768;
const WORDS: usize = BLOCK as usize / 64;
