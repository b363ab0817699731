//! The keys that may open the packets of a kind.

use super::header::Protected;
use super::protection::{PacketKeys, Unprotected};
use super::version::Version;
use crate::decrypt::Suite;

/// What may open the packets of one kind with long headers.
pub(crate) struct LongKeys {
    pub(crate) candidates: Vec<PacketKeys>,
    /// Packets may be under different ones of them.
    pub(crate) several: bool,
}

impl LongKeys {
    pub(crate) fn new<'s>(suites: &[Suite], secrets: impl Iterator<Item = &'s [u8]>) -> Self {
        Self { candidates: candidates(suites, secrets), several: false }
    }

    pub(crate) fn open(
        &mut self,
        packet: &Protected<'_>,
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let (fits, opened) = self
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, keys)| Some(keys.version) == packet.version)
            .find_map(|(fits, keys)| {
                Some((fits, keys.open(packet.bytes, packet.number_at, largest)?))
            })?;
        if !self.several {
            self.candidates.swap(0, fits);
            self.candidates.truncate(1);
        }
        Some(opened)
    }
}

/// What opens packets with short headers, over key updates.
pub(crate) struct ShortKeys {
    pub(crate) candidates: Vec<PacketKeys>,
    /// The keys of the phase before, once there was one.
    previous: Option<PacketKeys>,
    phase: bool,
    pub(crate) updates: u32,
}

impl ShortKeys {
    pub(crate) fn new<'s>(suites: &[Suite], secrets: impl Iterator<Item = &'s [u8]>) -> Self {
        let candidates = candidates(suites, secrets);
        Self { candidates, previous: None, phase: false, updates: 0 }
    }

    /// Opens a packet whose connection ID has one of `lengths`, and puts that length first.
    pub(crate) fn open(
        &mut self,
        packet: &[u8],
        lengths: &mut [usize],
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let (at, opened) = (0..lengths.len()).find_map(|at| {
            (0..self.candidates.len())
                .find_map(|fits| Some((at, self.try_one(fits, packet, 1 + lengths[at], largest)?)))
        })?;
        lengths[..=at].rotate_right(1);
        Some(opened)
    }

    /// RFC 9001 section 6: a changed key phase means the next keys, or, if the packet is late, the
    /// ones before.
    fn try_one(
        &mut self,
        fits: usize,
        packet: &[u8],
        number_at: usize,
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let keys = &self.candidates[fits];
        if keys.key_phase(packet, number_at)? == self.phase {
            let opened = keys.open(packet, number_at, largest)?;
            self.settle(fits);
            return Some(opened);
        }
        let before = self.previous.as_ref();
        if let Some(opened) = before.and_then(|keys| keys.open(packet, number_at, largest)) {
            return Some(opened);
        }
        let next = keys.updated()?;
        let opened = next.open(packet, number_at, largest)?;
        self.settle(fits);
        self.previous = self.candidates.pop();
        self.candidates.push(next);
        self.phase = !self.phase;
        self.updates += 1;
        Some(opened)
    }

    fn settle(&mut self, fits: usize) {
        self.candidates.swap(0, fits);
        self.candidates.truncate(1);
    }
}

fn candidates<'s>(suites: &[Suite], secrets: impl Iterator<Item = &'s [u8]>) -> Vec<PacketKeys> {
    let mut found = Vec::new();
    for secret in secrets {
        for version in Version::ALL {
            let keys = suites.iter().filter_map(|suite| PacketKeys::new(version, *suite, secret));
            found.extend(keys);
        }
    }
    found
}
