//! Zones and epochs: where and when a ticket was issued.

use std::fmt;

use sha2::{Digest, Sha256};

/// A zone: the nodes that share one strike register. Early data is accepted only in the zone that
/// issued the ticket, because no other zone's register knows which flights have run. Other zones
/// with the same keys resume the session without early data.
///
/// A ticket carries the first 4 bytes of SHA-256 over the zone's name, encrypted. That is enough for
/// the few zones that an operator has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Zone([u8; Self::LENGTH]);

impl Zone {
    /// The zone of all nodes without a configured zone.
    pub const NONE: Self = Self([0; Self::LENGTH]);

    pub(crate) const LENGTH: usize = 4;

    /// The zone called `name`.
    pub fn named(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut tag = [0; Self::LENGTH];
        tag.copy_from_slice(&digest[..Self::LENGTH]);
        Self(tag)
    }

    pub(crate) fn from_tag(tag: [u8; Self::LENGTH]) -> Self {
        Self(tag)
    }

    pub(crate) fn tag(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", hex::encode(self.0))
    }
}

/// Where and when a ticket was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The zone.
    pub zone: Zone,
    /// The ticket epoch of the register that covers the ticket's flights
    /// (`firstflight_replay::TicketEpochs`), or 0.
    pub epoch: u32,
}

impl Origin {
    pub(crate) const LENGTH: usize = Zone::LENGTH + 4;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..Zone::LENGTH].copy_from_slice(self.zone.tag());
        bytes[Zone::LENGTH..].copy_from_slice(&self.epoch.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let [a, b, c, d, epoch @ ..] = bytes;
        Self { zone: Zone::from_tag([a, b, c, d]), epoch: u32::from_be_bytes(epoch) }
    }
}

impl From<Zone> for Origin {
    fn from(zone: Zone) -> Self {
        Self { zone, epoch: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_differ_by_name_and_from_none() {
        assert_eq!(Zone::named("eu-west"), Zone::named("eu-west"));
        assert_ne!(Zone::named("eu-west"), Zone::named("eu-east"));
        assert_ne!(Zone::named(""), Zone::NONE);
        assert_eq!(Zone::default(), Zone::NONE);
    }
}
