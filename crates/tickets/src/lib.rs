//! Ticket keys: the ring that seals tickets, the schedule that turns it, and where it comes from.
//!
//! ```
//! use firstflight_tickets::{Opened, Ring, Schedule, UnixTime, Zone};
//!
//! let now = UnixTime(1_700_000_000);
//! let schedule = Schedule::default();
//! let mut ring = Ring::fresh(schedule, now);
//! let ticket = ring.seal(b"session", Zone::default(), now);
//!
//! // Keys rotate; the old one still opens its tickets until the last of them has expired. let
//! later = now.after(schedule.rotation()); ring.keep_up(later); assert!(matches!(ring.open(&ticket,
//! later), Opened::Ticket { content, .. } if content == b"session")); let expired =
//! later.after(schedule.lifetime() + schedule.rotation()); ring.keep_up(expired);
//! assert_eq!(ring.open(&ticket, expired), Opened::UnknownKey);
//! ```
//!
//! A server that keeps no session state puts it into the ticket, sealed under a key of its own
//! (RFC 8446 section 4.6.1, RFC 5077 section 4). This crate seals and opens; what is inside a
//! ticket it doesn't know.
//!
//! - [`TicketKey`]: one key, and the ticket's format.
//! - [`Ring`]: keys with the times from which they are current. Which key is current, which are
//!   old and which comes next follows from the clock alone, so all who hold the same ring agree
//!   without talking to each other.
//! - [`Schedule`]: how long a key is current, how long a ticket lives.
//! - [`KeyFile`]: a ring in a file that several processes share.
//! - [`SharedKeys`]: a ring that nodes share through a store, and [`KeyEncryption`], under which
//!   its keys are sealed there. Session jars of the client are sealed in the same way, under
//!   such a file or, derived from a passphrase, a [`SealingKey`].
//! - [`Zone`] and [`Origin`]: where and when a ticket was issued.
//! - [`export`]: a ring in the formats of other servers.
//! - [`TicketKeys`]: the handle for the TLS side, safe to share between threads.
//!
//! Why a shared file holds keys and not one secret from which every period's key is derived: who
//! took such a secret could open every ticket ever issued, and with them the early data recorded
//! on the wire. Keys that are drawn one by one and dropped when their last ticket is dead leave
//! nothing to take. The price is that somebody has to write new ones ([`KeyFile::rotate`]); until
//! then the last key stays in use, and [`Ring::warnings`] says so.
//!
//! The core takes the time as an argument ([`UnixTime`]); only [`KeyFile`] and
//! [`export::Target`] touch files.

pub mod export;
mod file;
mod handle;
mod key;
mod key_encryption;
mod ring;
mod schedule;
mod secret_file;
mod shared_keys;
mod usage;
mod whole_file;
mod zone;

pub use file::{FileError, KeyFile};
pub use handle::{DetachedSession, Refreshed, TicketKeys};
pub use key::{Opened, RING_OVERHEAD, SessionId, TicketKey};
pub use key_encryption::{
    KeyEncryption, KeyEncryptionError, KeyId, SealingKey, UnsealError, Unsealed,
    check_key_encryption_text,
};
pub use ring::{DatedKey, Ring, RingError, Warning};
pub use schedule::{Schedule, ScheduleError, UnixTime};
pub use secret_file::{SecretFileError, read as read_secret_file};
pub use shared_keys::{Entry, KeyRecords, NoEntry, Offer, RecordError, SharedKeys, Slot};
pub use usage::{KeyState, KeyStatus, TicketCounts};
pub use zone::{Origin, Zone};
