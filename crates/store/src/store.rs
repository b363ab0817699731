//! The store as the rest of the program uses it: claims of flights, and small records.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use firstflight_replay::{ClaimKey, StoreReply, Unknown};
use redis::{Cmd, Value};
use tokio::sync::Semaphore;

use crate::connection::{error_of, integer, refusal, unexpected_reply};
use crate::master::{Check, Reply};
use crate::settings::{REQUEST_TIMEOUT, Settings, claim_name_command, millis, record_command};
use crate::topology::{Masters, Owner};
use crate::{StoreConfig, StoreError, StoreStatistics};

/// A store that nodes share. Cheap to clone. Tasks open and maintain its connections, so opening an
/// unreachable store is not an error. The tasks end with the last clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    settings: Arc<Settings>,
    masters: Masters,
    /// Permits for withdrawals of names; see [`MAX_WITHDRAWALS`].
    withdrawals: Arc<Semaphore>,
}

/// Identifies the client connection that wrote a record, so that it recognises its own record. Choose
/// it at random: no two connections to any node may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant(u64);

impl Claimant {
    /// Creates a claimant with this identifier.
    pub fn new(name: u64) -> Self {
        Self(name)
    }

    /// The recorded form: a store keeps a 64-bit number in fewer bytes than a text.
    pub(crate) fn number(self) -> i64 {
        self.0.cast_signed()
    }
}

/// The result of [`Store::spend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// The flight is recorded for this connection. No copy of it will be accepted.
    Recorded,
    /// Another connection has the record: a copy may have been executed.
    Taken,
}

/// The result of [`Store::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The value, which the store has deleted.
    pub value: Option<Vec<u8>>,
    /// Whether the store has recorded without a gap, so that no other node can have taken it too.
    pub counts: Result<(), Unknown>,
}

impl Store {
    /// Starts to connect, inside a tokio runtime. `unix_micros` is the clock of this node by which
    /// ticket ages are measured.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for an invalid configuration; never for an unreachable store.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(config: StoreConfig, unix_micros: fn() -> i64) -> Result<Self, StoreError> {
        let topology = config.topology.clone();
        let settings = Arc::new(Settings::new(config, unix_micros)?);
        let masters = Masters::start(&settings, topology);
        let withdrawals = Arc::new(Semaphore::new(MAX_WITHDRAWALS));
        Ok(Self(Arc::new(Inner { settings, masters, withdrawals })))
    }

    /// Uses the passwords and TLS settings of `config` for new connections, and reads its CA file
    /// again. Its other settings have no effect.
    pub fn set_passwords(&self, config: &StoreConfig) {
        self.0.settings.set_passwords(config);
    }

    /// Claims a flight for the connection `claimant`, within the budget, which starts with this call.
    /// The store drops the record when its own clock shows `expires_at` (since 1970, see
    /// [`firstflight_replay::SharedConfig::record_end`]). A time in the past leaves no record, and
    /// the same flight could be won again.
    pub async fn claim(
        &self,
        key: ClaimKey,
        claimant: Claimant,
        expires_at: Duration,
    ) -> StoreReply {
        let settings = &self.0.settings;
        let started = Instant::now();
        let key = settings.claim_key(key);
        let command = record_command(&key, claimant, expires_at, "NX");
        let (reply, took) = match self.owner_for_claims(&key) {
            Ok(owner) => {
                let reply = set_new(owner, &command, settings.budget).await;
                (reply, Some(started.elapsed()))
            }
            // Not sent, so it says nothing about how long claims take.
            Err(why) => (Err(why), None),
        };
        let reply = reply.unwrap_or_else(StoreReply::Unknown);
        settings.counters.claim(reply, took);
        reply
    }

    /// Records a flight whose early data was refused, for the connection `claimant`, before its
    /// first request is executed. Makes one attempt, which may take a second or two. The store drops
    /// the record when its own clock shows `expires_at`. A record that [`claim`](Self::claim) left
    /// for the same connection counts.
    ///
    /// # Errors
    /// [`Unknown`]: the record may be missing. Try again, or do not execute the flight's requests.
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
        let command = |condition| record_command(&key, claimant, expires_at, condition);
        match self.check_record(&key, &command("NX"), expires_at).await? {
            (Value::Okay, verdict) => return verdict.map(|()| Spent::Recorded),
            (Value::Nil, _) => {}
            (other, _) => return Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
        match self.check_record(&key, redis::cmd("GET").arg(&key), expires_at).await? {
            (Value::BulkString(owner), _) if owner == claimant.number().to_string().as_bytes() => {}
            (Value::BulkString(_), _) => return Ok(Spent::Taken),
            // It has expired in the meantime.
            (Value::Nil, _) => return Err(Unknown::Slow),
            (other, _) => return Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
        // Write it again, because `WAIT` checks the replicas for the last write of its connection.
        match self.check_record(&key, &command("XX"), expires_at).await? {
            (Value::Okay, verdict) => verdict.map(|()| Spent::Recorded),
            (Value::Nil, _) => Err(Unknown::Slow),
            (other, _) => Err(refusal(&other).unwrap_or(Unknown::Refused)),
        }
    }

    /// Runs a command on a flight's record, which expires at `expires_at`, and returns whether it
    /// counts. An open breaker does not matter: a store that is too slow for claims may be fast
    /// enough for records.
    async fn check_record(
        &self,
        key: &[u8],
        command: &Cmd,
        expires_at: Duration,
    ) -> Result<(Value, Result<(), Unknown>), Unknown> {
        // A slot that has moved does not matter either: its owner has the record from now on.
        let master = self.0.masters.owner(key)?.master;
        if master.is_absent() {
            return Err(Unknown::Absent);
        }
        let reply = master.request(command, REQUEST_TIMEOUT, Check::Record { expires_at }).await;
        let Reply { value, verdict } = reply.map_err(|error| error.unknown())?;
        Ok((value, verdict))
    }

    /// Returns by how many microseconds the store's clock is ahead of this node's, by the last
    /// heartbeat; of several masters, the one furthest behind. `None` before the first heartbeat.
    pub fn clock_offset_micros(&self) -> Option<i64> {
        self.0.masters.clock_offset_micros()
    }

    /// Claims a name (an idempotency key or a nonce) for `ttl`. No handshake waits for it, so it may
    /// take a second. The reply counts under the same conditions as for flights.
    ///
    /// After [`StoreReply::Unknown`] the caller must not act on the name. If the store has recorded
    /// the claim nevertheless, it is removed in the background, so that the request can be tried
    /// again.
    pub async fn claim_name(&self, name: ClaimKey, ttl: Duration) -> StoreReply {
        let key = self.0.settings.name_key(name);
        let claimant = Claimant::new(RandomState::new().build_hasher().finish());
        let command = claim_name_command(&key, claimant, ttl);
        let owner = match self.owner_for_claims(&key) {
            Ok(owner) => owner,
            // Nothing was sent.
            Err(why) => return StoreReply::Unknown(why),
        };
        let until = Instant::now() + ttl.saturating_sub(REQUEST_TIMEOUT);
        match set_new(owner, &command, REQUEST_TIMEOUT).await {
            Ok(reply) => reply,
            Err(why) => {
                self.withdraw_name(key, claimant, until);
                StoreReply::Unknown(why)
            }
        }
    }

    /// Removes the record of a claim that does not count, in the background; but not after `until`,
    /// when the name may be another request's. Its command may still be on its way to the store, so
    /// this looks more than once.
    fn withdraw_name(&self, key: Vec<u8>, claimant: Claimant, until: Instant) {
        let Ok(permit) = self.0.withdrawals.clone().try_acquire_owned() else { return };
        let store = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            for pause in WITHDRAWAL_PAUSES {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                let Some(store) = Weak::upgrade(&store).map(Self) else { break };
                let removed = store.remove_name_of(&key, claimant);
                if Instant::now() >= until || matches!(removed.await, Ok(true)) {
                    break;
                }
            }
            drop(permit);
        });
    }

    /// Removes the record at `key` if this claimant wrote it. Returns whether there was a record.
    async fn remove_name_of(&self, key: &[u8], claimant: Claimant) -> Result<bool, StoreError> {
        let owner = bytes(self.request(key, redis::cmd("GET").arg(key)).await?)?;
        if owner.as_deref() == Some(claimant.number().to_string().as_bytes()) {
            // Not repeated: one without a reply may still be on its way, and a second one after it would
            // remove the claim of a request that got the name in between.
            let _ = self.request(key, redis::cmd("DEL").arg(key)).await;
        }
        Ok(owner.is_some())
    }

    /// Releases a name that was won, because its request was certainly not executed. Call it soon
    /// after the claim; later the name may belong to another request.
    ///
    /// # Errors
    /// [`StoreError`]: the name may still be claimed.
    pub async fn release_name(&self, name: ClaimKey) -> Result<(), StoreError> {
        let key = self.0.settings.name_key(name);
        self.request(&key, redis::cmd("DEL").arg(&key)).await.map(drop)
    }

    /// The owner of `key`, if claims are sent to it now.
    fn owner_for_claims(&self, key: &[u8]) -> Result<Owner, Unknown> {
        let owner = self.0.masters.owner(key)?;
        owner.master.unavailable_reason().map_or(Ok(owner), Err)
    }

    /// Returns why claims are not attempted now: no connection, or an open breaker. `None` if they are.
    pub fn unavailable_reason(&self) -> Option<Unknown> {
        self.0.masters.unavailable_reason()
    }

    /// Returns why claims do not count now, as far as it is known without one; `None` if they do. As
    /// [`unavailable_reason`](Self::unavailable_reason), or because the store was emptied, its clock
    /// differs, it may evict records, or refuses writes. Claims are sent nevertheless.
    pub fn claim_problem(&self) -> Option<Unknown> {
        self.0.masters.claim_problem()
    }

    /// Returns the prefix of all keys of this cluster.
    pub fn prefix(&self) -> &str {
        self.0.settings.prefix()
    }

    /// Returns the counters.
    pub fn statistics(&self) -> StoreStatistics {
        self.0.settings.counters.read()
    }

    /// Reads the record at `key`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.0.settings.key(key);
        bytes(self.request(&key, redis::cmd("GET").arg(&key)).await?)
    }

    /// Writes a record that the store drops after `ttl`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), StoreError> {
        let key = self.0.settings.key(key);
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(value).arg("PX").arg(millis(ttl));
        self.request(&key, &command).await.map(drop)
    }

    /// Writes a record unless there is one. Returns whether it was written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_new(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let key = self.0.settings.key(key);
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(value).arg("NX").arg("PX").arg(millis(ttl));
        match self.request(&key, &command).await? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            _ => Err(unexpected_reply()),
        }
    }

    /// Replaces the value of an existing record, and keeps its expiry. Returns whether there was one.
    /// (`XX KEEPTTL`: Redis 6.0.)
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
            _ => Err(unexpected_reply()),
        }
    }

    /// Deletes a record, if there is one.
    ///
    /// # Errors
    /// [`StoreError`]. The record may have been deleted.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let key = self.0.settings.key(key);
        self.request(&key, redis::cmd("DEL").arg(&key)).await.map(drop)
    }

    /// Reads and deletes a record in one step (`GETDEL`), within the budget.
    ///
    /// # Errors
    /// [`StoreError`]. The record may have been deleted.
    pub async fn take(&self, key: &str) -> Result<Taken, StoreError> {
        let settings = &self.0.settings;
        let key = settings.key(key);
        let owner = self.owner_for_claims(key.as_bytes()).map_err(StoreError::Unknown)?;
        let command = redis::cmd("GETDEL").arg(&key).to_owned();
        let reply = owner.master.request(&command, settings.budget, Check::Claim).await?;
        if let Some(error) = error_of(&reply.value) {
            return Err(error);
        }
        Ok(Taken { value: bytes(reply.value)?, counts: reply.verdict.and(owner.settled) })
    }

    /// Sets a bit of a record that lives for at least `ttl` more, within the budget. Returns whether
    /// the bit was set before.
    ///
    /// # Errors
    /// [`StoreError`]. The bit may have been set.
    pub async fn set_bit(&self, key: &str, bit: u32, ttl: Duration) -> Result<bool, StoreError> {
        let settings = &self.0.settings;
        let key = settings.key(key);
        let owner = self.owner_for_claims(key.as_bytes()).map_err(StoreError::Unknown)?;
        let command = redis::cmd("SETBIT").arg(&key).arg(bit).arg(1).to_owned();
        let reply = owner.master.request(&command, settings.budget, Check::None).await?;
        if let Some(error) = error_of(&reply.value) {
            return Err(error);
        }
        let before = integer(&reply.value).ok_or_else(unexpected_reply)?;
        // Nothing waits for this command: if it is lost, the next bit sets the expiry.
        let store = self.clone();
        tokio::spawn(async move {
            let command = redis::cmd("PEXPIRE").arg(&key).arg(millis(ttl)).to_owned();
            let _ = store.request(&key, &command).await;
        });
        Ok(before != 0)
    }

    /// Returns the members of a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn members(&self, set: &str) -> Result<Vec<String>, StoreError> {
        let key = self.0.settings.key(set);
        let value = self.request(&key, redis::cmd("SMEMBERS").arg(&key)).await?;
        let (Value::Array(members) | Value::Set(members)) = value else {
            return Err(unexpected_reply());
        };
        members.into_iter().map(|member| text(member).ok_or_else(unexpected_reply)).collect()
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
        integer(&value).map(drop).ok_or_else(unexpected_reply)
    }

    /// Runs a command on a record, with a timeout of a second.
    async fn request(&self, key: impl AsRef<[u8]>, command: &Cmd) -> Result<Value, StoreError> {
        let master = self.0.masters.wait_for_owner(key.as_ref()).await?;
        match master.request(command, REQUEST_TIMEOUT, Check::None).await {
            Ok(reply) => error_of(&reply.value).map_or(Ok(reply.value), Err),
            Err(StoreError::Unknown(_)) => Err(master.last_error().unwrap_or_else(|| {
                StoreError::Absent(format!("no reply within {REQUEST_TIMEOUT:?}"))
            })),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("unavailable", &self.unavailable_reason())
            .finish_non_exhaustive()
    }
}

/// Runs a command that writes a record unless there is one.
async fn set_new(owner: Owner, command: &Cmd, timeout: Duration) -> Result<StoreReply, Unknown> {
    let reply = owner.master.request(command, timeout, Check::Claim).await;
    let Reply { value, verdict } = reply.map_err(|error| error.unknown())?;
    match value {
        // An existing record proves a claim, however recently the store has started.
        Value::Nil => Ok(StoreReply::Lost),
        Value::Okay => verdict.and(owner.settled).map(|()| StoreReply::Won),
        other => Err(refusal(&other).unwrap_or(Unknown::Refused)),
    }
}

/// Delays before each attempt to remove a name's claim that does not count, in milliseconds. Short at
/// first: the client is told to try again after 2 s.
const WITHDRAWAL_PAUSES: [u64; 8] = [0, 250, 500, 1_000, 2_000, 4_000, 15_000, 60_000];

/// Maximum number of concurrent withdrawals. Beyond it, claims stay until they expire.
const MAX_WITHDRAWALS: usize = 1024;

fn bytes(value: Value) -> Result<Option<Vec<u8>>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        _ => Err(unexpected_reply()),
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}
