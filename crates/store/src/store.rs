//! The store as the rest of the program sees it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::{ClaimKey, StoreAnswer, Unknown};
use redis::{Cmd, Value};

use crate::link::{error_of, integer, refusal};
use crate::master::Reply;
use crate::settings::{PATIENCE, Settings, claim, millis};
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

/// What came of [`Store::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The value, which is gone from the store now.
    pub value: Option<Vec<u8>>,
    /// Whether the store has recorded without a gap, so that nobody else can have taken it too.
    pub counts: Result<(), Unknown>,
}

impl Store {
    /// Begins to connect, inside a tokio runtime. `unix_micros` is this node's clock, the one by
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

    /// Claims a flight for [`firstflight_replay::SharedConfig::record_life`], within the budget,
    /// which is counted from this call on.
    pub async fn claim(&self, key: ClaimKey) -> StoreAnswer {
        let began = Instant::now();
        let answer = self.ask_claim(key).await.unwrap_or_else(StoreAnswer::Unknown);
        self.0.settings.counters.claim(answer, began.elapsed());
        answer
    }

    async fn ask_claim(&self, key: ClaimKey) -> Result<StoreAnswer, Unknown> {
        let settings = &self.0.settings;
        let life = settings.shared.record_life();
        self.set_new(&settings.claim_key(key), life, settings.budget).await
    }

    /// Claims a name, an idempotency key or a nonce, for `life`. Nobody's handshake waits for it,
    /// so it may take a second. The store's word counts as for flights.
    ///
    /// [`StoreAnswer::Unknown`]: nobody may act on the name, and it may be claimed all the same.
    pub async fn claim_name(&self, name: ClaimKey, life: Duration) -> StoreAnswer {
        let key = self.0.settings.name_key(name);
        self.set_new(&key, life, PATIENCE).await.unwrap_or_else(StoreAnswer::Unknown)
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
        life: Duration,
        patience: Duration,
    ) -> Result<StoreAnswer, Unknown> {
        let owner = self.0.masters.owner(key)?;
        if let Some(why) = owner.master.resting() {
            return Err(why);
        }
        let reply = owner.master.request(&claim(key, life), patience, true).await;
        let Reply { value, verdict } = reply.map_err(|error| error.unknown())?;
        match value {
            // Who finds a record knows that somebody has claimed, however young the store is.
            Value::Nil => Ok(StoreAnswer::Lost),
            Value::Okay => verdict.and(owner.settled).map(|()| StoreAnswer::Won),
            other => Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
    }

    /// Why claims are not even tried now, if so: there is no connection, or the breaker is open.
    pub fn resting(&self) -> Option<Unknown> {
        self.0.masters.resting()
    }

    /// What all keys of this cluster begin with.
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
        let reply = owner.master.request(&command, settings.budget, true).await?;
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
        let reply = owner.master.request(&command, settings.budget, false).await?;
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
        match master.request(command, PATIENCE, false).await {
            Ok(reply) => error_of(&reply.value).map_or(Ok(reply.value), Err),
            Err(StoreError::Unknown(_)) => Err(master
                .trouble()
                .unwrap_or_else(|| StoreError::Absent(format!("no answer within {PATIENCE:?}")))),
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
