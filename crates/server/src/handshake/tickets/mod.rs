//! Implements the TLS library's ticket sealing with the ticket ring.

pub(crate) mod punctured;
pub(crate) mod store;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firstflight_config::{ConfigError, KeySource, TicketSettings};
use firstflight_quic::TokenSerial;
use firstflight_replay::TicketEpochs;
use firstflight_store::Store;
use firstflight_telemetry::metrics::{PuncturedReading, TicketReading};
use firstflight_tickets::{
    KeyEncryption, KeyFile, KeyState, OpenOutcome, Opened, Origin, PuncturedLimits,
    PuncturedTickets, RefreshOutcome, Ring, Schedule, SessionId, TICKET_OVERHEAD, TicketKeys,
    UseOutcome, Warning, Zone,
};
use firstflight_tls::{OpenedTicket, PskOffer, TicketSealer, TicketUse, WithheldReason};
use tracing::{debug, info, warn};

use crate::ServerError;
use crate::context::{monotonic, now};

use punctured::{TicketOffer, aged};
use store::KeySync;
pub(crate) use store::RedeemedTicket;
use store::SessionStore;
pub(crate) use store::default_node_name;

/// Seals and opens the tickets of all connections.
pub(crate) struct TicketRing {
    keys: Arc<TicketKeys>,
    /// Decides which tickets allow early data.
    epochs: Arc<TicketEpochs>,
    /// Synchronizes the keys with the store, if they come from there.
    shared: Option<KeySync>,
    /// Sessions of single-use tickets in the store; `None` without a store.
    sessions: Option<SessionStore>,
    /// The tickets of TLS 1.3, if they are used up when they are opened. `keys` then serves only
    /// TLS 1.2 and address tokens.
    punctured: Option<PuncturedTickets>,
    /// Whether the keys are this process's own.
    in_process: bool,
    settings: TicketSettings,
    /// The kind of the last logged warning, so that each is logged once.
    warned: Mutex<Option<std::mem::Discriminant<Warning>>>,
}

impl TicketRing {
    /// Opens the ring that the settings name. Needs a tokio runtime.
    ///
    /// A ring from the store starts with keys of this process, until
    /// [`wait_for_first_ring`](Self::wait_for_first_ring) or [`follow`](Self::follow) has received the
    /// store's. `inherited`: the keys of the previous process, if they were its own.
    ///
    /// # Errors
    /// [`ServerError::TicketKeys`], [`ServerError::KeyEncryption`].
    pub(crate) fn open(
        settings: &TicketSettings,
        store: Option<&Store>,
        inherited: Option<Ring>,
        epochs: Arc<TicketEpochs>,
    ) -> Result<Arc<Self>, ServerError> {
        let lacks_store = |what: &str| {
            ServerError::Config(ConfigError::Setting(format!(
                "{what} needs a store; add a section [store]"
            )))
        };
        let mut shared = None;
        let keys = match &settings.keys {
            KeySource::File(path) => TicketKeys::from_file(KeyFile::new(path))?,
            KeySource::Process | KeySource::Punctured => match inherited {
                Some(ring) => TicketKeys::inherited(ring),
                None => TicketKeys::in_process(Schedule::default(), now()),
            },
            KeySource::Store { key_encryption, schedule } => {
                let keys = KeyEncryption::open(key_encryption)?;
                let store = store.ok_or_else(|| lacks_store("keys = \"store\""))?.clone();
                shared = Some(KeySync::new(store, keys, *schedule, settings));
                TicketKeys::external(Ring::generate(*schedule, now()))
            }
        };
        if settings.single_use && store.is_none() {
            return Err(lacks_store("single_use = true"));
        }
        let zone = settings.zone.as_deref().map_or(Zone::NONE, Zone::named);
        let sessions =
            store.map(|store| SessionStore::new(store.clone(), keys.schedule().lifetime()));
        Ok(Arc::new(Self {
            keys: Arc::new(keys.in_zone(zone)),
            epochs,
            shared,
            sessions,
            punctured: (settings.keys == KeySource::Punctured)
                .then(|| PuncturedTickets::new(PuncturedLimits::default())),
            in_process: matches!(settings.keys, KeySource::Process | KeySource::Punctured),
            settings: settings.clone(),
            warned: Mutex::new(None),
        }))
    }

    /// Checks the key files that the settings name.
    ///
    /// # Errors
    /// As [`TicketRing::open`].
    pub(crate) fn check(settings: &TicketSettings) -> Result<(), ServerError> {
        match &settings.keys {
            KeySource::Process | KeySource::Punctured => {}
            KeySource::File(path) => drop(TicketKeys::from_file(KeyFile::new(path))?),
            KeySource::Store { key_encryption, .. } => drop(KeyEncryption::open(key_encryption)?),
        }
        Ok(())
    }

    /// Waits for the store's keys, if they come from there, for two seconds at most. Later they
    /// arrive in the background.
    pub(crate) async fn wait_for_first_ring(&self) {
        if let Some(shared) = &self.shared {
            shared.wait_for_first_ring(&self.keys).await;
        }
    }

    /// Synchronizes the keys with the store forever, if they come from there.
    pub(crate) async fn follow(self: Arc<Self>) {
        if let Some(shared) = &self.shared {
            shared.follow(&self.keys).await;
        }
    }

    /// The keys, if they are this process's own. A successor can get them only from this process.
    pub(crate) fn process_ring(&self) -> Option<Arc<Ring>> {
        self.in_process.then(|| self.keys.ring())
    }

    /// The tickets that are used up when they are opened, if this server issues them.
    pub(crate) fn punctured(&self) -> Option<&PuncturedTickets> {
        self.punctured.as_ref()
    }

    /// The keys, for other uses such as address tokens.
    pub(crate) fn keys(&self) -> &Arc<TicketKeys> {
        &self.keys
    }

    /// The values for metrics.
    pub(crate) fn reading(&self) -> TicketReading {
        let (now, counts) = (now(), self.keys.counts());
        let keys = self.keys.statuses(now);
        let in_state = |state| keys.iter().filter(move |key| key.state == state);
        TicketReading {
            current_since: in_state(KeyState::Current)
                .map(|key| key.not_before)
                .max()
                .unwrap_or(now.0),
            now: now.0,
            period: self.keys.schedule().rotation().as_secs(),
            keys: [KeyState::Previous, KeyState::Current, KeyState::Next]
                .map(|state| in_state(state).count() as u64),
            sealed: counts.sealed,
            opened: [
                counts.opened_previous,
                counts.opened_current,
                counts.opened_next,
                counts.opened_replaced,
            ],
            unknown: counts.unknown,
            forged: counts.forged,
            sessions_lost: self.sessions.as_ref().map_or(0, SessionStore::lost),
            punctured: self.punctured.as_ref().and_then(punctured_reading),
        }
    }

    /// The settings that the ring was opened with.
    pub(crate) fn settings(&self) -> &TicketSettings {
        &self.settings
    }

    /// How long a ticket is valid.
    pub(crate) fn lifetime(&self) -> Duration {
        self.keys.schedule().lifetime()
    }

    /// Rotates due keys, reads changed key files, and destroys the keys of expired punctured tickets.
    /// Call it about once a second. `uptime`: by the monotonic clock, which dates punctured tickets.
    pub(crate) fn refresh(&self, uptime: Duration) {
        let now = now();
        if let Some(shared) = &self.shared {
            shared.refresh_key_encryption(now);
        }
        if let Some(punctured) = &self.punctured {
            punctured.expire_before(uptime.saturating_sub(self.lifetime()));
        }
        match self.keys.refresh(now) {
            Ok(RefreshOutcome::Unchanged) => {}
            Ok(RefreshOutcome::Rotated) => info!("ticket keys rotated"),
            Ok(_) => info!("ticket keys reloaded: the file has changed"),
            Err(error) => warn!("{error}; the ticket keys in use stay"),
        }
        let warnings = self.keys.warnings(now);
        let kind = warnings.first().map(std::mem::discriminant);
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if *warned != kind {
            for warning in warnings {
                warn!("{warning}");
            }
            *warned = kind;
        }
    }

    /// Takes the session of a single-use ticket out of the store, within the store's budget. `id`
    /// is that of [`OpenedTicket::NeedsLookup`]. The session is gone from the store even if the
    /// handshake fails.
    pub(crate) async fn redeem(&self, id: &[u8]) -> RedeemedTicket {
        match &self.sessions {
            Some(sessions) => self.redeem_from(sessions, id).await,
            None => RedeemedTicket::unavailable(),
        }
    }

    /// Marks an address token as spent in the whole cluster, within the store's budget. Returns
    /// whether it was spent before, or `None` if the store is unavailable; then this process's own
    /// record decides.
    ///
    /// The store has one bit for each token, addressed by issuer and number. A block of bits
    /// expires when the keys that sealed its tokens have expired.
    pub(crate) async fn spend_everywhere(&self, token: TokenSerial) -> Option<bool> {
        let store = &self.sessions.as_ref()?.store;
        let schedule = self.keys.schedule();
        let lifetime = schedule.rotation() + schedule.lifetime();
        let TokenSerial { issuer, number } = token;
        let key = format!("token:{issuer:016x}:{}", number / TOKENS_PER_RECORD);
        match store.set_bit(&key, (number % TOKENS_PER_RECORD) as u32, lifetime).await {
            Ok(spent) => Some(spent),
            Err(error) => {
                debug!("cannot check whether an address token is spent: {error}");
                None
            }
        }
    }
}

impl TicketRing {
    async fn redeem_from(&self, sessions: &SessionStore, id: &[u8]) -> RedeemedTicket {
        let Ok(id) = SessionId::try_from(id) else { return RedeemedTicket::unavailable() };
        let session = match sessions.take(&id).await {
            Ok(session) => session,
            Err(withheld) => {
                return RedeemedTicket {
                    withheld: Some(withheld),
                    ..RedeemedTicket::unavailable()
                };
            }
        };
        let Some(record) = session.value else { return RedeemedTicket::unavailable() };
        let Opened::Ticket { content, origin } = self.keys.open_detached(&record, &id, now())
        else {
            return RedeemedTicket::unavailable();
        };
        match session.counts {
            Ok(()) => RedeemedTicket { session: self.session_of(content, origin), withheld: None },
            Err(why) => RedeemedTicket {
                session: OpenedTicket::WithoutEarlyData(content, WithheldReason::Store),
                withheld: Some(why),
            },
        }
    }

    /// A session with early data if its ticket was issued in this zone and in an epoch that the
    /// register covers. Otherwise a session without early data.
    fn session_of(&self, content: Vec<u8>, origin: Origin) -> OpenedTicket {
        if origin.zone != self.keys.zone() {
            return OpenedTicket::WithoutEarlyData(content, WithheldReason::Zone);
        }
        match self.epochs.accepts(origin.epoch) {
            true => OpenedTicket::Session(content),
            false => OpenedTicket::WithoutEarlyData(content, WithheldReason::Epoch),
        }
    }
}

impl TicketSealer for TicketRing {
    fn max_overhead(&self) -> usize {
        TICKET_OVERHEAD
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        let epoch = self.epochs.current();
        match &self.sessions {
            Some(sessions) if self.settings.single_use => {
                sessions.deposit(self.keys.seal_detached(session, epoch, now()))
            }
            _ => Some(self.keys.seal(session, epoch, now())),
        }
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        match self.keys.open(ticket, now()) {
            Opened::Ticket { content, origin } => self.session_of(content, origin),
            Opened::Reference { id, .. } if self.sessions.is_some() => {
                OpenedTicket::NeedsLookup(id.to_vec())
            }
            _ => OpenedTicket::Ignored,
        }
    }

    /// While the store is unreachable, flights cannot be recorded and their requests get 425. So
    /// tickets that are issued meanwhile allow no early data.
    fn allows_early_data(&self) -> bool {
        self.sessions.as_ref().is_none_or(|sessions| !sessions.is_store_absent())
    }

    fn uses_up_tickets(&self) -> bool {
        self.punctured.is_some()
    }

    fn seal_once(&self, session: &[u8]) -> Option<Vec<u8>> {
        match &self.punctured {
            Some(punctured) => punctured.seal(session, monotonic()),
            None => self.seal(session),
        }
    }

    fn read_once(&self, ticket: &[u8], offer: &PskOffer) -> OpenedTicket {
        let Some(punctured) = &self.punctured else { return self.open(ticket) };
        match punctured.read(ticket) {
            OpenOutcome::Session { content, sealed_at } => {
                OpenedTicket::Session(std::mem::take(&mut *aged(content, sealed_at)))
            }
            OpenOutcome::HandedOver => {
                OpenedTicket::NeedsLookup(TicketOffer::to_bytes(ticket, offer))
            }
            OpenOutcome::Used => OpenedTicket::AlreadyUsed,
            OpenOutcome::Unknown | OpenOutcome::Forged | OpenOutcome::Unproven => {
                OpenedTicket::Ignored
            }
        }
    }

    fn use_up(&self, ticket: &[u8]) -> TicketUse {
        match self.punctured.as_ref().map(|punctured| punctured.use_up(ticket)) {
            None | Some(UseOutcome::First) => TicketUse::First,
            Some(UseOutcome::Again) => TicketUse::Again,
            Some(UseOutcome::HandedOver) => TicketUse::HandedOver,
        }
    }
}

fn punctured_reading(tickets: &PuncturedTickets) -> Option<PuncturedReading> {
    let counts = tickets.counts()?;
    Some(PuncturedReading {
        outstanding: counts.outstanding,
        used: counts.punctured,
        lost: [counts.expired, counts.evicted],
        bytes: counts.bytes,
    })
}

/// Bits in one record of the store: 4 KiB for tokens that were issued together.
const TOKENS_PER_RECORD: u64 = 32_768;

#[cfg(test)]
mod tests {
    use firstflight_replay::EpochScope;

    use super::*;

    fn epochs(scope: EpochScope) -> Arc<TicketEpochs> {
        Arc::new(TicketEpochs::new(scope))
    }

    fn open_ring(settings: &TicketSettings) -> Result<Arc<TicketRing>, ServerError> {
        TicketRing::open(settings, None, None, epochs(EpochScope::Process))
    }

    #[test]
    fn sealed_tickets_open_and_others_are_ignored() {
        let ring = open_ring(&TicketSettings::default()).unwrap();
        let ticket = ring.seal(b"session").unwrap();
        assert!(ticket.len() <= b"session".len() + ring.max_overhead());
        assert_eq!(TicketSealer::open(&*ring, &ticket), OpenedTicket::Session(b"session".to_vec()));
        assert_eq!(TicketSealer::open(&*ring, b"garbage"), OpenedTicket::Ignored);
        ring.epochs.start_next();
        let resumed = OpenedTicket::WithoutEarlyData(b"session".to_vec(), WithheldReason::Epoch);
        assert_eq!(TicketSealer::open(&*ring, &ticket), resumed);
    }

    #[test]
    fn a_ticket_of_another_zone_resumes_without_early_data() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = KeyFile::new(directory.path().join("keys"));
        file.write_new(Schedule::default(), now()).unwrap();
        let in_zone = |zone: Option<&str>| {
            let settings = TicketSettings {
                keys: KeySource::File(file.path().to_owned()),
                zone: zone.map(str::to_owned),
                ..TicketSettings::default()
            };
            // Like the nodes of a store.
            TicketRing::open(&settings, None, None, epochs(EpochScope::Store)).unwrap()
        };
        let (west, east, none) = (in_zone(Some("west")), in_zone(Some("east")), in_zone(None));
        let ticket = west.seal(b"session").unwrap();
        let session = b"session".to_vec();
        let open = |ring: &TicketRing| TicketSealer::open(ring, &ticket);
        assert_eq!(open(&in_zone(Some("west"))), OpenedTicket::Session(session.clone()));
        assert_eq!(
            open(&east),
            OpenedTicket::WithoutEarlyData(session.clone(), WithheldReason::Zone)
        );
        assert_eq!(open(&none), OpenedTicket::WithoutEarlyData(session, WithheldReason::Zone));
    }

    /// An attacker may hold back a flight, to decrypt it after stealing the keys.
    #[tokio::test]
    async fn keys_of_expired_punctured_tickets_are_destroyed() {
        let settings = TicketSettings { keys: KeySource::Punctured, ..TicketSettings::default() };
        let ring = open_ring(&settings).unwrap();
        let ticket = ring.seal_once(b"session").unwrap();
        let punctured = ring.punctured().unwrap();
        // Does not use the ticket up, because the proof fails.
        let open = || punctured.open(&ticket, |_| false);
        let sealed_at = monotonic();
        ring.refresh(sealed_at + ring.lifetime() - Duration::from_secs(60));
        assert_eq!(open(), OpenOutcome::Unproven);
        ring.refresh(sealed_at + ring.lifetime() + Duration::from_secs(1));
        assert_eq!(open(), OpenOutcome::Unknown);
        let counts = ring.reading().punctured.unwrap();
        assert_eq!((counts.outstanding, counts.lost, counts.bytes), (0, [1, 0], 0));
    }

    #[test]
    fn settings_that_need_a_store_say_so() {
        let settings = TicketSettings { single_use: true, ..TicketSettings::default() };
        let error = open_ring(&settings).map(drop).unwrap_err().to_string();
        assert!(error.contains("single_use = true needs a store"), "{error}");
    }
}
