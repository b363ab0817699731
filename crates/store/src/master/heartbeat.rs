//! The heartbeat of a master: checks which process responds, whether it has recorded without a gap,
//! and when all connections have to be opened again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::{Breaker, Continuity, Epoch, EpochWrite, Heartbeat, Mark, Role, Unknown};
use redis::Value;

use super::batch::{epoch_of, epoch_queries};
use super::logging::StateLogger;
use super::{Incarnation, MARK_BITS, Master};
use crate::connection::{Connection, epoch_age, error_of, integer, text, time, unexpected_reply};
use crate::settings::{REQUEST_TIMEOUT, RETRY_DELAY, millis};
use crate::{Address, StoreError};

/// The sections of `INFO`, requested one by one: old stores accept only one per command.
const SECTIONS: [&str; 4] = ["server", "replication", "memory", "stats"];

const OTHER_SETTINGS: &str = "another node has other settings; set freshness, clock_margin and \
                              the store's mode to the same values on all nodes";

/// Runs until its task is aborted, or no address is known and none can follow.
pub(super) async fn run(master: Arc<Master>) {
    let mut heartbeat = HeartbeatTask {
        master: &master,
        logger: StateLogger::default(),
        mark: 0,
        epoch_error: None,
    };
    let mut master_address = master.master_address.address.clone();
    loop {
        let address = master_address.borrow_and_update().clone();
        let Some(address) = address else {
            heartbeat.logger.no_address();
            if master_address.changed().await.is_err() {
                return;
            }
            continue;
        };
        let error = tokio::select! {
            error = heartbeat.serve_once(&address) => Some(error),
            Ok(()) = master_address.changed() => None,
        };
        master.incarnation.send_replace(None);
        master.continuity().disconnected();
        let Some(error) = error else {
            // Failures of the previous master do not count for the new one.
            *master.breaker() = Breaker::new();
            continue;
        };
        heartbeat.logger.lost(&address, &error);
        master.set_last_error(Some(error));
        master.settings.refresh.notify_one();
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

struct HeartbeatTask<'a> {
    master: &'a Master,
    logger: StateLogger,
    /// The number of this node's last mark; see [`Master::mark_key`].
    mark: u64,
    /// Why the last epoch could not be written.
    epoch_error: Option<StoreError>,
}

impl HeartbeatTask<'_> {
    /// Sends heartbeats until the connection fails.
    async fn serve_once(&mut self, address: &Address) -> StoreError {
        match self.run_heartbeats(address).await {
            Ok(never) => match never {},
            Err(error) => {
                self.master.record_outcome(Instant::now(), false);
                error
            }
        }
    }

    async fn run_heartbeats(
        &mut self,
        address: &Address,
    ) -> Result<std::convert::Infallible, StoreError> {
        self.wait_for_breaker().await;
        let mut connection =
            Connection::open(address, &self.master.settings.connect_options).await?;
        self.mark = ((self.mark >> MARK_BITS) + 1) << MARK_BITS;
        loop {
            let started = Instant::now();
            let heartbeat = self.query(&mut connection, address);
            let heartbeat = tokio::time::timeout(REQUEST_TIMEOUT, heartbeat)
                .await
                .map_err(|_| timed_out())??;
            // A reply later than the budget shows that claims would time out.
            let in_time = started.elapsed() <= self.master.settings.budget;
            self.master.record_outcome(started, in_time);
            self.handle(&mut connection, address, &heartbeat).await?;
            tokio::time::sleep(Continuity::HEARTBEAT).await;
            self.wait_for_breaker().await;
        }
    }

    /// Waits until the breaker allows an attempt: a store that does not reply is tried less often.
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

    async fn query(
        &mut self,
        connection: &mut Connection,
        address: &Address,
    ) -> Result<Heartbeat, StoreError> {
        let mut request = Vec::new();
        for section in SECTIONS {
            redis::cmd("INFO").arg(section).write_packed_command(&mut request);
        }
        request.extend(epoch_queries(&self.master.epoch_key));
        self.mark += 1;
        let confirmed = self.master.continuity().mark().map_or(self.mark, Mark::number);
        let confirmed = self.master.mark_key(confirmed);
        redis::cmd("GET").arg(confirmed).write_packed_command(&mut request);
        let mut set = redis::cmd("SET");
        set.arg(self.master.mark_key(self.mark)).arg(self.mark);
        set.arg("PX").arg(millis(Heartbeat::MARK_LIFETIME)).write_packed_command(&mut request);
        let mut values = connection.exchange(&request, SECTIONS.len() + 5).await?;
        // A replica, or a store that is out of memory, refuses the mark.
        let marked = (values.pop() == Some(Value::Okay)).then_some(self.mark);
        let mark = values.pop().as_ref().and_then(integer);
        if let Some(error) = values.iter().find_map(error_of) {
            return Err(error);
        }
        let (sections, [epoch, now, ttl]) = match values.split_last_chunk() {
            Some((sections, last)) => (sections, last),
            None => return Err(unexpected_reply()),
        };
        let info = ServerInfo::parse(&join_sections(sections)).ok_or_else(unexpected_reply)?;
        Ok(Heartbeat {
            run_id: info.run_id,
            replication_id: info.replication_id,
            role: if info.is_master { Role::Master } else { Role::Replica },
            replication_offset: info.replication_offset,
            maxmemory: info.maxmemory,
            maxmemory_policy: info.maxmemory_policy,
            evicted_keys: info.evicted_keys,
            slots: self.master.slots(address),
            epoch: epoch_of(epoch)?,
            epoch_age: epoch_age(ttl),
            store_time: time(now).ok_or_else(unexpected_reply)?,
            node_time: self.master.settings.node_time(),
            mark: mark.and_then(|mark| u64::try_from(mark).ok()),
            marked,
            confirmation: self.master.confirmation(address),
        })
    }

    /// Acts on the result of a heartbeat.
    async fn handle(
        &mut self,
        connection: &mut Connection,
        address: &Address,
        heartbeat: &Heartbeat,
    ) -> Result<(), StoreError> {
        self.master.set_store_clock(heartbeat.store_time);
        let now = self.master.settings.now();
        let actions = self.master.continuity().heartbeat(heartbeat, now);
        if let Some(write) = actions.write {
            self.write(connection, address, heartbeat, &write).await?;
        }
        if let Some(why) = actions.dropped {
            return Err(StoreError::Refused(format!(
                "it is not the same store as before ({why:?})"
            )));
        }
        self.publish(address, heartbeat);
        let counted = self.master.continuity().check_claims(&heartbeat.observation(), now);
        // A store that refuses the mark refuses claims too.
        let refused = heartbeat.marked.is_none().then_some(Unknown::Refused);
        self.master.set_claim_problem(counted.err().or(refused));
        let claim_problem = self.claim_problem(heartbeat);
        self.logger.heartbeat(address, claim_problem, heartbeat.store_time, heartbeat.node_time);
        Ok(())
    }

    async fn write(
        &mut self,
        connection: &mut Connection,
        address: &Address,
        heartbeat: &Heartbeat,
        write: &EpochWrite,
    ) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(&self.master.epoch_key).arg(write.epoch.to_string());
        set.arg("PX").arg(millis(write.lifetime));
        let written = tokio::time::timeout(REQUEST_TIMEOUT, connection.command(&set)).await;
        match written.map_err(|_| timed_out())? {
            Ok(_) => {
                self.epoch_error = None;
                self.log_epoch(address, heartbeat);
                Ok(())
            }
            // Out of memory, for example. Claims are refused too, and the next heartbeat retries.
            Err(error @ StoreError::Refused(_)) => {
                if self.epoch_error.as_ref() != Some(&error) {
                    self.logger.no_epoch(address, &error);
                }
                self.epoch_error = Some(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn log_epoch(&self, address: &Address, heartbeat: &Heartbeat) {
        let shared = &self.master.settings.shared;
        let differs = |epoch: &Epoch| {
            epoch.run_id == heartbeat.run_id
                && epoch.replication_id == heartbeat.replication_id
                && epoch.settings != *shared
        };
        match heartbeat.epoch.as_ref().is_some_and(differs) {
            // The two nodes replace each other's epoch with every heartbeat: limit the log.
            true => self.master.claim_warnings.warn(address, OTHER_SETTINGS),
            false => self.logger.epoch(address, shared.recording_window()),
        }
    }

    /// Lets the workers connect, after the first heartbeat of an incarnation.
    fn publish(&self, address: &Address, heartbeat: &Heartbeat) {
        if self.master.incarnation.borrow().is_some() {
            return;
        }
        self.master.set_last_error(None);
        self.master.incarnation.send_replace(Some(Arc::new(Incarnation {
            address: address.clone(),
            run_id: heartbeat.run_id.clone(),
            replication_id: heartbeat.replication_id.clone(),
        })));
    }

    /// Returns why claims do not count, as far as a heartbeat shows it.
    fn claim_problem(&self, heartbeat: &Heartbeat) -> Option<Unknown> {
        let settings = &self.master.settings;
        let clock_differs =
            heartbeat.store_time.abs_diff(heartbeat.node_time) > settings.shared.clock_margin;
        let problem = self.master.continuity().status(settings.now()).err();
        problem.or(clock_differs.then_some(Unknown::Clock))
    }
}

fn join_sections(sections: &[Value]) -> String {
    sections.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

fn timed_out() -> StoreError {
    StoreError::Absent("no reply".to_owned())
}

/// Maximum length of an id; those of Redis have 40 characters.
const MAX_ID_BYTES: usize = 64;

/// The part of `INFO` that heartbeats need. The text is untrusted: fields may be missing, repeated or
/// invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// Id of the process, new with each start.
    pub run_id: String,
    /// Its replication id.
    pub replication_id: String,
    /// Whether it is a master.
    pub is_master: bool,
    /// Its replication offset.
    pub replication_offset: u64,
    /// Memory limit in bytes; 0: no limit.
    pub maxmemory: u64,
    /// What it does at the memory limit.
    pub maxmemory_policy: String,
    /// Records evicted at the memory limit since the start.
    pub evicted_keys: u64,
}

impl ServerInfo {
    /// Parses the sections server, replication, memory and stats of `INFO`, joined to one text.
    /// Returns `None` if a field is missing or invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = |name| field(text, name).filter(|id| is_id(id)).map(ToOwned::to_owned);
        let number = |name| field(text, name).and_then(|value| value.parse().ok());
        Some(Self {
            run_id: id("run_id")?,
            replication_id: id("master_replid")?,
            is_master: field(text, "role")? == "master",
            replication_offset: number("master_repl_offset")?,
            maxmemory: number("maxmemory")?,
            maxmemory_policy: id("maxmemory_policy")?,
            evicted_keys: number("evicted_keys")?,
        })
    }
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Returns the value of the first line `name:value`.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REDIS: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:0123456789abcdef\r\n\
        # Replication\r\nrole:master\r\nmaster_replid:fedcba\r\nmaster_replid2:0000\r\n\
        master_repl_offset:17\r\n# Memory\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\n\
        maxmemory_policy:noeviction\r\n# Stats\r\nevicted_keys:0\r\n";

    #[test]
    fn info_of_redis_is_parsed() {
        let info = ServerInfo::parse(REDIS).unwrap();
        assert_eq!(info.run_id, "0123456789abcdef");
        assert_eq!(info.replication_id, "fedcba");
        assert!(info.is_master);
        assert_eq!((info.replication_offset, info.maxmemory), (17, 0));
    }

    #[test]
    fn a_replica_is_not_a_master() {
        assert!(!ServerInfo::parse(&REDIS.replace("role:master", "role:slave")).unwrap().is_master);
    }

    #[test]
    fn missing_or_invalid_fields_are_refused() {
        for (from, to) in [
            ("run_id:", "run:"),
            ("maxmemory:0", "maxmemory:-1"),
            ("master_replid:fedcba", "master_replid:a b"),
            ("master_repl_offset:17", "master_repl_offset:"),
        ] {
            assert_eq!(ServerInfo::parse(&REDIS.replacen(from, to, 1)), None, "{to}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".*") {
            let _ = ServerInfo::parse(&text);
        }
    }
}
