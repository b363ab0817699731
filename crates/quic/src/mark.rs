use std::fmt;

use quinn_proto::crypto::HmacKey;

use crate::ResetKey;
use crate::steering::{CID_LEN, from_destination_cid};

/// Marks the connection ids of one process, so that its successor on the same sockets can recognize
/// its packets. The last three bytes are a MAC of the others, under a key that only the two processes
/// know. To everybody else they look random.
///
/// An id that a client chose for its first packet has the mark by chance with a probability of 1 in
/// 16 million. That connection fails, and the client opens another.
#[derive(Clone)]
pub struct IdMark(ResetKey);

impl IdMark {
    /// Creates a mark from 32 secret bytes.
    pub fn new(key: [u8; 32]) -> Self {
        Self(ResetKey::new(key))
    }

    /// Whether the datagram's destination connection id has the mark.
    pub fn is_on(&self, datagram: &[u8]) -> bool {
        let id = from_destination_cid(datagram).and_then(<[u8]>::first_chunk::<CID_LEN>);
        id.is_some_and(|id| id[UNMARKED_LEN..] == self.mac(id))
    }

    /// Marks an id.
    pub(crate) fn apply(&self, id: &mut [u8; CID_LEN]) {
        let mac = self.mac(id);
        id[UNMARKED_LEN..].copy_from_slice(&mac);
    }

    fn mac(&self, id: &[u8; CID_LEN]) -> [u8; MAC_LEN] {
        let mut signature = [0; 32];
        self.0.sign(&id[..UNMARKED_LEN], &mut signature);
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(&signature[..MAC_LEN]);
        mac
    }
}

impl fmt::Debug for IdMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdMark(..)")
    }
}

/// Length of the MAC.
const MAC_LEN: usize = 3;
/// Length of the unmarked part, which selects the worker and is random otherwise.
const UNMARKED_LEN: usize = CID_LEN - MAC_LEN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Steering;

    #[test]
    fn marked_ids_are_recognized_in_long_and_short_headers() {
        let (ours, theirs) = (IdMark::new([1; 32]), IdMark::new([2; 32]));
        let steering = Steering::new(3);
        let mut ids = steering.marked_ids(2, ours.clone());
        for _ in 0..200 {
            let id = ids.generate_cid();
            let short = [&[0x40], &id[..], &[0; 20]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, CID_LEN as u8], &id[..], &[0; 20]].concat();
            assert!(ours.is_on(&short) && ours.is_on(&long));
            assert!(!theirs.is_on(&short) && !theirs.is_on(&long));
            assert_eq!((steering.worker(&short), steering.worker(&long)), (2, 2));
        }
    }

    #[test]
    fn a_datagram_too_short_for_a_connection_id_has_no_mark() {
        let mark = IdMark::new([1; 32]);
        let id = Steering::new(1).marked_ids(0, mark.clone()).generate_cid();
        let short = [&[0x40], &id[..]].concat();
        assert!(mark.is_on(&short));
        assert!((0..short.len()).all(|end| !mark.is_on(&short[..end])));
    }
}
