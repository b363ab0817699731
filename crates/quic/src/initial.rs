use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use quinn_proto::crypto::{KeyPair, Keys};
use quinn_proto::{ConnectionId, Side};

use crate::header::HeaderKey;
use crate::packet::{Aead, PacketKey, TAG};
use crate::suite::{Secret, Suite};

/// The only supported version (RFC 9000).
pub(crate) const VERSION_1: u32 = 1;

/// RFC 9001 section 5.2.
const SALT: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad,
    0xcc, 0xbb, 0x7f, 0x0a,
];

/// RFC 9001 section 5.8.
const RETRY_KEY: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
const RETRY_NONCE: [u8; 12] =
    [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

/// The secrets of client and server for Initial packets (RFC 9001 section 5.2).
pub(crate) fn initial_secrets(dst_cid: &[u8]) -> (Secret, Secret) {
    let initial = Secret::extract(&SALT, dst_cid);
    (initial.derive("client in"), initial.derive("server in"))
}

/// The keys for Initial packets, by the destination connection id of the client's first packet.
pub(crate) fn initial_keys(dst_cid: &[u8], side: Side) -> Keys {
    let (client, server) = initial_secrets(dst_cid);
    match side {
        Side::Client => key_pairs(&client, &server),
        Side::Server => key_pairs(&server, &client),
    }
}

/// The Initial keys of a server's newest clients. quinn requests them twice: for a client's first
/// packet, and for its connection.
#[derive(Default)]
pub(crate) struct RecentInitials(Mutex<VecDeque<ServerKeys>>);

/// A server's Initial keys by the client's connection ID. They are no secret.
struct ServerKeys {
    dst_cid: ConnectionId,
    header: (HeaderKey, HeaderKey),
    packet: (PacketKey, PacketKey),
}

impl ServerKeys {
    fn new(dst_cid: ConnectionId) -> Self {
        let (client, server) = initial_secrets(&dst_cid);
        Self {
            dst_cid,
            header: (HeaderKey::new(&server), HeaderKey::new(&client)),
            packet: (PacketKey::new(&server), PacketKey::new(&client)),
        }
    }

    fn keys(&self) -> Keys {
        let ((local_header, remote_header), (local, remote)) = (&self.header, &self.packet);
        Keys {
            header: KeyPair {
                local: Box::new(local_header.clone()),
                remote: Box::new(remote_header.clone()),
            },
            packet: KeyPair { local: Box::new(local.clone()), remote: Box::new(remote.clone()) },
        }
    }
}

impl RecentInitials {
    /// Derives the keys for a first packet, and stores them for its connection.
    pub(crate) fn derive(&self, dst_cid: &ConnectionId) -> Keys {
        let derived = ServerKeys::new(*dst_cid);
        let keys = derived.keys();
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == MAX_RECENT_INITIALS {
            recent.pop_front();
        }
        recent.push_back(derived);
        keys
    }

    /// Takes the keys for a connection, if they are still stored.
    pub(crate) fn take(&self, dst_cid: &ConnectionId) -> Option<Keys> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = recent.iter().rposition(|keys| keys.dst_cid == *dst_cid)?;
        recent.remove(at).map(|found| found.keys())
    }
}

/// Maximum number of clients whose first packet has arrived and whose connection has not started.
const MAX_RECENT_INITIALS: usize = 64;

/// Keys of one packet space for both directions.
pub(crate) fn key_pairs(local: &Secret, remote: &Secret) -> Keys {
    Keys {
        header: KeyPair {
            local: Box::new(HeaderKey::new(local)),
            remote: Box::new(HeaderKey::new(remote)),
        },
        packet: KeyPair {
            local: Box::new(PacketKey::new(local)),
            remote: Box::new(PacketKey::new(remote)),
        },
    }
}

/// The Retry Integrity Tag (RFC 9001 section 5.8) of a Retry packet, whose bytes before the tag are
/// passed in pieces.
pub(crate) fn retry_tag(orig_dst_cid: &[u8], packet: &[&[u8]]) -> [u8; TAG] {
    let mut pseudo = Vec::with_capacity(256);
    pseudo.push(orig_dst_cid.len() as u8);
    pseudo.extend_from_slice(orig_dst_cid);
    for piece in packet {
        pseudo.extend_from_slice(piece);
    }
    Aead::new(Suite::Aes128Gcm, &RETRY_KEY).seal(&RETRY_NONCE, &pseudo, &mut [])
}

/// Whether a Retry packet's tag, the last bytes of `payload`, is valid.
pub(crate) fn is_valid_retry(orig_dst_cid: &[u8], header: &[u8], payload: &[u8]) -> bool {
    let Some(token_len) = payload.len().checked_sub(TAG) else { return false };
    let (token, tag) = payload.split_at(token_len);
    // The key is public, so the comparison need not take constant time.
    retry_tag(orig_dst_cid, &[header, token]) == tag
}
