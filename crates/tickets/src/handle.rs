//! The handle that the TLS side holds: seals and opens, from many threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use crate::file::{FileError, KeyFile};
use crate::key::{self, Opened, SessionId, TicketKey};
use crate::ring::{Ring, Warning};
use crate::schedule::{Schedule, UnixTime};
use crate::usage::{self, Counters, KeyState, KeyStatus, TicketCounts, Usage};
use crate::zone::{Origin, Zone};

/// Ticket keys in use: a ring and where it comes from. `Send + Sync`; share it in an `Arc`.
///
/// Sealing and opening take a read lock for as long as it takes to copy one pointer. Call
/// [`refresh`](Self::refresh) once a second from a timer: it alone reads the file or makes keys.
#[derive(Debug)]
pub struct TicketKeys {
    active: RwLock<Arc<Active>>,
    source: Source,
    zone: Zone,
    counters: Counters,
}

/// A session that is kept apart from its ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachedSession {
    /// For the client: it refers to the session.
    pub ticket: Vec<u8>,
    /// Under which id to keep [`record`](Self::record).
    pub id: SessionId,
    /// The session, sealed and bound to the id.
    pub record: Vec<u8>,
}

/// What a [`TicketKeys::refresh`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    /// Nothing was due.
    Unchanged,
    /// The in-process ring has turned by its schedule.
    Rotated,
    /// The file was replaced or changed; its ring is in use.
    Reread,
}

impl TicketKeys {
    /// Keys of this process alone, random, rotated by `schedule`. They die with the process, so
    /// that no ticket outlives it.
    pub fn in_process(schedule: Schedule, now: UnixTime) -> Self {
        Self::of(Ring::fresh(schedule, now), Source::InProcess)
    }

    /// Keys of this process alone, which it has from the one whose place it takes
    /// ([`Ring::to_text`]). They are rotated as that one's were.
    pub fn inherited(ring: Ring) -> Self {
        Self::of(ring, Source::InProcess)
    }

    /// Keys from a file, which other processes may use too.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or it is not a ticket-key file.
    pub fn from_file(file: KeyFile) -> Result<Self, FileError> {
        let (text, _) = file.read_text()?;
        let ring = file.parse(&text)?;
        let seen = Mutex::new(FileState { digest: digest(&text), complaint: None });
        Ok(Self::of(ring, Source::File { file, seen }))
    }

    /// Keys that somebody else looks after, and gives by [`install`](Self::install).
    pub fn given(ring: Ring) -> Self {
        Self::of(ring, Source::Given)
    }

    /// The same keys for a node of `zone`. Without it: [`Zone::NONE`].
    #[must_use]
    pub fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    /// The zone whose tickets are sealed here.
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// Puts another ring into use; whether it differs from the one before. Keys that it lacks go
    /// on opening for as long as a ticket under them may live: a node that had to start with keys
    /// of its own, because the others' were not to be had, has issued tickets by then.
    pub fn install(&self, ring: Ring, now: UnixTime) -> bool {
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        if *active.ring == ring {
            return false;
        }
        let retired = active.retired_by(&ring, now);
        *active = Arc::new(active.followed_by(ring, retired));
        true
    }

    /// Seals `content` under the key that is current at `now`, into a ticket of this ticket epoch
    /// that is [`RING_OVERHEAD`](crate::RING_OVERHEAD) bytes longer.
    pub fn seal(&self, content: &[u8], epoch: u32, now: UnixTime) -> Vec<u8> {
        self.counters.sealed();
        self.active().sealer(now).seal(content, Origin { zone: self.zone, epoch })
    }

    /// Seals `content` to be kept apart from its ticket, under a fresh id.
    pub fn seal_apart(&self, content: &[u8], epoch: u32, now: UnixTime) -> DetachedSession {
        let origin = Origin { zone: self.zone, epoch };
        self.counters.sealed();
        let mut id = SessionId::default();
        key::fill_random(&mut id);
        let active = self.active();
        let key = active.sealer(now);
        DetachedSession {
            ticket: key.seal_reference(&id, content.len(), origin),
            id,
            record: key.seal_kept(content, &id, origin),
        }
    }

    /// Seals what a QUIC address token says (RFC 9000 section 8.1), bound to `bound_to`, under the
    /// key that is current at `now`. It is [`RING_OVERHEAD`](crate::RING_OVERHEAD) bytes longer.
    pub fn seal_token(&self, content: &[u8], bound_to: &[u8], now: UnixTime) -> Vec<u8> {
        self.counters.sealed();
        self.active().sealer(now).seal_token(content, bound_to, self.zone.into())
    }

    /// Opens a ticket sealed under any key of the ring whose tickets still live at `now`.
    pub fn open(&self, ticket: &[u8], now: UnixTime) -> Opened {
        self.count(self.active().open(ticket, now, |key| key.open(ticket)))
    }

    /// Opens the [`DetachedSession::record`] that was kept under `id`.
    pub fn open_kept(&self, record: &[u8], id: &SessionId, now: UnixTime) -> Opened {
        // No ticket: its reference was counted.
        self.active().open(record, now, |key| key.open_kept(record, id)).0
    }

    /// Opens what [`seal_token`](Self::seal_token) made of any zone, as long as a ticket that was
    /// sealed with it would open; what it says and its zone.
    pub fn open_token(
        &self,
        token: &[u8],
        bound_to: &[u8],
        now: UnixTime,
    ) -> Option<(Vec<u8>, Zone)> {
        let opened = self.active().open(token, now, |key| key.open_token(token, bound_to));
        match self.count(opened) {
            Opened::Ticket { content, origin } => Some((content, origin.zone)),
            _ => None,
        }
    }

    /// The keys as an operator may see them at `now`, the oldest first, with their last use in
    /// this process.
    pub fn statuses(&self, now: UnixTime) -> Vec<KeyStatus> {
        let active = self.active();
        usage::statuses(&active.ring, &active.usage, now)
    }

    /// How many tickets were sealed and opened so far.
    pub fn counts(&self) -> TicketCounts {
        self.counters.read()
    }

    /// Turns an in-process ring when it is due; takes up a changed file. Reads the file whole
    /// each time, some hundred bytes: no time stamp tells a change as surely as the content.
    ///
    /// # Errors
    /// If the file cannot be used. The ring from before stays in use, and the same error is given
    /// only once as long as it lasts.
    pub fn refresh(&self, now: UnixTime) -> Result<Refreshed, FileError> {
        match &self.source {
            Source::InProcess => Ok(self.keep_up(now)),
            Source::Given => Ok(Refreshed::Unchanged),
            Source::File { file, seen } => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match self.reread(file, &mut seen) {
                    Ok(refreshed) => {
                        seen.complaint = None;
                        Ok(refreshed)
                    }
                    Err(error) => seen.complain(error),
                }
            }
        }
    }

    /// The ring in use.
    pub fn ring(&self) -> Arc<Ring> {
        Arc::clone(&self.active().ring)
    }

    /// The schedule in use. Its lifetime is the one to set as the TLS session timeout.
    pub fn schedule(&self) -> Schedule {
        self.ring().schedule()
    }

    /// What an operator should know about the ring at `now`. Nothing about a given one: who gives
    /// it knows better.
    pub fn warnings(&self, now: UnixTime) -> Vec<Warning> {
        match self.source {
            Source::Given => Vec::new(),
            _ => self.ring().warnings(now),
        }
    }

    fn of(ring: Ring, source: Source) -> Self {
        let active = RwLock::new(Arc::new(Active::new(ring)));
        Self { active, source, zone: Zone::NONE, counters: Counters::default() }
    }

    fn count(&self, (opened, state): (Opened, Option<KeyState>)) -> Opened {
        self.counters.opened(&opened, state);
        opened
    }

    fn active(&self) -> Arc<Active> {
        Arc::clone(&self.active.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep_up(&self, now: UnixTime) -> Refreshed {
        if now < self.ring().due() {
            return Refreshed::Unchanged;
        }
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        // Asked again: another thread may have come first.
        if now < active.ring.due() {
            return Refreshed::Unchanged;
        }
        let mut ring = (*active.ring).clone();
        ring.keep_up(now);
        *active = Arc::new(active.followed_by(ring, Vec::new()));
        Refreshed::Rotated
    }

    fn reread(&self, file: &KeyFile, seen: &mut FileState) -> Result<Refreshed, FileError> {
        let (text, _) = file.read_text()?;
        let digest = digest(&text);
        if digest == seen.digest {
            return Ok(Refreshed::Unchanged);
        }
        let ring = file.parse(&text)?;
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        *active = Arc::new(active.followed_by(ring, Vec::new()));
        seen.digest = digest;
        Ok(Refreshed::Reread)
    }
}

/// A ring, its keys' last uses, and keys that it has replaced and whose tickets still live.
#[derive(Debug)]
struct Active {
    ring: Arc<Ring>,
    /// One for each key of the ring.
    usage: Vec<Arc<Usage>>,
    /// With the time when the last ticket is dead.
    retired: Vec<(TicketKey, UnixTime)>,
}

impl Active {
    fn new(ring: Ring) -> Self {
        let usage = usage::usage_of(&ring, &HashMap::new());
        Self { ring: Arc::new(ring), usage, retired: Vec::new() }
    }

    fn followed_by(&self, ring: Ring, retired: Vec<(TicketKey, UnixTime)>) -> Self {
        let known = self.ring.keys().iter().zip(&self.usage);
        let known = known.map(|(key, usage)| (*key.key.name(), Arc::clone(usage))).collect();
        Self { usage: usage::usage_of(&ring, &known), ring: Arc::new(ring), retired }
    }

    /// The keys of before that `ring` lacks and that may still have to open at `now`.
    fn retired_by(&self, ring: &Ring, now: UnixTime) -> Vec<(TicketKey, UnixTime)> {
        let until = now.after(self.ring.schedule().lifetime());
        let keys = self.ring.keys().iter().enumerate();
        let replaced = keys
            // Nobody has sealed under a next one.
            .filter(|(at, _)| {
                matches!(self.ring.state(*at, now), KeyState::Previous | KeyState::Current)
            })
            .map(|(_, key)| (key.key.clone(), until));
        let before = self.retired.iter().filter(|(_, until)| *until > now).cloned();
        before
            .chain(replaced)
            .filter(|(key, _)| !ring.keys().iter().any(|kept| kept.key.name() == key.name()))
            .collect()
    }

    fn sealer(&self, now: UnixTime) -> &TicketKey {
        let at = self.ring.current_index(now);
        self.usage[at].sealed_at(now);
        &self.ring.keys()[at].key
    }

    /// Opens by the key that has the name; and what that key is for, if the ring has it.
    fn open(
        &self,
        sealed: &[u8],
        now: UnixTime,
        open: impl Fn(&TicketKey) -> Opened,
    ) -> (Opened, Option<KeyState>) {
        if let Some(at) = self.ring.opener(sealed, now) {
            let opened = open(&self.ring.keys()[at].key);
            if matches!(opened, Opened::Ticket { .. } | Opened::Reference { .. }) {
                self.usage[at].opened_at(now);
            }
            return (opened, Some(self.ring.state(at, now)));
        }
        let name = key::key_name(sealed);
        let mut retired = self.retired.iter().filter(|(_, until)| *until > now);
        match retired.find(|(key, _)| Some(key.name()) == name) {
            Some((key, _)) => (open(key), None),
            None => (Opened::UnknownKey, None),
        }
    }
}

#[derive(Debug)]
enum Source {
    InProcess,
    Given,
    File { file: KeyFile, seen: Mutex<FileState> },
}

/// The file as it was when its ring was taken up, and what was wrong with it since.
#[derive(Debug)]
struct FileState {
    digest: [u8; 32],
    complaint: Option<String>,
}

impl FileState {
    /// Passes an error on if it is news.
    fn complain(&mut self, error: FileError) -> Result<Refreshed, FileError> {
        let complaint = Some(error.to_string());
        if self.complaint == complaint {
            return Ok(Refreshed::Unchanged);
        }
        self.complaint = complaint;
        Err(error)
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
