//! Tries the secrets of a key log on protected packets (RFC 9001 section 5).

use firstflight_wire::{PacketKeys, Protected, Suite, Unprotected, Version};

/// Candidate keys of one kind of packets with long headers.
pub(crate) struct LongHeaderKeys {
    pub(crate) candidates: Vec<PacketKeys>,
    /// Whether different packets may use different candidates.
    pub(crate) multiple: bool,
}

impl LongHeaderKeys {
    pub(crate) fn new<'s>(suites: &[Suite], secrets: impl Iterator<Item = &'s [u8]>) -> Self {
        Self { candidates: candidates(suites, secrets), multiple: false }
    }

    pub(crate) fn open(
        &mut self,
        packet: &Protected<'_>,
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let (index, opened) = self
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, keys)| Some(keys.version) == packet.version)
            .find_map(|(index, keys)| {
                Some((index, keys.open(packet.bytes, packet.number_at, largest)?))
            })?;
        if !self.multiple {
            self.candidates.swap(0, index);
            self.candidates.truncate(1);
        }
        Some(opened)
    }
}

/// The keys of packets with short headers, across key updates.
pub(crate) struct ShortHeaderKeys {
    pub(crate) candidates: Vec<PacketKeys>,
    /// The keys of the previous key phase.
    previous: Option<PacketKeys>,
    phase: bool,
    pub(crate) updates: u32,
}

impl ShortHeaderKeys {
    pub(crate) fn new<'s>(suites: &[Suite], secrets: impl Iterator<Item = &'s [u8]>) -> Self {
        let candidates = candidates(suites, secrets);
        Self { candidates, previous: None, phase: false, updates: 0 }
    }

    /// Decrypts a packet whose connection ID has one of `lengths`, and moves that length to the
    /// front.
    pub(crate) fn open(
        &mut self,
        packet: &[u8],
        lengths: &mut [usize],
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let (at, opened) = (0..lengths.len()).find_map(|at| {
            (0..self.candidates.len()).find_map(|index| {
                Some((at, self.try_candidate(index, packet, 1 + lengths[at], largest)?))
            })
        })?;
        lengths[..=at].rotate_right(1);
        Some(opened)
    }

    /// RFC 9001 section 6: a changed key phase means the next keys, or the previous ones if the
    /// packet is late.
    fn try_candidate(
        &mut self,
        index: usize,
        packet: &[u8],
        number_at: usize,
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let keys = &self.candidates[index];
        if keys.key_phase(packet, number_at)? == self.phase {
            let opened = keys.open(packet, number_at, largest)?;
            self.keep_only(index);
            return Some(opened);
        }
        let before = self.previous.as_ref();
        if let Some(opened) = before.and_then(|keys| keys.open(packet, number_at, largest)) {
            return Some(opened);
        }
        let next = keys.updated()?;
        let opened = next.open(packet, number_at, largest)?;
        self.keep_only(index);
        self.previous = self.candidates.pop();
        self.candidates.push(next);
        self.phase = !self.phase;
        self.updates += 1;
        Some(opened)
    }

    /// Drops all other candidates.
    fn keep_only(&mut self, index: usize) {
        self.candidates.swap(0, index);
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
