//! A cluster: its masters are asked who owns which slots, and a map counts while most of them
//! agree on it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use firstflight_replay::Unknown;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Owner;
use super::slots::{SLOTS, SlotMap, number_in, slot_of};
use super::votes::Votes;
use crate::link::Link;
use crate::master::{Confirmed, Master, Place, Running};
use crate::settings::{REQUEST_TIMEOUT, Settings};
use crate::{Address, StoreError};

/// How often the masters are asked at least.
const PERIOD: Duration = Duration::from_secs(1);

/// How often at most, however often somebody finds the map to be wrong.
const PAUSE: Duration = Duration::from_millis(100);

/// A cluster as it is known now.
pub(crate) struct Cluster {
    view: Arc<RwLock<View>>,
    known: watch::Receiver<bool>,
    settings: Arc<Settings>,
    _task: JoinSet<()>,
}

/// Who owns what.
#[derive(Default)]
struct View {
    map: Option<SlotMap>,
    masters: HashMap<String, Known>,
    /// When a slot last came to another owner.
    moved: HashMap<u16, Duration>,
}

struct Known {
    running: Running,
    confirmed: Arc<Confirmed>,
    address: Address,
    epoch_slot: u16,
}

impl Cluster {
    pub(super) fn start(settings: &Arc<Settings>, seeds: Vec<Address>) -> Self {
        let view = Arc::new(RwLock::new(View::default()));
        let (sender, known) = watch::channel(false);
        let follower = Follower {
            settings: settings.clone(),
            seeds,
            view: view.clone(),
            known: sender,
            links: HashMap::new(),
            voters: Vec::new(),
            votes: Votes::new(0),
        };
        let mut task = JoinSet::new();
        task.spawn(follower.run());
        Self { view, known, settings: settings.clone(), _task: task }
    }

    pub(super) fn owner(&self, key: &[u8]) -> Result<Owner, Unknown> {
        let slot = slot_of(key);
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let node = view.map.as_ref().and_then(|map| map.owner(slot)).ok_or(Unknown::Absent)?;
        let known = view.masters.get(node).ok_or(Unknown::Absent)?;
        let window = self.settings.shared.recording_window();
        let moved = view.moved.get(&slot);
        let young = moved.is_some_and(|at| self.settings.now().saturating_sub(*at) < window);
        let settled = if young { Err(Unknown::Window) } else { Ok(()) };
        Ok(Owner { master: known.running.master.clone(), settled })
    }

    pub(super) async fn owner_soon(&self, key: &[u8]) -> Result<Arc<Master>, StoreError> {
        let mut known = self.known.clone();
        let waited = tokio::time::timeout(REQUEST_TIMEOUT, known.wait_for(|known| *known)).await;
        if waited.is_err() {
            return Err(StoreError::Absent("no node of the cluster is reached".to_owned()));
        }
        self.owner(key)
            .map(|owner| owner.master)
            .map_err(|_| StoreError::Absent("no node of the cluster has the slot".to_owned()))
    }

    pub(super) fn clock_offset_micros(&self) -> Option<i64> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.masters.values().filter_map(|known| known.running.master.clock_offset_micros()).min()
    }

    pub(super) fn resting(&self) -> Option<Unknown> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = view.masters.values().map(|known| known.running.master.resting());
        // One that answers is reason enough to ask: whose key it is, is not known yet.
        all.try_fold(Some(Unknown::Absent), |_, resting| resting.map(Some)).flatten()
    }
}

/// The task that keeps the view up to date.
struct Follower {
    settings: Arc<Settings>,
    seeds: Vec<Address>,
    view: Arc<RwLock<View>>,
    known: watch::Sender<bool>,
    links: HashMap<Address, Link>,
    /// The masters of the map that is voted on.
    voters: Vec<Address>,
    votes: Votes<SlotMap>,
}

impl Follower {
    async fn run(mut self) {
        let period = PERIOD.min(self.settings.shared.confirmation / 4);
        loop {
            self.ask_all().await;
            if let Some((map, asked)) = self.votes.majority() {
                let map = map.clone();
                self.adopt(&map, asked);
                self.elect(&map);
            }
            tokio::time::sleep(PAUSE).await;
            let _ = tokio::time::timeout(period, self.settings.refresh.notified()).await;
        }
    }

    /// Asks all voters. If not even one answers, any seed's word makes new ones.
    async fn ask_all(&mut self) {
        let voters = self.voters.clone();
        let asked = self.settings.now();
        let mut heard = false;
        for (address, map) in self.ask(voters).await {
            heard = true;
            let voter = self.voters.iter().position(|voter| *voter == address);
            voter.into_iter().for_each(|voter| self.votes.cast(voter, Some(map.clone()), asked));
        }
        if !heard {
            let found = self.ask(self.seeds.clone()).await.into_iter().next();
            if let Some((_, map)) = found {
                self.elect(&map);
                self.settings.refresh.notify_one();
            }
        }
    }

    /// The maps that these nodes give, asked at once.
    async fn ask(&mut self, addresses: Vec<Address>) -> Vec<(Address, SlotMap)> {
        let mut asked = JoinSet::new();
        for address in addresses {
            let link = self.links.remove(&address);
            let settings = self.settings.clone();
            asked.spawn(async move {
                let reply =
                    tokio::time::timeout(REQUEST_TIMEOUT, ask(link, &address, &settings)).await;
                let silent = || Err(StoreError::Absent("it is silent".to_owned()));
                (reply.unwrap_or_else(|_| silent()), address)
            });
        }
        let mut maps = Vec::new();
        while let Some(Ok((reply, address))) = asked.join_next().await {
            match reply {
                Ok((link, map)) => {
                    self.links.insert(address.clone(), link);
                    maps.extend(map.map(|map| (address, map)));
                }
                Err(error) => tracing::debug!(node = %address, "{error}"),
            }
        }
        maps
    }

    /// Makes the masters of `map` the voters, unless they are already.
    fn elect(&mut self, map: &SlotMap) {
        let voters: Vec<_> = map.masters().iter().map(|range| range.address.clone()).collect();
        if voters != self.voters {
            self.votes = Votes::new(voters.len());
            self.links.retain(|address, _| voters.contains(address));
            self.voters = voters;
        }
    }

    /// Takes over a map on which most masters agreed when they were asked.
    fn adopt(&self, map: &SlotMap, asked: Duration) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if view.map.as_ref() != Some(map) {
            view.note_moves(map, self.settings.now());
            tracing::info!(masters = map.masters().len(), "the cluster's slots are known");
        }
        let mut masters = HashMap::new();
        for range in map.masters() {
            let kept = view
                .masters
                .remove(&range.node)
                .filter(|known| known.address == range.address && known.epoch_slot == range.first);
            let known = kept.unwrap_or_else(|| self.meet(&range.address, range.first));
            known.confirmed.set(range.address.clone(), map.slots_of(&range.node), asked);
            masters.insert(range.node.clone(), known);
        }
        view.masters = masters;
        view.map = Some(map.clone());
        self.known.send_replace(true);
    }

    /// A master that is new, or whose epoch record has to lie in another slot now.
    fn meet(&self, address: &Address, epoch_slot: u16) -> Known {
        let confirmed = Arc::new(Confirmed::default());
        let place = Place::fixed(address.clone(), Some(confirmed.clone()));
        let tag = format!(":{{{}}}", number_in(epoch_slot));
        let running = Master::start(&self.settings, place, &tag);
        Known { running, confirmed, address: address.clone(), epoch_slot }
    }
}

impl View {
    /// Remembers which slots come to another owner. What is first learnt has not moved: if its
    /// owner is new, or was given it while this node did not run, its epoch is new too.
    fn note_moves(&mut self, map: &SlotMap, now: Duration) {
        let Some(old) = &self.map else { return };
        let moved = (0..SLOTS).filter(|slot| old.owner(*slot) != map.owner(*slot));
        let moved: Vec<_> = moved.collect();
        self.moved.extend(moved.into_iter().map(|slot| (slot, now)));
    }
}

async fn ask(
    link: Option<Link>,
    address: &Address,
    settings: &Settings,
) -> Result<(Link, Option<SlotMap>), StoreError> {
    let mut link = match link {
        Some(link) => link,
        None => Link::open(address, &settings.access).await?,
    };
    let reply = link.command(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    let map = SlotMap::parse(&reply, address);
    Ok((link, map))
}
