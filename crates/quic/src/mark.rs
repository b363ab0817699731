use std::fmt;

use quinn_proto::crypto::HmacKey;

use crate::ResetKey;
use crate::steering::{ID, id_of};

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
        let id = id_of(datagram).and_then(<[u8]>::first_chunk::<ID>);
        id.is_some_and(|id| id[FREE..] == self.code(id))
    }

    /// Marks an id.
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
