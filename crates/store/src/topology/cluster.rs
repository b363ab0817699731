//! A cluster: polls its masters for the slot map, which counts while most of them agree on it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use firstflight_replay::Unknown;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Owner;
use super::Votes;
use super::slots::{SLOTS, SlotMap, number_with_slot, slot_of};
use crate::connection::Connection;
use crate::master::{Confirmations, Master, MasterAddress, MasterHandle};
use crate::settings::{REQUEST_TIMEOUT, Settings};
use crate::{Address, StoreError};

/// Maximum interval between polls of the masters.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between polls, however often the map turns out to be outdated.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// After this many confirmation times without an agreement of most voters, the seeds are queried
/// for new ones. By then claims have long stopped counting.
const CONFIRMATIONS_UNTIL_RESEED: u32 = 10;

/// A cluster, with its current slot map.
pub(crate) struct Cluster {
    view: Arc<RwLock<ClusterView>>,
    has_map: watch::Receiver<bool>,
    settings: Arc<Settings>,
    tasks: JoinSet<()>,
}

/// The slot map, and the masters in it.
#[derive(Default)]
struct ClusterView {
    map: Option<SlotMap>,
    masters: HashMap<String, MasterEntry>,
    /// When each slot last changed its owner.
    moved: HashMap<u16, Duration>,
}

struct MasterEntry {
    handle: MasterHandle,
    confirmations: Arc<Confirmations>,
    address: Address,
    epoch_slot: u16,
}

impl Cluster {
    pub(super) fn start(settings: &Arc<Settings>, seeds: Vec<Address>) -> Self {
        let (mut cluster, poller) = Self::new(settings, seeds);
        cluster.tasks.spawn(poller.run());
        cluster
    }

    /// Also returns what keeps the map up to date.
    fn new(settings: &Arc<Settings>, seeds: Vec<Address>) -> (Self, MapPoller) {
        let view = Arc::new(RwLock::new(ClusterView::default()));
        let (sender, has_map) = watch::channel(false);
        let poller = MapPoller {
            settings: settings.clone(),
            seeds,
            view: view.clone(),
            has_map: sender,
            connections: HashMap::new(),
            voters: Vec::new(),
            votes: Votes::new(0),
            agreed_at: Duration::ZERO,
            reseeded: false,
        };
        (Self { view, has_map, settings: settings.clone(), tasks: JoinSet::new() }, poller)
    }

    pub(super) fn owner(&self, key: &[u8]) -> Result<Owner, Unknown> {
        let slot = slot_of(key);
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let node = view.map.as_ref().and_then(|map| map.owner(slot)).ok_or(Unknown::Absent)?;
        let entry = view.masters.get(node).ok_or(Unknown::Absent)?;
        let window = self.settings.shared.recording_window();
        let moved = view.moved.get(&slot);
        let moved_recently =
            moved.is_some_and(|at| self.settings.now().saturating_sub(*at) < window);
        let settled = if moved_recently { Err(Unknown::Window) } else { Ok(()) };
        Ok(Owner { master: entry.handle.master.clone(), settled })
    }

    pub(super) async fn wait_for_owner(&self, key: &[u8]) -> Result<Arc<Master>, StoreError> {
        let mut has_map = self.has_map.clone();
        // The result would keep the channel locked, for which `apply` waits with the view locked.
        let waited = has_map.wait_for(|has_map| *has_map);
        let is_missing = tokio::time::timeout(REQUEST_TIMEOUT, waited).await.is_err();
        if is_missing {
            return Err(StoreError::Absent("no node of the cluster replies".to_owned()));
        }
        self.owner(key)
            .map(|owner| owner.master)
            .map_err(|_| StoreError::Absent("no node of the cluster has the slot".to_owned()))
    }

    pub(super) fn clock_offset_micros(&self) -> Option<i64> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.masters.values().filter_map(|entry| entry.handle.master.clock_offset_micros()).min()
    }

    /// A reason that each master has, of which one is named.
    pub(super) fn first_reason(
        &self,
        reason: impl Fn(&Master) -> Option<Unknown>,
    ) -> Option<Unknown> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = view.masters.values().map(|entry| reason(&entry.handle.master));
        // One master without is enough to try: the key is not known here.
        all.try_fold(Some(Unknown::Absent), |_, reason| reason.map(Some)).flatten()
    }
}

/// The task that keeps the slot map up to date.
struct MapPoller {
    settings: Arc<Settings>,
    seeds: Vec<Address>,
    view: Arc<RwLock<ClusterView>>,
    has_map: watch::Sender<bool>,
    connections: HashMap<Address, Connection>,
    /// The masters of the last map; each has a vote.
    voters: Vec<Address>,
    votes: Votes<SlotMap>,
    /// When most voters last agreed, or the seeds were last queried for new ones.
    agreed_at: Duration,
    /// Whether the voters come from a seed's map that differs from the map in use.
    reseeded: bool,
}

impl MapPoller {
    async fn run(mut self) {
        let period = POLL_INTERVAL.min(self.settings.shared.confirmation / 4);
        loop {
            self.poll_voters().await;
            if let Some((map, requested_at)) = self.votes.majority() {
                let map = map.clone();
                let voters_changed = self.set_voters(&map);
                // A seed's map may be outdated, so the new voters have to agree first.
                if !(self.reseeded && voters_changed) {
                    self.apply(&map, requested_at);
                }
            }
            tokio::time::sleep(MIN_POLL_INTERVAL).await;
            let _ = tokio::time::timeout(period, self.settings.refresh.notified()).await;
        }
    }

    /// Polls all voters. If none replies, or most have not agreed for long, the first map from a seed
    /// names the new voters: some masters may have been replaced without the consent of most of them
    /// (`CLUSTER FAILOVER TAKEOVER`).
    async fn poll_voters(&mut self) {
        let voters = self.voters.clone();
        let requested_at = self.settings.now();
        let mut any_reply = false;
        for (address, map) in self.fetch_maps(voters).await {
            any_reply = true;
            let voter = self.voters.iter().position(|voter| *voter == address);
            voter
                .into_iter()
                .for_each(|voter| self.votes.cast(voter, Some(map.clone()), requested_at));
        }
        if let Some((_, agreed_at)) = self.votes.majority() {
            self.agreed_at = self.agreed_at.max(agreed_at);
        }
        let disagreeing = requested_at.saturating_sub(self.agreed_at)
            > self.settings.shared.confirmation * CONFIRMATIONS_UNTIL_RESEED;
        if !any_reply || disagreeing {
            // The new voters get the same time to agree.
            self.agreed_at = requested_at;
            let found = self.fetch_maps(self.seeds.clone()).await.into_iter().next();
            if let Some((_, map)) = found {
                self.reseeded |= self.differs_from_view(&map);
                self.set_voters(&map);
                self.settings.refresh.notify_one();
            }
        }
    }

    /// Requests the map from these nodes concurrently.
    async fn fetch_maps(&mut self, addresses: Vec<Address>) -> Vec<(Address, SlotMap)> {
        let mut queries = JoinSet::new();
        for address in addresses {
            let connection = self.connections.remove(&address);
            let settings = self.settings.clone();
            queries.spawn(async move {
                let reply = tokio::time::timeout(
                    REQUEST_TIMEOUT,
                    fetch_maps(connection, &address, &settings),
                )
                .await;
                let timed_out = || Err(StoreError::Absent("no reply".to_owned()));
                (reply.unwrap_or_else(|_| timed_out()), address)
            });
        }
        let mut maps = Vec::new();
        while let Some(Ok((reply, address))) = queries.join_next().await {
            match reply {
                Ok((connection, map)) => {
                    self.connections.insert(address.clone(), connection);
                    maps.extend(map.map(|map| (address, map)));
                }
                Err(error) => tracing::debug!(node = %address, "{error}"),
            }
        }
        maps
    }

    /// Returns whether a map is in use that differs from `map`.
    fn differs_from_view(&self, map: &SlotMap) -> bool {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.map.as_ref().is_some_and(|used| used != map)
    }

    /// Makes the masters of `map` the voters. Returns whether the voters changed.
    fn set_voters(&mut self, map: &SlotMap) -> bool {
        let voters: Vec<_> = map.masters().iter().map(|range| range.address.clone()).collect();
        let changed = voters != self.voters;
        if changed {
            self.votes = Votes::new(voters.len());
            self.connections.retain(|address, _| voters.contains(address));
            self.voters = voters;
        }
        changed
    }

    /// Applies a map on which most masters agreed at `requested_at`.
    fn apply(&mut self, map: &SlotMap, requested_at: Duration) {
        let reseeded = std::mem::take(&mut self.reseeded);
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if reseeded || view.map.as_ref() != Some(map) {
            view.note_moves(map, reseeded, self.settings.now());
            tracing::info!(masters = map.masters().len(), "received the slot map of the cluster");
        }
        let mut masters = HashMap::new();
        for range in map.masters() {
            let kept = view
                .masters
                .remove(&range.node)
                .filter(|entry| entry.address == range.address && entry.epoch_slot == range.first);
            let entry = kept.unwrap_or_else(|| self.add_master(&range.address, range.first));
            entry.confirmations.set(range.address.clone(), map.slots_of(&range.node), requested_at);
            masters.insert(range.node.clone(), entry);
        }
        view.masters = masters;
        view.map = Some(map.clone());
        self.has_map.send_replace(true);
    }

    /// Adds a master that is new, or whose epoch record has to move to another slot.
    fn add_master(&self, address: &Address, epoch_slot: u16) -> MasterEntry {
        let confirmations = Arc::new(Confirmations::default());
        let master_address = MasterAddress::fixed(address.clone(), Some(confirmations.clone()));
        let tag = format!(":{{{}}}", number_with_slot(epoch_slot));
        let handle = Master::start(&self.settings, master_address, &tag);
        MasterEntry { handle, confirmations, address: address.clone(), epoch_slot }
    }
}

impl ClusterView {
    /// Notes which slots change their owner. `all`: any slot may have had another owner meanwhile.
    /// Slots in the first map have not moved: an owner that is new, or got them while this node was
    /// not running, has a new epoch too.
    fn note_moves(&mut self, map: &SlotMap, all: bool, now: Duration) {
        let Some(old) = &self.map else { return };
        let moved = (0..SLOTS).filter(|slot| all || old.owner(*slot) != map.owner(*slot));
        let moved: Vec<_> = moved.collect();
        self.moved.extend(moved.into_iter().map(|slot| (slot, now)));
    }
}

async fn fetch_maps(
    connection: Option<Connection>,
    address: &Address,
    settings: &Settings,
) -> Result<(Connection, Option<SlotMap>), StoreError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => Connection::open(address, &settings.connect_options).await?,
    };
    let reply = connection.command(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    let map = SlotMap::parse(&reply, address);
    Ok((connection, map))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use redis::Value;

    use super::*;
    use crate::{StoreConfig, Topology};

    /// A slot map of one master, at a port on which nothing listens.
    fn map_of(seed: &Address) -> SlotMap {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let master = Value::Array(vec![bulk("127.0.0.1"), Value::Int(1), bulk("node")]);
        let all = i64::from(SLOTS) - 1;
        let range = Value::Array(vec![Value::Int(0), Value::Int(all), master]);
        SlotMap::parse(&Value::Array(vec![range]), seed).unwrap()
    }

    /// In a thread of its own, so that a deadlock fails the test instead of stopping it.
    #[test]
    fn a_map_can_be_applied_while_callers_look_for_an_owner() {
        const TIMES: usize = 20_000;
        let (done, is_done) = channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let _context = runtime.enter();
            let seed = Address::Tcp("127.0.0.1".to_owned(), 1);
            let config = StoreConfig::new(Topology::Cluster { seeds: vec![seed.clone()] });
            let settings = Arc::new(Settings::new(config, || 0).unwrap());
            let (cluster, mut poller) = Cluster::new(&settings, vec![seed.clone()]);
            let map = map_of(&seed);
            poller.apply(&map, Duration::ZERO);
            let callers = runtime.spawn(async move {
                for _ in 0..TIMES {
                    assert!(cluster.wait_for_owner(b"key").await.is_ok());
                }
            });
            while !callers.is_finished() {
                poller.apply(&map, Duration::ZERO);
            }
            done.send(runtime.block_on(callers)).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("no deadlock").unwrap();
    }
}
