//! A master that moves, and sentinels that say where to.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firstflight_replay::Slots;
use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::votes::Votes;
use crate::link::{Link, integer, text};
use crate::master::{Confirmed, Place};
use crate::settings::{REQUEST_TIMEOUT, Settings};
use crate::{Address, StoreError};

/// How often each sentinel is asked at least.
const PERIOD: Duration = Duration::from_secs(1);

/// What the sentinels' tasks have in common.
struct Watch {
    settings: Arc<Settings>,
    name: String,
    votes: Mutex<Votes<Address>>,
    place: watch::Sender<Option<Address>>,
    confirmed: Arc<Confirmed>,
}

/// Starts to ask `sentinels` for the master called `name`.
pub(super) fn watch(
    settings: &Arc<Settings>,
    sentinels: Vec<Address>,
    name: String,
) -> (Place, JoinSet<()>) {
    let confirmed = Arc::new(Confirmed::default());
    let (sender, receiver) = watch::channel(None);
    let watch = Arc::new(Watch {
        settings: settings.clone(),
        name,
        votes: Mutex::new(Votes::new(sentinels.len())),
        place: sender,
        confirmed: confirmed.clone(),
    });
    let mut tasks = JoinSet::new();
    for (voter, address) in sentinels.into_iter().enumerate() {
        let watch = watch.clone();
        tasks.spawn(async move { watch.follow(voter, &address).await });
    }
    (Place { address: receiver, confirmed: Some(confirmed) }, tasks)
}

impl Watch {
    /// Asks one sentinel for ever.
    async fn follow(&self, voter: usize, address: &Address) {
        let mut link = None;
        let mut troubled = false;
        // Often enough that one response may fail.
        let period = PERIOD.min(self.settings.shared.confirmation / 4);
        loop {
            let asked = self.settings.now();
            let reply = tokio::time::timeout(REQUEST_TIMEOUT, self.ask(&mut link, address)).await;
            match reply.unwrap_or_else(|_| Err(StoreError::Absent("it is silent".to_owned()))) {
                Ok(named) => {
                    troubled = false;
                    self.hear(voter, named, asked);
                }
                Err(error) => {
                    link = None;
                    if !std::mem::replace(&mut troubled, true) {
                        tracing::warn!(sentinel = %address, "{error}");
                    }
                }
            }
            tokio::time::sleep(period).await;
        }
    }

    async fn ask(
        &self,
        link: &mut Option<Link>,
        address: &Address,
    ) -> Result<Option<Address>, StoreError> {
        // Taken out: given up half-way it is good for nothing more.
        let mut open = match link.take() {
            Some(link) => link,
            None => Link::open(address, &self.settings.sentinel_access).await?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let reply = open.command(&command).await?;
        *link = Some(open);
        Ok(named(&reply, address))
    }

    /// Follows the majority; while there is none, the master stays where it was, and its word
    /// stops to count when the last confirmation is too old.
    fn hear(&self, voter: usize, named: Option<Address>, asked: Duration) {
        let mut votes = self.votes.lock().unwrap_or_else(PoisonError::into_inner);
        votes.cast(voter, named, asked);
        let Some((address, asked)) = votes.majority() else { return };
        let address = address.clone();
        self.confirmed.set(address.clone(), Slots::ALL, asked);
        if self.place.borrow().as_ref() != Some(&address) {
            tracing::info!(master = %address, "the sentinels name a master");
            self.place.send_replace(Some(address));
        }
    }
}

/// Host and port, as two texts; whatever else is none.
fn named(reply: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = parts.as_slice() else { return None };
    super::address(text(host)?, integer(port)?, asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_taken_as_they_are() {
        let asked = Address::Tcp("sentinel".to_owned(), 26_379);
        let reply = |parts: &[&str]| {
            Value::Array(parts.iter().map(|p| Value::BulkString(p.as_bytes().to_vec())).collect())
        };
        for host in ["redis-0.redis.svc", "192.0.2.7", "2001:db8::7"] {
            let wanted = Some(Address::Tcp(host.to_owned(), 6379));
            assert_eq!(named(&reply(&[host, "6379"]), &asked), wanted);
        }
        for wrong in [&["h"][..], &["h", "0"], &["h", "65536"], &["h", "x"], &["h", "1", "2"]] {
            assert_eq!(named(&reply(wrong), &asked), None, "{wrong:?}");
        }
        assert_eq!(named(&Value::Nil, &asked), None);
    }
}
