//! What an operator may see of a server beside its metrics: keys, replays, whether early data is
//! taken.

use std::time::Duration;

use firstflight_config::KeySource;
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tickets::KeyStatus;

use crate::ServerHandle;
use crate::handshake::tickets::TicketRing;
use crate::observe::replays::Replay;

/// Ticket keys as an operator may see them: no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Where they come from: process, file or store.
    pub source: &'static str,
    /// The zone that tickets name, if there is one.
    pub zone: Option<String>,
    /// How long a key is to be current.
    pub rotation: Duration,
    /// How long a ticket is good.
    pub lifetime: Duration,
    /// What an operator should know, a sentence each.
    pub warnings: Vec<String>,
    /// The keys, the oldest first.
    pub ring: Vec<KeyStatus>,
}

impl ServerHandle {
    /// The ticket keys.
    pub fn keys(&self) -> Keys {
        self.0.ring.inside()
    }

    /// The last flights that came more than once, the last one first.
    pub fn replays(&self) -> Vec<Replay> {
        self.0.replays.recent()
    }

    /// Whether the configuration wants early data.
    pub fn wants_early_data(&self) -> bool {
        self.0.current().early_data
    }

    /// Why no early data is accepted now; `None`: it is.
    pub fn early_data_closed(&self) -> Option<RefusedReason> {
        match self.wants_early_data() {
            true => self.0.gate.closed(),
            false => Some(RefusedReason::Disabled),
        }
    }
}

impl TicketRing {
    fn inside(&self) -> Keys {
        let (keys, now) = (self.keys(), crate::handshake::tickets::now());
        let settings = self.settings();
        Keys {
            source: match settings.keys {
                KeySource::Process => "process",
                KeySource::File(_) => "file",
                KeySource::Store { .. } => "store",
            },
            zone: settings.zone.clone(),
            rotation: keys.schedule().rotation(),
            lifetime: keys.schedule().lifetime(),
            warnings: keys.warnings(now).iter().map(ToString::to_string).collect(),
            ring: keys.statuses(now),
        }
    }
}
