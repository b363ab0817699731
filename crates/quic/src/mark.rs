use std::fmt;

use quinn_proto::crypto::HmacKey;

use crate::ResetKey;
use crate::steering::{ID, id_of};

/// Marks connection ids as one process's, so that the next one on the same sockets can tell its
/// packets from its own: the last three bytes are a code of those before, by a key that only the
/// two know. To all others they are random.
///
/// An id that a client has chosen for its first packet bears the mark by chance once in 16 million
/// times. That connection does not come about, and its client starts another.
#[derive(Clone)]
pub struct IdMark(ResetKey);

impl IdMark {
    /// From 32 secret bytes.
    pub fn new(key: [u8; 32]) -> Self {
        Self(ResetKey::new(key))
    }

    /// Whether a datagram is for a connection whose id bears the mark.
    pub fn is_on(&self, datagram: &[u8]) -> bool {
        let id = id_of(datagram).and_then(<[u8]>::first_chunk::<ID>);
        id.is_some_and(|id| id[FREE..] == self.code(id))
    }

    /// Puts the mark on an id.
    pub(crate) fn put(&self, id: &mut [u8; ID]) {
        let code = self.code(id);
        id[FREE..].copy_from_slice(&code);
    }

    fn code(&self, id: &[u8; ID]) -> [u8; CODE] {
        let mut signature = [0; 32];
        self.0.sign(&id[..FREE], &mut signature);
        let mut code = [0; CODE];
        code.copy_from_slice(&signature[..CODE]);
        code
    }
}

impl fmt::Debug for IdMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdMark(..)")
    }
}

const CODE: usize = 3;
/// What is left to steer by and to be random.
const FREE: usize = ID - CODE;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Steering;

    #[test]
    fn marked_ids_are_told_from_others_in_either_header() {
        let (ours, theirs) = (IdMark::new([1; 32]), IdMark::new([2; 32]));
        let steering = Steering::new(3);
        let mut ids = steering.marked_ids(2, ours.clone());
        for _ in 0..200 {
            let id = ids.generate_cid();
            let short = [&[0x40], &id[..], &[0; 20]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, ID as u8], &id[..], &[0; 20]].concat();
            assert!(ours.is_on(&short) && ours.is_on(&long));
            assert!(!theirs.is_on(&short) && !theirs.is_on(&long));
            assert_eq!((steering.worker(&short), steering.worker(&long)), (2, 2));
        }
    }

    #[test]
    fn what_is_too_short_for_an_id_bears_no_mark() {
        let mark = IdMark::new([1; 32]);
        let id = Steering::new(1).marked_ids(0, mark.clone()).generate_cid();
        let short = [&[0x40], &id[..]].concat();
        assert!(mark.is_on(&short));
        assert!((0..short.len()).all(|end| !mark.is_on(&short[..end])));
    }
}
