//! Address tokens of QUIC: which ones another node has accepted.

use firstflight_quic::TokenSerial;
use tracing::debug;

use crate::handshake::tickets::TicketRing;

impl TicketRing {
    /// Spends a token in the whole cluster, within the store's budget. Whether it was spent before.
    /// `None`: nobody can say; then this process's own word counts.
    ///
    /// A bit a token in the store, by issuer and number. A block of them is kept until the keys are
    /// dead under which its tokens were sealed.
    pub(crate) async fn spend_everywhere(&self, token: TokenSerial) -> Option<bool> {
        let store = &self.sessions.as_ref()?.store;
        let schedule = self.keys.schedule();
        let life = schedule.rotation() + schedule.lifetime();
        let TokenSerial { issuer, number } = token;
        let key = format!("token:{issuer:016x}:{}", number / BLOCK);
        match store.set_bit(&key, (number % BLOCK) as u32, life).await {
            Ok(spent) => Some(spent),
            Err(error) => {
                debug!("whether an address token is spent: {error}");
                None
            }
        }
    }
}

/// Bits of a record: 4 KiB, which tokens that are issued together share.
const BLOCK: u64 = 32_768;
