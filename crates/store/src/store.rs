//! The store as the rest of the program sees it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::{ClaimKey, StoreReply, Unknown};
use redis::{Cmd, Value};

use crate::link::{error_of, integer, refusal};
use crate::master::{Check, Reply};
use crate::settings::{REQUEST_TIMEOUT, Settings, claim_name, millis, record};
use crate::topology::Masters;
use crate::{StoreConfig, StoreError, StoreStatistics};

/// A store that nodes share. Cheap to clone; its connections are made and kept by tasks of their
/// own, so a store that is not there is no error here. They end with the last clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    settings: Arc<Settings>,
    masters: Masters,
}

/// Names the connection that wrote a record, so that it recognises its own. Choose it at random:
/// no two connections to any node may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant(u64);

impl Claimant {
    /// The connection of this name.
    pub fn new(name: u64) -> Self {
        Self(name)
    }

    /// As it is recorded: a store keeps a number of 64 bits in fewer bytes than a text.
    pub(crate) fn number(self) -> i64 {
        self.0.cast_signed()
    }
}

/// What came of [`Store::spend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// The flight is recorded for this connection: no copy of it will be accepted.
    Recorded,
    /// Another connection has the record: a copy may have been executed.
    Taken,
}

/// What came of [`Store::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The value, which is gone from the store now.
    pub value: Option<Vec<u8>>,
    /// Whether the store has recorded without a gap, so that nobody else can have taken it too.
    pub counts: Result<(), Unknown>,
}

impl Store {
    /// Starts to connect, inside a tokio runtime. `unix_micros` is this node's clock, the one by
    /// which ticket ages are measured.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for a configuration that cannot be; never for an absent store.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(config: StoreConfig, unix_micros: fn() -> i64) -> Result<Self, StoreError> {
        let topology = config.topology.clone();
        let settings = Arc::new(Settings::new(config, unix_micros)?);
        let masters = Masters::start(&settings, topology);
        Ok(Self(Arc::new(Inner { settings, masters })))
    }

    /// Claims a flight for the connection `claimant`, within the budget, which is counted from this
    /// call on. The store drops the record when its own clock shows `expires_at` (since 1970, see
    /// [`firstflight_replay::SharedConfig::record_end`]); in the past it leaves none, so that the
    /// same flight could be won again.
    pub async fn claim(
        &self,
        key: ClaimKey,
        claimant: Claimant,
        expires_at: Duration,
    ) -> StoreReply {
        let settings = &self.0.settings;
        let began = Instant::now();
        let key = settings.claim_key(key);
        let command = record(&key, claimant, expires_at, "NX");
        let reply = self.set_new(&key, &command, settings.budget).await;
        let reply = reply.unwrap_or_else(StoreReply::Unknown);
        settings.counters.claim(reply, began.elapsed());
        reply
    }

    /// Records a flight whose early data was refused, for the connection `claimant`, before its
    /// first request is executed. One attempt, which may take a second or two; the store drops the
    /// record when its own clock shows `expires_at`. What [`claim`](Self::claim) may have left for
    /// the same connection counts as recorded.
    ///
    /// # Errors
    /// [`Unknown`]: the record may be missing. Try again, or do not run the flight's requests.
    pub async fn spend(
        &self,
        key: ClaimKey,
        claimant: Claimant,
        expires_at: Duration,
    ) -> Result<Spent, Unknown> {
        let spent = self.try_spend(key, claimant, expires_at).await;
        self.0.settings.counters.spend(spent);
        spent
    }

    async fn try_spend(
        &self,
        key: ClaimKey,
        claimant: Claimant,
        expires_at: Duration,
    ) -> Result<Spent, Unknown> {
        let key = self.0.settings.claim_key(key);
        let command = |condition| record(&key, claimant, expires_at, condition);
        match self.check_record(&key, &command("NX")).await? {
            (Value::Okay, verdict) => return verdict.map(|()| Spent::Recorded),
            (Value::Nil, _) => {}
            (other, _) => return Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
        match self.check_record(&key, redis::cmd("GET").arg(&key)).await? {
            (Value::BulkString(owner), _) if owner == claimant.number().to_string().as_bytes() => {}
            (Value::BulkString(_), _) => return Ok(Spent::Taken),
            // It has ended meanwhile.
            (Value::Nil, _) => return Err(Unknown::Slow),
            (other, _) => return Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
        // Written again, so that replicas are asked about this very record (`WAIT` asks about the
        // last write of its connection).
        match self.check_record(&key, &command("XX")).await? {
            (Value::Okay, verdict) => verdict.map(|()| Spent::Recorded),
            (Value::Nil, _) => Err(Unknown::Slow),
            (other, _) => Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
    }

    /// A command on a flight's record, and whether a record counts by its batch. A breaker that is
    /// open is no obstacle: a store that is too slow for claims may do for records.
    async fn check_record(
        &self,
        key: &[u8],
        command: &Cmd,
    ) -> Result<(Value, Result<(), Unknown>), Unknown> {
        // A slot that has moved is no obstacle either: the record is with its owner from now on.
        let master = self.0.masters.owner(key)?.master;
        if master.is_absent() {
            return Err(Unknown::Absent);
        }
        let reply = master.request(command, REQUEST_TIMEOUT, Check::Record).await;
        let Reply { value, verdict } = reply.map_err(|error| error.unknown())?;
        Ok((value, verdict))
    }

    /// How far the store's clock is ahead of this node's, in microseconds, as heartbeats last
    /// measured it; of several masters the one furthest behind. `None` before the first.
    pub fn clock_offset_micros(&self) -> Option<i64> {
        self.0.masters.clock_offset_micros()
    }

    /// Claims a name, an idempotency key or a nonce, for `life`. Nobody's handshake waits for it,
    /// so it may take a second. The store's word counts as for flights.
    ///
    /// [`StoreReply::Unknown`]: nobody may act on the name, and it may be claimed all the same.
    pub async fn claim_name(&self, name: ClaimKey, life: Duration) -> StoreReply {
        let key = self.0.settings.name_key(name);
        self.set_new(&key, &claim_name(&key, life), REQUEST_TIMEOUT)
            .await
            .unwrap_or_else(StoreReply::Unknown)
    }

    /// Gives a name back that was won: what it was claimed for has certainly not happened. Soon
    /// after it was claimed, or it might be another's by now.
    ///
    /// # Errors
    /// [`StoreError`]: it may be claimed still.
    pub async fn release_name(&self, name: ClaimKey) -> Result<(), StoreError> {
        let key = self.0.settings.name_key(name);
        self.request(&key, redis::cmd("DEL").arg(&key)).await.map(drop)
    }

    async fn set_new(
        &self,
        key: &[u8],
        command: &Cmd,
        patience: Duration,
    ) -> Result<StoreReply, Unknown> {
        let owner = self.0.masters.owner(key)?;
        if let Some(why) = owner.master.resting() {
            return Err(why);
        }
        let reply = owner.master.request(command, patience, Check::Claim).await;
        let Reply { value, verdict } = reply.map_err(|error| error.unknown())?;
        match value {
            // Who finds a record knows that somebody has claimed, however young the store is.
            Value::Nil => Ok(StoreReply::Lost),
            Value::Okay => verdict.and(owner.settled).map(|()| StoreReply::Won),
            other => Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
    }

    /// Why claims are not even tried now, if so: there is no connection, or the breaker is open.
    pub fn resting(&self) -> Option<Unknown> {
        self.0.masters.resting()
    }

    /// What all keys of this cluster start with.
    pub fn prefix(&self) -> &str {
        self.0.settings.prefix()
    }

    /// The counters.
    pub fn statistics(&self) -> StoreStatistics {
        self.0.settings.counters.read()
    }

    /// The record at `key`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.0.settings.key(key);
        bytes(self.request(&key, redis::cmd("GET").arg(&key)).await?)
    }

    /// Writes a record that the store drops after `life`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put(&self, key: &str, value: &[u8], life: Duration) -> Result<(), StoreError> {
        let key = self.0.settings.key(key);
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(value).arg("PX").arg(millis(life));
        self.request(&key, &command).await.map(drop)
    }

    /// Writes a record unless there is one. Whether it was written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_new(
        &self,
        key: &str,
        value: &[u8],
        life: Duration,
    ) -> Result<bool, StoreError> {
        let key = self.0.settings.key(key);
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(value).arg("NX").arg("PX").arg(millis(life));
        match self.request(&key, &command).await? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            _ => Err(garbled()),
        }
    }

    /// Writes another value into a record that is there, which keeps its life. Whether there was
    /// one. (`XX KEEPTTL`: Redis 6.0.)
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn replace(&self, key: &str, value: &[u8]) -> Result<bool, StoreError> {
        let key = self.0.settings.key(key);
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(value).arg("XX").arg("KEEPTTL");
        match self.request(&key, &command).await? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            _ => Err(garbled()),
        }
    }

    /// Removes a record, if there is one.
    ///
    /// # Errors
    /// [`StoreError`]. The record may be gone all the same.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let key = self.0.settings.key(key);
        self.request(&key, redis::cmd("DEL").arg(&key)).await.map(drop)
    }

    /// Reads a record and removes it, in one step (`GETDEL`), within the budget.
    ///
    /// # Errors
    /// [`StoreError`]. The record may be gone all the same.
    pub async fn take(&self, key: &str) -> Result<Taken, StoreError> {
        let settings = &self.0.settings;
        let key = settings.key(key);
        let owner = self.0.masters.owner(key.as_bytes()).map_err(StoreError::Unknown)?;
        if let Some(why) = owner.master.resting() {
            return Err(StoreError::Unknown(why));
        }
        let command = redis::cmd("GETDEL").arg(&key).to_owned();
        let reply = owner.master.request(&command, settings.budget, Check::Claim).await?;
        if let Some(error) = error_of(&reply.value) {
            return Err(error);
        }
        Ok(Taken { value: bytes(reply.value)?, counts: reply.verdict.and(owner.settled) })
    }

    /// Sets a bit of a record that is kept for `life` more at least, within the budget. Whether it
    /// was set before.
    ///
    /// # Errors
    /// [`StoreError`]. The bit may be set all the same.
    pub async fn set_bit(&self, key: &str, bit: u32, life: Duration) -> Result<bool, StoreError> {
        let settings = &self.0.settings;
        let key = settings.key(key);
        let owner = self.0.masters.owner(key.as_bytes()).map_err(StoreError::Unknown)?;
        if let Some(why) = owner.master.resting() {
            return Err(StoreError::Unknown(why));
        }
        let command = redis::cmd("SETBIT").arg(&key).arg(bit).arg(1).to_owned();
        let reply = owner.master.request(&command, settings.budget, Check::None).await?;
        if let Some(error) = error_of(&reply.value) {
            return Err(error);
        }
        let before = integer(&reply.value).ok_or_else(garbled)?;
        // Nobody waits for this one: if it is lost, the record's next bit sets its end.
        let store = self.clone();
        tokio::spawn(async move {
            let command = redis::cmd("PEXPIRE").arg(&key).arg(millis(life)).to_owned();
            let _ = store.request(&key, &command).await;
        });
        Ok(before != 0)
    }

    /// The members of a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn members(&self, set: &str) -> Result<Vec<String>, StoreError> {
        let key = self.0.settings.key(set);
        let value = self.request(&key, redis::cmd("SMEMBERS").arg(&key)).await?;
        let (Value::Array(members) | Value::Set(members)) = value else { return Err(garbled()) };
        members.into_iter().map(|member| text(member).ok_or_else(garbled)).collect()
    }

    /// Adds a member to a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn add(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.change_set("SADD", set, member).await
    }

    /// Removes a member from a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn remove(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.change_set("SREM", set, member).await
    }

    async fn change_set(&self, verb: &str, set: &str, member: &str) -> Result<(), StoreError> {
        let key = self.0.settings.key(set);
        let value = self.request(&key, redis::cmd(verb).arg(&key).arg(member)).await?;
        integer(&value).map(drop).ok_or_else(garbled)
    }

    /// A command on a record, which has a second.
    async fn request(&self, key: impl AsRef<[u8]>, command: &Cmd) -> Result<Value, StoreError> {
        let master = self.0.masters.owner_soon(key.as_ref()).await?;
        match master.request(command, REQUEST_TIMEOUT, Check::None).await {
            Ok(reply) => error_of(&reply.value).map_or(Ok(reply.value), Err),
            Err(StoreError::Unknown(_)) => Err(master.trouble().unwrap_or_else(|| {
                StoreError::Absent(format!("no answer within {REQUEST_TIMEOUT:?}"))
            })),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("resting", &self.resting()).finish_non_exhaustive()
    }
}

fn bytes(value: Value) -> Result<Option<Vec<u8>>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        _ => Err(garbled()),
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn garbled() -> StoreError {
    StoreError::Refused("its answer is not what was asked for".to_owned())
}
