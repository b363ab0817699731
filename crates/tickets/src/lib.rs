//! Session ticket keys: sealing and opening tickets, and rotating and sharing the keys.
//!
//! ```text
//! TicketKeys      the keys in use, for the TLS side; shared between threads
//!   └ Ring          keys with the times when they become current
//!       ├ TicketKey     one key, and the format of tickets
//!       └ Schedule      rotation period and ticket lifetime
//! KeyFile         a ring in a file that several processes share
//! SharedKeys      a ring that nodes share through a store
//!   └ KeyEncryption   the key-encryption keys under which it is stored
//! PuncturedTickets  a key for each ticket, destroyed when the ticket is used
//! export          a ring in the formats of nginx, HAProxy and Envoy
//! Zone, Origin    where and when a ticket was issued
//! ```
//!
//! A server without session state puts the session into the ticket, sealed under its own key (RFC
//! 8446 section 4.6.1, RFC 5077 section 4). Time is an argument ([`UnixTime`]); only [`KeyFile`],
//! [`KeyEncryption`] and [`export::Target`] access files.
//!
//! # Examples
//!
//! ```
//! use firstflight_tickets::{Opened, Ring, Schedule, UnixTime, Zone};
//!
//! let now = UnixTime(1_700_000_000);
//! let schedule = Schedule::default();
//! let mut ring = Ring::generate(schedule, now);
//! let ticket = ring.seal(b"session", Zone::default(), now);
//!
//! // After a rotation, the previous key still opens its tickets.
//! let later = now.after(schedule.rotation());
//! ring.advance(later);
//! let opened = ring.open(&ticket, later);
//! assert!(matches!(opened, Opened::Ticket { content, .. } if content == b"session"));
//!
//! // It is dropped when the last of its tickets has expired.
//! let expired = later.after(schedule.lifetime() + schedule.rotation());
//! ring.advance(expired);
//! assert_eq!(ring.open(&ticket, expired), Opened::UnknownKey);
//! ```
//!
//! # Design notes
//!
//! **Keys have dates.** A ring has random keys, each with the time when it becomes current. Which
//! key seals follows from the clock, so processes with the same ring agree without communication.
//! Every process has the next key before it is used and opens tickets under it, since another
//! process's clock may be ahead.
//!
//! **No master secret.** Deriving each period's key from one secret would need no rotation. But an
//! attacker who steals that secret could open every ticket ever issued, and decrypt the early data
//! recorded with it. Random keys that are dropped with their last ticket leave nothing to steal.
//! The price is that somebody has to rotate a shared file ([`KeyFile::rotate`]). Until that is
//! done, the last key stays in use, and [`Ring::warnings`] reports it.

pub mod export;
mod file;
mod handle;
mod key;
mod key_encryption;
mod punctured;
mod ring;
mod schedule;
mod secret_file;
mod shared_keys;
mod usage;
mod zone;

pub use file::{FileError, KeyFile};
pub use firstflight_puncture::{Counts as PuncturedCounts, Limits as PuncturedLimits};
pub use handle::{DetachedSession, RefreshOutcome, TicketKeys};
pub use key::{Opened, SessionId, TICKET_OVERHEAD, TicketKey};
pub use key_encryption::{
    KeyEncryption, KeyEncryptionError, KeyId, SealingKey, UnsealError, Unsealed,
    check_key_encryption_text,
};
pub use punctured::{InvalidSnapshot, OpenOutcome, PuncturedTickets, UseOutcome};
pub use ring::{DatedKey, KeyState, Ring, RingError, Warning};
pub use schedule::{Schedule, ScheduleError, UnixTime};
pub use secret_file::{SecretFileError, read as read_secret_file};
pub use shared_keys::{
    InvalidKeyEntry, KeyEntry, KeyOffer, KeyRecords, RecordError, SharedKeys, Slot,
};
pub use usage::{KeyStatus, TicketCounts};
pub use zone::{Origin, Zone};
