//! A session ticket of TLS 1.3 (RFC 8446 section 4.6.1).

use std::time::Duration;

use crate::{Suite, schedule};

/// A ticket with its PSK.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Suite of the connection. A resumption may use another one with the same hash, early data may
    /// not.
    pub suite: Suite,
    /// What the client sends: usually a sealed session.
    pub identity: Vec<u8>,
    /// How long the server accepts it, as announced.
    pub lifetime: Duration,
    /// Bytes of early data that are permitted; `None` without early data.
    pub max_early_data: Option<u32>,
    /// The protocol of its connection, which early data has to use again (section 4.2.10).
    pub alpn: Option<String>,
    /// When it was received, on the clock of the caller.
    pub received: Duration,
    pub(crate) age_add: u32,
    pub(crate) psk: Vec<u8>,
}

impl Ticket {
    /// The obfuscated age that is sent: milliseconds since receipt, plus a shift (section
    /// 4.2.11.1).
    pub(crate) fn obfuscated_age(&self, now: Duration, shift_ms: i64) -> u32 {
        let age = now.saturating_sub(self.received).as_millis() as i64;
        (age.wrapping_add(shift_ms) as u32).wrapping_add(self.age_add)
    }

    /// Derives the secret of a new ticket.
    pub(crate) fn derive_psk(suite: Suite, resumption_master: &[u8], nonce: &[u8]) -> Vec<u8> {
        schedule::ticket_psk(suite, resumption_master, nonce)
    }
}

/// Omits the secret.
impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("suite", &self.suite)
            .field("identity_bytes", &self.identity.len())
            .field("lifetime", &self.lifetime)
            .field("max_early_data", &self.max_early_data)
            .field("alpn", &self.alpn)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8446_4_2_11_1_the_age_is_obfuscated_and_wraps() {
        let ticket = Ticket {
            suite: Suite::Aes128GcmSha256,
            identity: vec![1],
            lifetime: Duration::from_secs(60),
            max_early_data: None,
            alpn: None,
            received: Duration::from_secs(1),
            age_add: u32::MAX - 500,
            psk: vec![7; 32],
        };
        assert_eq!(ticket.obfuscated_age(Duration::from_millis(1_200), 0), u32::MAX - 300);
        assert_eq!(ticket.obfuscated_age(Duration::from_millis(2_000), 0), 499);
        assert_eq!(ticket.obfuscated_age(Duration::from_millis(2_000), -1_000), u32::MAX - 500);
        assert!(!format!("{ticket:?}").contains("psk"));
    }
}
