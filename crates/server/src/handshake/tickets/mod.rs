//! The ticket ring as TLS wants it, and the clock that both share.

pub(crate) mod store;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firstflight_config::{ConfigError, KeySource, TicketSettings};
use firstflight_quic::TokenSerial;
use firstflight_replay::TicketEpochs;
use firstflight_store::Store;
use firstflight_telemetry::metrics::TicketReading;
use firstflight_tickets::{
    KeyEncryption, KeyFile, KeyState, Opened, Origin, RING_OVERHEAD, RefreshOutcome, Ring,
    Schedule, SessionId, TicketKeys, Warning, Zone,
};
use firstflight_tls::{OpenedTicket, TicketSealer, WithheldReason};
use tracing::{debug, info, warn};

use crate::ServerError;
use crate::context::now;

pub(crate) use store::Redeemed;
use store::Sessions;
use store::SharedKeys;
pub(crate) use store::name_of_this_node;

/// Seals and opens the tickets of all connections.
pub(crate) struct TicketRing {
    keys: Arc<TicketKeys>,
    /// Which tickets may bring early data.
    epochs: Arc<TicketEpochs>,
    /// The keys' other side, if they come from the store.
    shared: Option<SharedKeys>,
    /// Sessions that lie in the store instead of in their tickets; `None`: there is no store.
    sessions: Option<Sessions>,
    /// Whether the keys are this process's own.
    in_process: bool,
    settings: TicketSettings,
    /// The last warning that was logged, so that each is logged once.
    warned: Mutex<Option<std::mem::Discriminant<Warning>>>,
}

impl TicketRing {
    /// The ring from where the settings say, inside a tokio runtime. One from the store starts as
    /// one of this process alone, until [`begin`](Self::begin) or [`follow`](Self::follow) has
    /// the store's. `inherited`: the keys of the process before this one, if they were its own.
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
                "{what} needs a store; give a section [store]"
            )))
        };
        let mut shared = None;
        let keys = match &settings.keys {
            KeySource::File(path) => TicketKeys::from_file(KeyFile::new(path))?,
            KeySource::Process => match inherited {
                Some(ring) => TicketKeys::inherited(ring),
                None => TicketKeys::in_process(Schedule::default(), now()),
            },
            KeySource::Store { key_encryption, schedule } => {
                let keys = KeyEncryption::open(key_encryption)?;
                let store = store.ok_or_else(|| lacks_store("keys = \"store\""))?.clone();
                shared = Some(SharedKeys::new(store, keys, *schedule, settings));
                TicketKeys::external(Ring::generate(*schedule, now()))
            }
        };
        if settings.single_use && store.is_none() {
            return Err(lacks_store("single_use = true"));
        }
        let zone = settings.zone.as_deref().map_or(Zone::NONE, Zone::named);
        let sessions = store.map(|store| Sessions::new(store.clone(), keys.schedule().lifetime()));
        Ok(Arc::new(Self {
            keys: Arc::new(keys.in_zone(zone)),
            epochs,
            shared,
            sessions,
            in_process: settings.keys == KeySource::Process,
            settings: settings.clone(),
            warned: Mutex::new(None),
        }))
    }

    /// Whether the files that the settings name are what they should be.
    ///
    /// # Errors
    /// As [`TicketRing::open`].
    pub(crate) fn check(settings: &TicketSettings) -> Result<(), ServerError> {
        match &settings.keys {
            KeySource::Process => {}
            KeySource::File(path) => drop(TicketKeys::from_file(KeyFile::new(path))?),
            KeySource::Store { key_encryption, .. } => drop(KeyEncryption::open(key_encryption)?),
        }
        Ok(())
    }

    /// Waits for the store's keys, if that is where they come from, for two seconds at most. What
    /// is not there then comes later.
    pub(crate) async fn begin(&self) {
        if let Some(shared) = &self.shared {
            shared.begin(&self.keys).await;
        }
    }

    /// Follows the store's keys, if that is where they come from, for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        if let Some(shared) = &self.shared {
            shared.follow(&self.keys).await;
        }
    }

    /// The keys, if they are this process's own: nobody else could give them to its successor.
    pub(crate) fn of_this_process(&self) -> Option<Arc<Ring>> {
        self.in_process.then(|| self.keys.ring())
    }

    /// The keys, for what else is sealed under them.
    pub(crate) fn keys(&self) -> &Arc<TicketKeys> {
        &self.keys
    }

    /// What metrics say of the keys.
    pub(crate) fn reading(&self) -> TicketReading {
        let (now, counts) = (now(), self.keys.counts());
        let keys = self.keys.statuses(now);
        let of = |state| keys.iter().filter(move |key| key.state == state);
        TicketReading {
            current_since: of(KeyState::Current).map(|key| key.not_before).max().unwrap_or(now.0),
            now: now.0,
            period: self.keys.schedule().rotation().as_secs(),
            keys: [KeyState::Previous, KeyState::Current, KeyState::Next]
                .map(|state| of(state).count() as u64),
            sealed: counts.sealed,
            opened: [
                counts.opened_previous,
                counts.opened_current,
                counts.opened_next,
                counts.opened_replaced,
            ],
            unknown: counts.unknown,
            forged: counts.forged,
            sessions_lost: self.sessions.as_ref().map_or(0, Sessions::lost),
        }
    }

    /// What they were opened by.
    pub(crate) fn settings(&self) -> &TicketSettings {
        &self.settings
    }

    /// How long a ticket is good.
    pub(crate) fn lifetime(&self) -> Duration {
        self.keys.schedule().lifetime()
    }

    /// Rotates keys that are due and takes up replaced files. Call it about once a second.
    pub(crate) fn refresh(&self) {
        let now = now();
        if let Some(shared) = &self.shared {
            shared.refresh_key_encryption(now);
        }
        match self.keys.refresh(now) {
            Ok(RefreshOutcome::Unchanged) => {}
            Ok(RefreshOutcome::Rotated) => info!("ticket keys rotated"),
            Ok(_) => info!("ticket keys read again: the file has changed"),
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

    /// The session that a ticket stands for by `id` ([`OpenedTicket::NeedsLookup`]), within the
    /// store's budget. It is gone from the store then, whatever becomes of the connection.
    pub(crate) async fn redeem(&self, id: &[u8]) -> Redeemed {
        match &self.sessions {
            Some(sessions) => self.redeem_from(sessions, id).await,
            None => Redeemed::nothing(),
        }
    }

    /// Spends a token in the whole cluster, within the store's budget. Whether it was spent before.
    /// `None`: nobody can say; then this process's own word counts.
    ///
    /// A bit a token in the store, by issuer and number. A block of them is kept until the keys are
    /// dead under which its tokens were sealed.
    pub(crate) async fn spend_everywhere(&self, token: TokenSerial) -> Option<bool> {
        let store = &self.sessions.as_ref()?.store;
        let schedule = self.keys.schedule();
        let life = schedule.rotation() + schedule.lifetime();
        let TokenSerial { issuer, number } = token;
        let key = format!("token:{issuer:016x}:{}", number / BLOCK);
        match store.set_bit(&key, (number % BLOCK) as u32, life).await {
            Ok(spent) => Some(spent),
            Err(error) => {
                debug!("whether an address token is spent: {error}");
                None
            }
        }
    }
}

impl TicketRing {
    async fn redeem_from(&self, sessions: &Sessions, id: &[u8]) -> Redeemed {
        let Ok(id) = SessionId::try_from(id) else { return Redeemed::nothing() };
        let taken = match sessions.take(&id).await {
            Ok(taken) => taken,
            Err(withheld) => return Redeemed { withheld: Some(withheld), ..Redeemed::nothing() },
        };
        let Some(record) = taken.value else { return Redeemed::nothing() };
        let Opened::Ticket { content, origin } = self.keys.open_detached(&record, &id, now())
        else {
            return Redeemed::nothing();
        };
        match taken.counts {
            Ok(()) => Redeemed { session: self.session_of(content, origin), withheld: None },
            Err(why) => Redeemed {
                session: OpenedTicket::WithoutEarlyData(content, WithheldReason::Store),
                withheld: Some(why),
            },
        }
    }

    /// A session with early data, if its ticket was issued in this zone and in an epoch whose
    /// flights the register covers; else without.
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
        RING_OVERHEAD
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
}

/// Bits of a record: 4 KiB, which tokens that are issued together share.
const BLOCK: u64 = 32_768;

#[cfg(test)]
mod tests {
    use firstflight_replay::EpochScope;

    use super::*;

    fn epochs(scope: EpochScope) -> Arc<TicketEpochs> {
        Arc::new(TicketEpochs::new(scope))
    }

    fn of_process(settings: &TicketSettings) -> Result<Arc<TicketRing>, ServerError> {
        TicketRing::open(settings, None, None, epochs(EpochScope::Process))
    }

    #[test]
    fn seals_and_opens_and_ignores_the_rest() {
        let ring = of_process(&TicketSettings::default()).unwrap();
        let ticket = ring.seal(b"session").unwrap();
        assert!(ticket.len() <= b"session".len() + ring.max_overhead());
        assert_eq!(TicketSealer::open(&*ring, &ticket), OpenedTicket::Session(b"session".to_vec()));
        assert_eq!(TicketSealer::open(&*ring, b"garbage"), OpenedTicket::Ignored);
        ring.epochs.start_next();
        let resumed = OpenedTicket::WithoutEarlyData(b"session".to_vec(), WithheldReason::Epoch);
        assert_eq!(TicketSealer::open(&*ring, &ticket), resumed);
    }

    #[test]
    fn another_zone_resumes_without_early_data() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = KeyFile::new(directory.path().join("keys"));
        file.write_new(Schedule::default(), now()).unwrap();
        let in_zone = |zone: Option<&str>| {
            let settings = TicketSettings {
                keys: KeySource::File(file.path().to_owned()),
                zone: zone.map(str::to_owned),
                ..TicketSettings::default()
            };
            // As nodes of a store have them.
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

    #[test]
    fn what_needs_a_store_says_so() {
        let settings = TicketSettings { single_use: true, ..TicketSettings::default() };
        let error = of_process(&settings).map(drop).unwrap_err().to_string();
        assert!(error.contains("single_use = true needs a store"), "{error}");
    }
}
