//! The heartbeat of a master: who answers, whether it has recorded without a gap, and when all
//! connections are to be made again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::{Breaker, Continuity, Epoch, EpochWrite, Heartbeat, Role, Unknown};
use redis::Value;

use super::batch::{epoch_of, epoch_questions, garbled};
use super::info::Report;
use super::voice::StateLogger;
use super::{Life, Master};
use crate::link::{Link, epoch_age, error_of, integer, text, time};
use crate::settings::{REQUEST_TIMEOUT, RETRY, millis};
use crate::{Address, StoreError};

/// The sections of `INFO` that are requested, one by one: old stores take no more.
const SECTIONS: [&str; 4] = ["server", "replication", "memory", "stats"];

const OTHER_SETTINGS: &str = "another node counts by other times; make freshness, clock_margin \
                              and the store's mode the same on all nodes";

/// Runs for ever.
pub(super) async fn run(master: Arc<Master>) {
    let mut keeper =
        HeartbeatTask { master: &master, voice: StateLogger::default(), mark: 0, refused: None };
    let mut place = master.place.address.clone();
    loop {
        let address = place.borrow_and_update().clone();
        let Some(address) = address else {
            keeper.voice.nowhere();
            if place.changed().await.is_err() {
                return;
            }
            continue;
        };
        let error = tokio::select! {
            error = keeper.attend(&address) => Some(error),
            Ok(()) = place.changed() => None,
        };
        master.life.send_replace(None);
        master.continuity().disconnected();
        let Some(error) = error else {
            // How its predecessor did is nothing to the new one.
            *master.breaker() = Breaker::new();
            continue;
        };
        keeper.voice.lost(&address, &error);
        master.set_trouble(Some(error));
        master.settings.refresh.notify_one();
        tokio::time::sleep(RETRY).await;
    }
}

struct HeartbeatTask<'a> {
    master: &'a Master,
    voice: StateLogger,
    /// The number of this node's last mark.
    mark: u64,
    /// Why the last epoch could not be written.
    refused: Option<StoreError>,
}

impl HeartbeatTask<'_> {
    /// Beats until something is wrong with the connection.
    async fn attend(&mut self, address: &Address) -> StoreError {
        match self.beat_on(address).await {
            Ok(never) => match never {},
            Err(error) => {
                self.master.feel(false);
                error
            }
        }
    }

    async fn beat_on(&mut self, address: &Address) -> Result<std::convert::Infallible, StoreError> {
        self.wait_for_breaker().await;
        let mut link = Link::open(address, &self.master.settings.access).await?;
        loop {
            let began = Instant::now();
            let beat = self.ask(&mut link, address);
            let beat =
                tokio::time::timeout(REQUEST_TIMEOUT, beat).await.map_err(|_| silent())??;
            // A response that comes later than a claim may wait is no sign of life for claims.
            self.master.feel(began.elapsed() <= self.master.settings.budget);
            self.follow(&mut link, address, &beat).await?;
            tokio::time::sleep(Continuity::HEARTBEAT).await;
            self.wait_for_breaker().await;
        }
    }

    /// A store that does not answer is asked less and less often.
    async fn wait_for_breaker(&self) {
        loop {
            let now = self.master.settings.now();
            let wait = {
                let mut breaker = self.master.breaker();
                if breaker.may_probe(now) {
                    return;
                }
                breaker.next_probe().unwrap_or(now).saturating_sub(now)
            };
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
    }

    async fn ask(&mut self, link: &mut Link, address: &Address) -> Result<Heartbeat, StoreError> {
        let mut request = Vec::new();
        for section in SECTIONS {
            redis::cmd("INFO").arg(section).write_packed_command(&mut request);
        }
        request.extend(epoch_questions(&self.master.epoch_key));
        self.mark += 1;
        redis::cmd("GET").arg(&self.master.mark_key).write_packed_command(&mut request);
        let mut set = redis::cmd("SET");
        set.arg(&self.master.mark_key).arg(self.mark);
        set.arg("PX").arg(millis(Heartbeat::MARK_LIFE)).write_packed_command(&mut request);
        let mut values = link.exchange(&request, SECTIONS.len() + 5).await?;
        // A replica, or a store without memory, does not take it.
        let marked = (values.pop() == Some(Value::Okay)).then_some(self.mark);
        let mark = values.pop().as_ref().and_then(integer);
        if let Some(error) = values.iter().find_map(error_of) {
            return Err(error);
        }
        let (sections, [epoch, now, left]) = match values.split_last_chunk() {
            Some((sections, last)) => (sections, last),
            None => return Err(garbled()),
        };
        let report = Report::parse(&joined(sections)).ok_or_else(garbled)?;
        Ok(Heartbeat {
            run_id: report.run_id,
            replication_id: report.replication_id,
            role: if report.is_master { Role::Master } else { Role::Replica },
            replication_offset: report.replication_offset,
            maxmemory: report.maxmemory,
            maxmemory_policy: report.maxmemory_policy,
            evicted_keys: report.evicted_keys,
            slots: self.master.slots(address),
            epoch: epoch_of(epoch)?,
            epoch_age: epoch_age(left),
            store_time: time(now).ok_or_else(garbled)?,
            node_time: self.master.settings.node_time(),
            mark: mark.and_then(|mark| u64::try_from(mark).ok()),
            marked,
            confirmation: self.master.confirmation(address),
        })
    }

    /// Does what a heartbeat asks for.
    async fn follow(
        &mut self,
        link: &mut Link,
        address: &Address,
        beat: &Heartbeat,
    ) -> Result<(), StoreError> {
        self.master.set_store_clock(beat.store_time);
        let now = self.master.settings.now();
        let orders = self.master.continuity().heartbeat(beat, now);
        if let Some(write) = orders.write {
            self.write(link, address, beat, &write).await?;
        }
        if let Some(why) = orders.dropped {
            return Err(StoreError::Refused(format!("it is not what it was ({why:?})")));
        }
        self.publish(address, beat);
        let objection = self.objection(beat);
        self.voice.beat(address, objection, beat.store_time, beat.node_time);
        Ok(())
    }

    async fn write(
        &mut self,
        link: &mut Link,
        address: &Address,
        beat: &Heartbeat,
        write: &EpochWrite,
    ) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(&self.master.epoch_key).arg(write.epoch.to_string());
        set.arg("PX").arg(millis(write.life));
        let written = tokio::time::timeout(REQUEST_TIMEOUT, link.command(&set)).await;
        match written.map_err(|_| silent())? {
            Ok(_) => {
                self.refused = None;
                self.tell_epoch(address, beat);
                Ok(())
            }
            // Out of memory, for example: claims are refused likewise, and it is tried again.
            Err(error @ StoreError::Refused(_)) => {
                if self.refused.as_ref() != Some(&error) {
                    self.voice.no_epoch(address, &error);
                }
                self.refused = Some(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn tell_epoch(&self, address: &Address, beat: &Heartbeat) {
        let shared = &self.master.settings.shared;
        let differs = |epoch: &Epoch| {
            epoch.run_id == beat.run_id
                && epoch.replication_id == beat.replication_id
                && epoch.settings != *shared
        };
        match beat.epoch.as_ref().is_some_and(differs) {
            // Both undo each other's epoch with every heartbeat: that is for one line in a while.
            true => self.master.complaints.warn(address, OTHER_SETTINGS),
            false => self.voice.epoch(address, shared.recording_window()),
        }
    }

    /// Lets the lanes connect, if this is the first heartbeat of a life.
    fn publish(&self, address: &Address, beat: &Heartbeat) {
        if self.master.life.borrow().is_some() {
            return;
        }
        self.master.set_trouble(None);
        self.master.life.send_replace(Some(Arc::new(Life {
            address: address.clone(),
            run_id: beat.run_id.clone(),
            replication_id: beat.replication_id.clone(),
        })));
    }

    /// Why claims do not count, as far as a heartbeat shows it.
    fn objection(&self, beat: &Heartbeat) -> Option<Unknown> {
        let settings = &self.master.settings;
        let off = beat.store_time.abs_diff(beat.node_time) > settings.shared.clock_margin;
        let standing = self.master.continuity().status(settings.now()).err();
        standing.or(off.then_some(Unknown::Clock))
    }
}

fn joined(sections: &[Value]) -> String {
    sections.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

fn silent() -> StoreError {
    StoreError::Absent("it is silent".to_owned())
}
