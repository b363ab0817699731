//! The ticket keys in use, shared between threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use crate::file::{FileError, KeyFile};
use crate::key::{self, Opened, SessionId, TicketKey};
use crate::ring::{KeyState, Ring, Warning};
use crate::schedule::{Schedule, UnixTime};
use crate::usage::{self, Counters, KeyStatus, TicketCounts, Usage};
use crate::zone::{Origin, Zone};

/// The ticket keys in use: a ring and its source. `Send + Sync`; share it in an `Arc`.
///
/// Sealing and opening hold a read lock only to clone an `Arc`. Call [`refresh`](Self::refresh) once
/// a second from a timer; nothing else reads the file or generates keys.
#[derive(Debug)]
pub struct TicketKeys {
    active: RwLock<Arc<Active>>,
    source: Source,
    zone: Zone,
    counters: Counters,
}

/// A session that is stored apart from its ticket, so that it can be used only once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachedSession {
    /// The ticket for the client, which refers to the session.
    pub ticket: Vec<u8>,
    /// The id under which to store [`record`](Self::record).
    pub id: SessionId,
    /// The session, sealed and bound to the id.
    pub record: Vec<u8>,
}

/// What [`TicketKeys::refresh`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// Nothing was due.
    Unchanged,
    /// The in-process ring was rotated by its schedule.
    Rotated,
    /// The file was replaced or changed; its new ring is in use.
    Reread,
}

impl TicketKeys {
    /// Random keys of this process alone, rotated by `schedule`. No ticket outlives the process.
    pub fn in_process(schedule: Schedule, now: UnixTime) -> Self {
        Self::of(Ring::generate(schedule, now), Source::InProcess)
    }

    /// Keys of this process alone, inherited from its predecessor ([`Ring::to_text`]). They are
    /// rotated by the same schedule.
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
        let state = Mutex::new(FileState { digest: digest(&text), last_error: None });
        Ok(Self::of(ring, Source::File { file, state }))
    }

    /// Keys that the caller manages and replaces by [`install`](Self::install).
    pub fn external(ring: Ring) -> Self {
        Self::of(ring, Source::External)
    }

    /// Sets the node's zone. The default is [`Zone::NONE`].
    #[must_use]
    pub fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    /// The zone whose tickets are sealed here.
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// Replaces the ring, and returns whether it changed. Keys of the previous ring still open their
    /// tickets until those expire: a node that started with its own keys, because the store was
    /// unavailable, has issued tickets under them.
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
    /// that is [`TICKET_OVERHEAD`](crate::TICKET_OVERHEAD) bytes longer.
    pub fn seal(&self, content: &[u8], epoch: u32, now: UnixTime) -> Vec<u8> {
        self.counters.sealed();
        self.active().sealer(now).seal(content, Origin { zone: self.zone, epoch })
    }

    /// Seals `content` as a detached session with a new random id.
    pub fn seal_detached(&self, content: &[u8], epoch: u32, now: UnixTime) -> DetachedSession {
        let origin = Origin { zone: self.zone, epoch };
        self.counters.sealed();
        let mut id = SessionId::default();
        key::fill_unique(&mut id);
        let active = self.active();
        let key = active.sealer(now);
        DetachedSession {
            ticket: key.seal_reference(&id, content.len(), origin),
            id,
            record: key.seal_detached(content, &id, origin),
        }
    }

    /// Seals the content of a QUIC address token (RFC 9000 section 8.1) under the key that is current
    /// at `now`. It opens only with the same `bound_to`, and is
    /// [`TICKET_OVERHEAD`](crate::TICKET_OVERHEAD) bytes longer.
    pub fn seal_token(&self, content: &[u8], bound_to: &[u8], now: UnixTime) -> Vec<u8> {
        self.counters.sealed();
        self.active().sealer(now).seal_token(content, bound_to, self.zone.into())
    }

    /// Opens a ticket sealed under any key of the ring whose tickets still live at `now`.
    pub fn open(&self, ticket: &[u8], now: UnixTime) -> Opened {
        self.count(self.active().open(ticket, now, |key| key.open(ticket)))
    }

    /// Opens the [`DetachedSession::record`] that was stored under `id`.
    pub fn open_detached(&self, record: &[u8], id: &SessionId, now: UnixTime) -> Opened {
        // Not counted: its ticket was counted.
        self.active().open(record, now, |key| key.open_detached(record, id)).0
    }

    /// Opens an address token of any zone, as long as a ticket that was sealed at the same time would
    /// open. Returns its content and zone.
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

    /// The status of each key at `now`, oldest first, with its last use in this process.
    pub fn statuses(&self, now: UnixTime) -> Vec<KeyStatus> {
        let active = self.active();
        usage::statuses(&active.ring, &active.usage, now)
    }

    /// Counts of tickets sealed and opened so far.
    pub fn counts(&self) -> TicketCounts {
        self.counters.read()
    }

    /// Rotates an in-process ring when it is due, or reads a changed file, and forgets replaced keys whose
    /// tickets have expired. Compares the file's content, some hundred bytes, because timestamps do not
    /// reliably show a change.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file cannot be used. The previous ring stays in use. The same
    /// error is returned only once while it persists.
    pub fn refresh(&self, now: UnixTime) -> Result<RefreshOutcome, FileError> {
        self.forget_expired(now);
        match &self.source {
            Source::InProcess => Ok(self.advance(now)),
            Source::External => Ok(RefreshOutcome::Unchanged),
            Source::File { file, state: file_state } => {
                let mut state = file_state.lock().unwrap_or_else(PoisonError::into_inner);
                match self.reread(file, &mut state) {
                    Ok(refreshed) => {
                        state.last_error = None;
                        Ok(refreshed)
                    }
                    Err(error) => state.report_once(error),
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

    /// Problems of the ring that an operator should know at `now`. None for an external ring, which
    /// the caller manages.
    pub fn warnings(&self, now: UnixTime) -> Vec<Warning> {
        match self.source {
            Source::External => Vec::new(),
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

    /// Drops replaced keys whose tickets have all expired. The next ring, which would drop them
    /// too, may come much later.
    fn forget_expired(&self, now: UnixTime) {
        if self.active().retired.iter().all(|(_, until)| *until > now) {
            return;
        }
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        *active = Arc::new(Active {
            ring: Arc::clone(&active.ring),
            usage: active.usage.clone(),
            retired: active.retired_until(now),
        });
    }

    fn advance(&self, now: UnixTime) -> RefreshOutcome {
        if !self.ring().is_due(now) {
            return RefreshOutcome::Unchanged;
        }
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have rotated the ring meanwhile.
        if !active.ring.is_due(now) {
            return RefreshOutcome::Unchanged;
        }
        let mut ring = (*active.ring).clone();
        ring.advance(now);
        *active = Arc::new(active.followed_by(ring, Vec::new()));
        RefreshOutcome::Rotated
    }

    fn reread(&self, file: &KeyFile, state: &mut FileState) -> Result<RefreshOutcome, FileError> {
        let (text, _) = file.read_text()?;
        let digest = digest(&text);
        if digest == state.digest {
            return Ok(RefreshOutcome::Unchanged);
        }
        let ring = file.parse(&text)?;
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        *active = Arc::new(active.followed_by(ring, Vec::new()));
        state.digest = digest;
        Ok(RefreshOutcome::Reread)
    }
}

/// A ring, the usage of its keys, and replaced keys whose tickets are still valid.
#[derive(Debug)]
struct Active {
    ring: Arc<Ring>,
    /// The usage of each key, in the ring's order.
    usage: Vec<Arc<Usage>>,
    /// Replaced keys, with the time when their last ticket expires.
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

    /// The previous keys that `ring` lacks and that may still have valid tickets at `now`.
    fn retired_by(&self, ring: &Ring, now: UnixTime) -> Vec<(TicketKey, UnixTime)> {
        let until = now.after(self.ring.schedule().lifetime());
        let keys = self.ring.keys().iter().enumerate();
        let replaced = keys
            // No node has sealed under a next key.
            .filter(|(at, _)| {
                matches!(self.ring.state(*at, now), KeyState::Previous | KeyState::Current)
            })
            .map(|(_, key)| (key.key.clone(), until));
        let already_retired = self.retired_until(now).into_iter();
        already_retired
            .chain(replaced)
            .filter(|(key, _)| !ring.keys().iter().any(|other| other.key.name() == key.name()))
            .collect()
    }

    /// The replaced keys that may have valid tickets at `now`.
    fn retired_until(&self, now: UnixTime) -> Vec<(TicketKey, UnixTime)> {
        self.retired.iter().filter(|(_, until)| *until > now).cloned().collect()
    }

    fn sealer(&self, now: UnixTime) -> &TicketKey {
        let at = self.ring.current_index(now);
        self.usage[at].sealed_at(now);
        &self.ring.keys()[at].key
    }

    /// Opens with the key that has the name. Also returns the key's state, if it is in the ring.
    fn open(
        &self,
        sealed: &[u8],
        now: UnixTime,
        open: impl Fn(&TicketKey) -> Opened,
    ) -> (Opened, Option<KeyState>) {
        if let Some(at) = self.ring.find_key(sealed, now) {
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
    External,
    File { file: KeyFile, state: Mutex<FileState> },
}

/// The file as last read successfully, and its last error since.
#[derive(Debug)]
struct FileState {
    digest: [u8; 32],
    last_error: Option<String>,
}

impl FileState {
    /// Returns an error only once while it persists.
    fn report_once(&mut self, error: FileError) -> Result<RefreshOutcome, FileError> {
        let last_error = Some(error.to_string());
        if self.last_error == last_error {
            return Ok(RefreshOutcome::Unchanged);
        }
        self.last_error = last_error;
        Err(error)
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
