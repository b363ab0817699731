//! The ticket ring as TLS wants it, and the clock that both share.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use firstflight_tickets::{
    KeyFile, Opened, RING_OVERHEAD, Refreshed, Schedule, TicketKeys, UnixTime, Warning,
};
use firstflight_tls::{OpenedTicket, SteadyClock, TicketSealer};
use tracing::{info, warn};

use crate::{KeySource, ServerError, TicketSettings};

/// Seals and opens the tickets of all connections.
pub(crate) struct TicketRing {
    keys: TicketKeys,
    /// The last warning that was logged, so that each is logged once.
    warned: Mutex<Option<std::mem::Discriminant<Warning>>>,
}

impl TicketRing {
    /// The ring in a file, or a fresh one of this process alone.
    ///
    /// # Errors
    /// [`ServerError::TicketKeys`].
    pub(crate) fn open(settings: &TicketSettings) -> Result<Arc<Self>, ServerError> {
        let keys = match &settings.keys {
            KeySource::File(path) => TicketKeys::from_file(KeyFile::new(path))?,
            KeySource::Process => TicketKeys::in_process(Schedule::default(), now()),
            KeySource::Store { .. } => {
                return Err(ServerError::Setting(
                    "ticket keys through the store are not there yet; share a file".to_owned(),
                ));
            }
        };
        Ok(Arc::new(Self { keys, warned: Mutex::new(None) }))
    }

    /// Whether the files that the settings name are what they should be.
    ///
    /// # Errors
    /// As [`TicketRing::open`].
    pub(crate) fn check(settings: &TicketSettings) -> Result<(), ServerError> {
        Self::open(settings).map(drop)
    }

    /// Whether tickets may have been used before this process began.
    pub(crate) fn may_predate_start(&self) -> bool {
        self.keys.may_predate_start()
    }

    /// How long a ticket is good.
    pub(crate) fn lifetime(&self) -> Duration {
        self.keys.schedule().lifetime()
    }

    /// Rotates keys that are due and takes up a replaced file. Call it about once a second.
    pub(crate) fn refresh(&self) {
        let now = now();
        match self.keys.refresh(now) {
            Ok(Refreshed::Unchanged) => {}
            Ok(Refreshed::Rotated) => info!("ticket keys rotated"),
            Ok(_) => info!("ticket keys read again: the file has changed"),
            Err(error) => warn!("{error}; the ticket keys in use stay"),
        }
        let warnings = self.keys.warnings(now);
        let kind = warnings.first().map(std::mem::discriminant);
        let mut warned = self.warned.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *warned != kind {
            for warning in warnings {
                warn!("{warning}");
            }
            *warned = kind;
        }
    }
}

impl TicketSealer for TicketRing {
    fn max_overhead(&self) -> usize {
        RING_OVERHEAD
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        Some(self.keys.seal(session, now()))
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        match self.keys.open(ticket, now()) {
            Opened::Ticket { content, zone } if zone == self.keys.zone() => {
                OpenedTicket::Session(content)
            }
            Opened::Ticket { content, .. } => OpenedTicket::WithoutEarlyData(content),
            _ => OpenedTicket::Ignored,
        }
    }
}

/// The time by which TLS ages tickets too.
fn now() -> UnixTime {
    UnixTime(u64::try_from(SteadyClock::unix_micros() / 1_000_000).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_and_opens_and_ignores_the_rest() {
        let ring = TicketRing::open(&TicketSettings::default()).unwrap();
        let ticket = ring.seal(b"session").unwrap();
        assert!(ticket.len() <= b"session".len() + ring.max_overhead());
        assert_eq!(TicketSealer::open(&*ring, &ticket), OpenedTicket::Session(b"session".to_vec()));
        assert_eq!(TicketSealer::open(&*ring, b"garbage"), OpenedTicket::Ignored);
        assert!(!ring.may_predate_start());
    }
}
