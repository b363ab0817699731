//! A master with changing address, which the sentinels report.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firstflight_replay::Slots;
use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Votes;
use crate::connection::{Connection, integer, text};
use crate::master::{Confirmations, MasterAddress};
use crate::settings::{REQUEST_TIMEOUT, Settings};
use crate::{Address, StoreError};

/// Maximum interval between polls of a sentinel.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// State that the tasks of all sentinels share.
struct SentinelWatch {
    settings: Arc<Settings>,
    name: String,
    votes: Mutex<Votes<Address>>,
    master_address: watch::Sender<Option<Address>>,
    confirmations: Arc<Confirmations>,
}

/// Starts to poll `sentinels` for the master called `name`.
pub(super) fn watch(
    settings: &Arc<Settings>,
    sentinels: Vec<Address>,
    name: String,
) -> (MasterAddress, JoinSet<()>) {
    let confirmations = Arc::new(Confirmations::default());
    let (sender, receiver) = watch::channel(None);
    let watch = Arc::new(SentinelWatch {
        settings: settings.clone(),
        name,
        votes: Mutex::new(Votes::new(sentinels.len())),
        master_address: sender,
        confirmations: confirmations.clone(),
    });
    let mut tasks = JoinSet::new();
    for (voter, address) in sentinels.into_iter().enumerate() {
        let watch = watch.clone();
        tasks.spawn(async move { watch.poll(voter, &address).await });
    }
    (MasterAddress { address: receiver, confirmations: Some(confirmations) }, tasks)
}

impl SentinelWatch {
    /// Polls one sentinel until the task is aborted.
    async fn poll(&self, voter: usize, address: &Address) {
        let mut connection = None;
        let mut failing = false;
        // Often enough that one poll may fail.
        let period = POLL_INTERVAL.min(self.settings.shared.confirmation / 4);
        loop {
            let requested_at = self.settings.now();
            let reply =
                tokio::time::timeout(REQUEST_TIMEOUT, self.query(&mut connection, address)).await;
            match reply.unwrap_or_else(|_| Err(StoreError::Absent("no reply".to_owned()))) {
                Ok(master) => {
                    failing = false;
                    self.record_vote(voter, master, requested_at);
                }
                Err(error) => {
                    connection = None;
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(sentinel = %address, "{error}");
                    }
                }
            }
            tokio::time::sleep(period).await;
        }
    }

    async fn query(
        &self,
        connection: &mut Option<Connection>,
        address: &Address,
    ) -> Result<Option<Address>, StoreError> {
        // Taken out, because a cancelled connection cannot be used any more.
        let mut open = match connection.take() {
            Some(connection) => connection,
            None => Connection::open(address, &self.settings.sentinel_connect_options).await?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let reply = open.command(&command).await?;
        *connection = Some(open);
        Ok(parse_master_address(&reply, address))
    }

    /// Follows the majority. Without one the address stays, and the master's replies stop counting
    /// when the last confirmation is too old.
    fn record_vote(&self, voter: usize, master: Option<Address>, requested_at: Duration) {
        let mut votes = self.votes.lock().unwrap_or_else(PoisonError::into_inner);
        votes.cast(voter, master, requested_at);
        let Some((address, requested_at)) = votes.majority() else { return };
        let address = address.clone();
        self.confirmations.set(address.clone(), Slots::ALL, requested_at);
        if self.master_address.borrow().as_ref() != Some(&address) {
            tracing::info!(master = %address, "the sentinels report a new master");
            self.master_address.send_replace(Some(address));
        }
    }
}

/// Parses host and port, two texts. Returns `None` for any other reply.
fn parse_master_address(reply: &Value, responder: &Address) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = parts.as_slice() else { return None };
    super::address(text(host)?, integer(port)?, responder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_used_unchanged() {
        let responder = Address::Tcp("sentinel".to_owned(), 26_379);
        let reply = |parts: &[&str]| {
            Value::Array(parts.iter().map(|p| Value::BulkString(p.as_bytes().to_vec())).collect())
        };
        for host in ["redis-0.redis.svc", "192.0.2.7", "2001:db8::7"] {
            let expected = Some(Address::Tcp(host.to_owned(), 6379));
            assert_eq!(parse_master_address(&reply(&[host, "6379"]), &responder), expected);
        }
        for wrong in [&["h"][..], &["h", "0"], &["h", "65536"], &["h", "x"], &["h", "1", "2"]] {
            assert_eq!(parse_master_address(&reply(wrong), &responder), None, "{wrong:?}");
        }
        assert_eq!(parse_master_address(&Value::Nil, &responder), None);
    }
}
