//! An attacker who records a first flight, and later steals the whole memory of a process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use boring::hash::hmac_sha256;
use boring::sha::sha256;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, XChaCha20Poly1305, XNonce};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::child::{TEST_TIMEOUT, state, within};

/// The memory of a process by address, without read-only mappings of files.
pub struct MemorySnapshot(BTreeMap<u64, Vec<u8>>);

/// A first flight that was recorded: a ClientHello, and early data under TLS_AES_128_GCM_SHA256, whose
/// plaintext starts with a known text.
pub struct RecordedFlight {
    hello_digest: [u8; 32],
    ticket: Vec<u8>,
    early_data: Vec<u8>,
    known_start: [u8; 16],
    /// The label for HKDF-Expand-Label that gives the key of the early data.
    key_label: &'static [u8],
}

/// Which secret decrypts a recorded flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StolenSecret {
    /// A ticket key that seals many tickets.
    TicketKey,
    /// The key of this ticket alone.
    KeyOfTicket,
    /// A seed of the puncturable function, this many levels above the ticket's leaf.
    Seed(u8),
    /// The session's secret (PSK).
    PreSharedKey,
    /// `client_early_traffic_secret` (RFC 8446 section 7.1).
    TrafficSecret,
    /// The key of the records or packets.
    RecordKey,
}

/// Lets a stopped process run again, also after a panic.
struct ResumeOnDrop(Pid);

impl Drop for ResumeOnDrop {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

impl MemorySnapshot {
    /// Stops a process, and reads all its private and all its writable memory.
    ///
    /// # Panics
    /// If it has ended, or this process may not read it.
    pub fn of(pid: u32) -> Self {
        let process = Pid::from_raw(pid as i32);
        kill(process, Signal::SIGSTOP).expect("a process that runs");
        let _resume = ResumeOnDrop(process);
        let has_stopped = || match state(process) {
            Some('T') => true,
            None | Some('Z' | 'X') => panic!("the process {pid} has ended before it was read"),
            Some(_) => false,
        };
        let has_stopped = within(TEST_TIMEOUT, Duration::from_millis(1), has_stopped);
        assert!(has_stopped, "the process {pid} does not stop");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
        let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
        let mut parts = BTreeMap::new();
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
            let range = range.split_once('-').map(|(from, to)| {
                [from, to].map(|at| u64::from_str_radix(at, 16).expect("an address"))
            });
            let Some([from, to]) = range else { continue };
            // Read-only mappings of files are the program.
            let is_of_file = fields.nth(2).is_some_and(|inode| inode != "0");
            if rights.contains('w') || rights.starts_with('r') && !is_of_file {
                let mut bytes = vec![0; (to - from) as usize];
                // Pages of the kernel ([vvar]) and guard pages cannot be read.
                if memory.read_exact_at(&mut bytes, from).is_ok() {
                    parts.insert(from, bytes);
                }
            }
        }
        assert!(!parts.is_empty(), "nothing of its memory can be read");
        Self(parts)
    }

    /// Bytes that were stolen elsewhere, such as a file.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        // Padded: a seed of 16 bytes may be at the end, and 32 bytes are tried at a time.
        Self(BTreeMap::from([(0, [bytes, &[0; 32]].concat())]))
    }

    /// Tries all bytes that can be a secret on a recorded flight. Returns the secrets that decrypt
    /// it, and the number of tries.
    ///
    /// `before` is a snapshot of the same process from before the flight's ticket existed. Bytes
    /// that have not changed since are tried only as a key for many tickets. Without it, all bytes
    /// count as changed.
    pub fn try_on(
        &self,
        flight: &RecordedFlight,
        before: Option<&Self>,
    ) -> (Vec<StolenSecret>, usize) {
        let mut found = Vec::new();
        let mut tries = 0;
        for (address, part) in &self.0 {
            let old = before.and_then(|before| before.0.get(address));
            let old = old.map_or(&[][..], Vec::as_slice);
            for at in (0..(part.len() + 1).saturating_sub(32)).step_by(2) {
                let window: &[u8; 32] = part[at..at + 32].try_into().expect("32 bytes");
                if is_random(&window[..16]) {
                    let has_changed = old.get(at..at + 32) != Some(window);
                    let is_der = at > 1 && part[at - 2..at] == [OCTET_STRING, 32];
                    tries += 1;
                    found.extend(flight.try_window(
                        window,
                        has_changed,
                        at.is_multiple_of(4) || is_der,
                    ));
                }
            }
        }
        found.sort();
        found.dedup();
        (found, tries)
    }
}

impl RecordedFlight {
    /// Reads a flight over TCP: one ClientHello in one record, then early data.
    ///
    /// # Panics
    /// If it has another form.
    pub fn over_tcp(bytes: &[u8], known_start: [u8; 16]) -> Self {
        let record = |bytes: &[u8], kind| {
            assert_eq!((bytes[0], bytes[1]), (kind, 3), "a record");
            usize::from(u16::from_be_bytes([bytes[3], bytes[4]])) + 5
        };
        let hello_end = record(bytes, HANDSHAKE);
        let hello = &bytes[5..hello_end];
        // Some clients send change_cipher_spec between the two (RFC 8446 appendix D.4).
        let mut rest = &bytes[hello_end..];
        while rest[0] == CHANGE_CIPHER_SPEC {
            rest = &rest[record(rest, CHANGE_CIPHER_SPEC)..];
        }
        let early_data = rest[5..record(rest, APPLICATION_DATA)].to_vec();
        Self::of(hello, early_data, known_start, b"key")
    }

    /// A flight over QUIC: its ClientHello, and the ciphertext of a 0-RTT packet's frames (RFC 9001
    /// section 5.1).
    ///
    /// # Panics
    /// If the ClientHello offers no ticket.
    pub fn over_quic(hello: &[u8], early_data: Vec<u8>, known_start: [u8; 16]) -> Self {
        Self::of(hello, early_data, known_start, b"quic key")
    }

    fn of(
        hello: &[u8],
        early_data: Vec<u8>,
        known_start: [u8; 16],
        key_label: &'static [u8],
    ) -> Self {
        let ticket = ticket_of(hello).expect("the ClientHello offers a ticket");
        Self { hello_digest: sha256(hello), ticket, early_data, known_start, key_label }
    }

    /// Tries 32 bytes of memory as each kind of secret. `has_changed` is whether they have changed
    /// since the ticket was issued, and `is_aligned` whether they are aligned as secrets in
    /// structures are.
    fn try_window(
        &self,
        window: &[u8; 32],
        has_changed: bool,
        is_aligned: bool,
    ) -> Option<StolenSecret> {
        if self.opens_under_ticket_key(window) {
            return Some(StolenSecret::TicketKey);
        }
        if !has_changed {
            return None;
        }
        let (key, _) = window.split_first_chunk().expect("16 bytes");
        if self.opens_records(key) {
            return Some(StolenSecret::RecordKey);
        }
        if self.opens_under_key_of_ticket(window) {
            return Some(StolenSecret::KeyOfTicket);
        }
        if let Some(level) = self.level_of_seed(key) {
            return Some(StolenSecret::Seed(level));
        }
        if is_aligned && self.opens_under_traffic_secret(window) {
            return Some(StolenSecret::TrafficSecret);
        }
        (is_aligned && self.opens_under_pre_shared_key(window))
            .then_some(StolenSecret::PreSharedKey)
    }

    /// The format of `TicketKey`: kind, name (16), nonce (24), ciphertext.
    fn opens_under_ticket_key(&self, key: &[u8; 32]) -> bool {
        if self.ticket[0] != RING_TICKET {
            return false;
        }
        let (header, sealed) = self.ticket.split_at(41);
        let nonce: [u8; 24] = header[17..].try_into().expect("24 bytes");
        let payload = Payload { msg: sealed, aad: header };
        let opened =
            XChaCha20Poly1305::new(&Key::from(*key)).decrypt(&XNonce::from(nonce), payload);
        // Zone and epoch come first.
        opened.is_ok_and(|session| self.opens_with_session(&session[8..]))
    }

    /// The format of `PuncturedTickets`: kind, epoch (8), number (4), ciphertext.
    fn opens_under_key_of_ticket(&self, key: &[u8; 32]) -> bool {
        if self.ticket[0] != PUNCTURED_TICKET {
            return false;
        }
        let (header, sealed) = self.ticket.split_at(13);
        let payload = Payload { msg: sealed, aad: header };
        let opened = ChaCha20Poly1305::new(&Key::from(*key)).decrypt(&Nonce::default(), payload);
        opened.is_ok_and(|session| self.opens_with_session(&session))
    }

    /// Tries 16 bytes as the seed of each node above the ticket's leaf. Implements the construction
    /// of the crate `puncture` again, independently of its code.
    fn level_of_seed(&self, seed: &[u8; 16]) -> Option<u8> {
        if self.ticket[0] != PUNCTURED_TICKET {
            return None;
        }
        let number = u32::from_be_bytes(self.ticket[9..13].try_into().expect("4 bytes"));
        let (segment, leaf) = (number >> 15, number & 0x7fff);
        let block = |node: u32, output: u8| {
            let mut block = [0; 16];
            block[..8].copy_from_slice(&self.ticket[1..9]);
            block[8..12].copy_from_slice(&segment.to_be_bytes());
            block[12..14].copy_from_slice(&(node as u16).to_be_bytes());
            block[15] = output;
            block
        };
        let output = |seed: &[u8; 16], node, output| {
            let mut block = block(node, output).into();
            Aes128::new(seed.into()).encrypt_block(&mut block);
            <[u8; 16]>::from(block)
        };
        (0..=15).find(|level| {
            let mut seed = *seed;
            for level in (1..=*level).rev() {
                // In-order numbers: the node's subtree has its leaves at the even numbers around it.
                let node = ((leaf >> level) << (level + 1)) + (1 << level) - 1;
                seed = output(&seed, node, (leaf >> (level - 1)) as u8 & 1);
            }
            let value = [output(&seed, 2 * leaf, 2), output(&seed, 2 * leaf, 3)].concat();
            self.opens_under_key_of_ticket(&value.try_into().expect("32 bytes"))
        })
    }

    /// The session is in DER; its secret is an OCTET STRING.
    fn opens_with_session(&self, session: &[u8]) -> bool {
        let secrets = session.windows(34).filter(|window| window.starts_with(&[OCTET_STRING, 32]));
        let mut secrets = secrets.map(|window| window[2..].try_into().expect("32 bytes"));
        secrets.any(|secret| self.opens_under_pre_shared_key(&secret))
    }

    /// RFC 8446 section 7.1.
    fn opens_under_pre_shared_key(&self, secret: &[u8; 32]) -> bool {
        let early_secret = hmac(&[0; 32], secret);
        self.opens_under_traffic_secret(&expand(
            &early_secret,
            b"c e traffic",
            &self.hello_digest,
            32,
        ))
    }

    fn opens_under_traffic_secret(&self, secret: &[u8; 32]) -> bool {
        let output = expand(secret, self.key_label, &[], 16);
        self.opens_records(output.first_chunk().expect("16 bytes"))
    }

    /// A key alone suffices where the start of the plaintext is known: its key stream is the AES of
    /// the nonce and the counter 2 (NIST SP 800-38D).
    fn opens_records(&self, key: &[u8; 16]) -> bool {
        let mut block = [0; 16];
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = self.early_data[at] ^ self.known_start[at];
        }
        let mut block = block.into();
        Aes128::new(key.into()).decrypt_block(&mut block);
        block[12..] == [0, 0, 0, 2]
    }
}

fn hmac(key: &[u8], data: &[u8]) -> [u8; 32] {
    hmac_sha256(key, data).expect("it fails only without memory")
}

/// HKDF-Expand-Label for one block of output (RFC 8446 section 7.1).
fn expand(secret: &[u8; 32], label: &[u8], context: &[u8], length: u8) -> [u8; 32] {
    let label = [b"tls13 ", label].concat();
    let info = [&[0, length, label.len() as u8][..], &label, &[context.len() as u8], context, &[1]];
    hmac(secret, &info.concat())
}

/// The first identity of the ClientHello's last extension, `pre_shared_key` (RFC 8446 section 4.2.11).
fn ticket_of(hello: &[u8]) -> Option<Vec<u8>> {
    // Header, version, random, session id, cipher suites, compression methods, extensions.
    let mut rest = hello.get(4 + 2 + 32..)?;
    for length_bytes in [1, 2, 1] {
        let (length, after) = rest.split_at_checked(length_bytes)?;
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        rest = after.get(length..)?;
    }
    rest = rest.get(2..)?;
    let number = |bytes: &[u8], at: usize| {
        Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])))
    };
    loop {
        let (kind, length) = (number(rest, 0)?, number(rest, 2)?);
        let content = rest.get(4..4 + length)?;
        if kind == PRE_SHARED_KEY {
            return Some(content.get(4..4 + number(content, 2)?)?.to_vec());
        }
        rest = &rest[4 + length..];
    }
}

/// Whether bytes can be a random secret: they have few zeros, many different values, and are not
/// text. This is wrong for 30 of a million random secrets.
fn is_random(bytes: &[u8]) -> bool {
    let mut seen = [0u64; 4];
    let (mut zeros, mut printable) = (0, 0);
    for byte in bytes {
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
        zeros += usize::from(*byte == 0);
        printable += usize::from((32..127).contains(byte));
    }
    let different: u32 = seen.iter().map(|bits| bits.count_ones()).sum();
    zeros <= 2 && different >= 11 && printable < 15
}

const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER_SPEC: u8 = 20;
const APPLICATION_DATA: u8 = 23;
const PRE_SHARED_KEY: usize = 41;
const OCTET_STRING: u8 = 4;
const RING_TICKET: u8 = 6;
const PUNCTURED_TICKET: u8 = 10;
