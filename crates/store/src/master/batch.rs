//! Commands that wait for a connection, and the exchange that carries a batch of them.

use std::time::{Duration, Instant};

use firstflight_replay::{Epoch, SharedConfig, StoreObservation, Unknown, check_record_end};
use redis::{Cmd, ServerError, Value};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::{Incarnation, Master};
use crate::StoreError;
use crate::connection::{
    Connection, epoch_age, error_of, integer, refusal, time, unexpected_reply,
};
use crate::settings::millis;

/// Sends a batch of commands, and passes each reply to its caller.
///
/// # Errors
/// If the connection cannot be used any more. Every caller has a reply in that case too.
pub(super) async fn run(
    connection: &mut Connection,
    incarnation: &Incarnation,
    master: &Master,
    jobs: Vec<PendingCommand>,
) -> Result<(), StoreError> {
    let settings = &master.settings;
    settings.counters.batch();
    let check = jobs
        .iter()
        .any(|job| job.check != Check::None)
        .then_some(BatchCheck { incarnation, master });
    let mut request = Vec::new();
    jobs.iter().for_each(|job| request.extend_from_slice(&job.command));
    let extra = check.as_ref().map_or(0, |check| check.append_to(&mut request));
    let exchange = connection.exchange(&request, jobs.len() + extra);
    let result = match tokio::time::timeout(settings.exchange_timeout, exchange).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::Unknown(Unknown::Slow)),
    };
    let mut values = match result {
        Ok(values) => values,
        Err(error) => {
            jobs.into_iter().for_each(|job| drop(job.reply.send(Err(error.clone()))));
            return Err(error);
        }
    };
    let query_replies = values.split_off(jobs.len());
    let judgement = check.map(|check| check.judge(&query_replies));
    let (verdicts, usable) = match judgement {
        Some(Ok(verdicts)) => (verdicts, Ok(())),
        Some(Err(error)) => (Verdicts::uniform(Err(Unknown::Refused)), Err(error)),
        None => (Verdicts::uniform(Ok(())), Ok(())),
    };
    if values.iter().any(has_moved) {
        settings.refresh.notify_one();
    }
    if let Some(why) = claim_error(&jobs, &values, verdicts.claim) {
        master.claim_warnings.warn(&incarnation.address, &why);
    }
    let has_unexpected_reply = jobs
        .iter()
        .zip(&values)
        .any(|(job, value)| job.check != Check::None && !is_expected(value));
    for (job, value) in jobs.into_iter().zip(values) {
        let verdict = verdicts.for_check(job.check, &settings.shared);
        let _ = job.reply.send(Ok(Reply { value, verdict }));
    }
    if has_unexpected_reply { Err(unexpected_reply()) } else { usable }
}

/// Whether replies of the batch count, for each kind of check.
struct Verdicts {
    claim: Result<(), Unknown>,
    record: Result<(), Unknown>,
    /// For the check of a record's expiry; `None` without an observation.
    observed: Option<StoreObservation>,
}

impl Verdicts {
    fn uniform(verdict: Result<(), Unknown>) -> Self {
        Self { claim: verdict, record: verdict, observed: None }
    }

    fn for_check(&self, check: Check, config: &SharedConfig) -> Result<(), Unknown> {
        match check {
            Check::None => Ok(()),
            Check::Claim => self.claim,
            Check::Record { expires_at } => self.record.and_then(|()| {
                let observed = self.observed.as_ref();
                observed.map_or(Ok(()), |observed| check_record_end(config, observed, expires_at))
            }),
        }
    }
}

/// Why claims were refused, apart from the reasons that heartbeats find and log.
fn claim_error(
    jobs: &[PendingCommand],
    values: &[Value],
    verdict: Result<(), Unknown>,
) -> Option<String> {
    let checked = jobs.iter().zip(values).filter(|(job, _)| job.check != Check::None);
    let refused = checked.filter_map(|(_, value)| error_of(value)).next();
    match (refused, verdict) {
        (Some(error), _) => Some(error.to_string()),
        (None, Err(Unknown::Unreplicated)) => {
            Some("fewer replicas have the claims than `replicas` requires".to_owned())
        }
        _ => None,
    }
}

/// Whether this is a possible reply to a claim, a `GET` or a `GETDEL`. With any other reply, the
/// connection is out of sync.
fn is_expected(value: &Value) -> bool {
    matches!(value, Value::Nil | Value::Okay | Value::BulkString(_) | Value::ServerError(_))
}

/// Whether a cluster node replies that another node owns the key.
fn has_moved(value: &Value) -> bool {
    let is_move = |error: &ServerError| matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN");
    matches!(value, Value::ServerError(error) if is_move(error))
}

/// The queries behind the commands of a batch, which show whether its replies count.
struct BatchCheck<'a> {
    incarnation: &'a Incarnation,
    master: &'a Master,
}

impl BatchCheck<'_> {
    /// Appends the queries, and returns their number.
    fn append_to(&self, request: &mut Vec<u8>) -> usize {
        let settings = &self.master.settings;
        let mut count = 3;
        if settings.replicas > 0 {
            let mut wait = redis::cmd("WAIT");
            // Shorter than the budget, so that a failure is still reported in time.
            wait.arg(settings.replicas).arg(millis(settings.budget * 2 / 3));
            wait.write_packed_command(request);
            count += 1;
        }
        request.extend_from_slice(&self.master.epoch_queries);
        count
    }

    /// Decides from the replies to the queries whether claims count, and records.
    ///
    /// # Errors
    /// If these are not replies to the queries.
    fn judge(&self, replies: &[Value]) -> Result<Verdicts, StoreError> {
        if let Some(why) = replies.iter().find_map(refusal) {
            return Ok(Verdicts::uniform(Err(why)));
        }
        let (waited, [epoch, now, ttl]) = match replies {
            [epoch, now, ttl] => (None, [epoch, now, ttl]),
            [waited, epoch, now, ttl] => (Some(waited), [epoch, now, ttl]),
            _ => return Err(unexpected_reply()),
        };
        if let Some(waited) = waited {
            let replicas = integer(waited).ok_or_else(unexpected_reply)?;
            if replicas < i64::from(self.master.settings.replicas) {
                return Ok(Verdicts::uniform(Err(Unknown::Unreplicated)));
            }
        }
        let observation = StoreObservation {
            run_id: self.incarnation.run_id.clone(),
            replication_id: self.incarnation.replication_id.clone(),
            slots: self.master.slots(&self.incarnation.address),
            epoch: epoch_of(epoch)?,
            epoch_age: epoch_age(ttl),
            store_time: time(now).ok_or_else(unexpected_reply)?,
            node_time: self.master.settings.node_time(),
        };
        let (continuity, now) = (self.master.continuity(), self.master.settings.now());
        Ok(Verdicts {
            claim: continuity.check_claims(&observation, now),
            record: continuity.check_record(&observation, now),
            observed: Some(observation),
        })
    }
}

/// The three queries that decide whether replies count, in the same order as in heartbeats: the epoch,
/// the time, and the remaining time to live of the epoch.
pub(super) fn epoch_queries(key: &str) -> Vec<u8> {
    let mut request = redis::cmd("GET").arg(key).get_packed_command();
    redis::cmd("TIME").write_packed_command(&mut request);
    redis::cmd("PTTL").arg(key).write_packed_command(&mut request);
    request
}

/// Parses the epoch record, if there is one.
///
/// # Errors
/// If this is not a reply to `GET`.
pub(super) fn epoch_of(value: &Value) -> Result<Option<Epoch>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(text) => Ok(Epoch::parse(text)),
        _ => Err(unexpected_reply()),
    }
}

/// Maximum number of commands in one exchange.
const MAX_BATCH: usize = 256;

/// Maximum number of waiting commands. With more, the store is slower than the load, and the last
/// ones would time out.
const MAX_WAITING: usize = 8192;

/// A command that waits for a connection, and where to send its reply.
pub(crate) struct PendingCommand {
    /// Encoded in the store's protocol (RESP).
    pub command: Vec<u8>,
    /// After this the command is dropped without being sent.
    pub deadline: Instant,
    pub check: Check,
    pub reply: oneshot::Sender<Result<Reply, StoreError>>,
}

/// What the batch checks in addition to the command's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing.
    None,
    /// Whether claims count.
    Claim,
    /// Whether later claims will find a record that expires at this time of the store's clock.
    Record { expires_at: Duration },
}

/// The reply to a command.
pub(crate) struct Reply {
    pub value: Value,
    /// The result of the check; `Ok` without one.
    pub verdict: Result<(), Unknown>,
}

impl PendingCommand {
    pub(crate) fn new(
        command: &Cmd,
        deadline: Instant,
        check: Check,
    ) -> (Self, oneshot::Receiver<Result<Reply, StoreError>>) {
        let (reply, receiver) = oneshot::channel();
        (Self { command: command.get_packed_command(), deadline, check, reply }, receiver)
    }

    /// Whether the caller still waits for the reply.
    fn is_pending(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_closed()
    }
}

pub(crate) struct Queue {
    sender: mpsc::Sender<PendingCommand>,
    receiver: Mutex<mpsc::Receiver<PendingCommand>>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        Self { sender, receiver: Mutex::new(receiver) }
    }

    /// Appends a command; returns `false` if too many wait.
    pub(crate) fn push(&self, job: PendingCommand) -> bool {
        self.sender.try_send(job).is_ok()
    }

    /// Waits for commands, and returns those that are still pending, up to a full batch.
    pub(crate) async fn next(&self) -> Vec<PendingCommand> {
        loop {
            let mut jobs = Vec::new();
            self.receiver.lock().await.recv_many(&mut jobs, MAX_BATCH).await;
            let now = Instant::now();
            jobs.retain(|job| job.is_pending(now));
            if !jobs.is_empty() {
                return jobs;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_without_a_waiting_caller_is_not_sent() {
        let queue = Queue::new();
        let ping = redis::cmd("PING");
        let later = Instant::now() + Duration::from_secs(60);
        let (late, _late) = PendingCommand::new(&ping, Instant::now(), Check::Claim);
        let (abandoned, receiver) = PendingCommand::new(&ping, later, Check::Claim);
        let (good, _good) = PendingCommand::new(&ping, later, Check::None);
        drop(receiver);
        for job in [late, abandoned, good] {
            assert!(queue.push(job));
        }
        let jobs = queue.next().await;
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].check, Check::None);
    }

    #[tokio::test]
    async fn a_full_queue_refuses_commands() {
        let queue = Queue::new();
        let mut waiting = Vec::new();
        let later = Instant::now() + Duration::from_secs(60);
        for pushed in 0..=MAX_WAITING {
            let (job, receiver) = PendingCommand::new(&redis::cmd("PING"), later, Check::Claim);
            waiting.push(receiver);
            assert_eq!(queue.push(job), pushed < MAX_WAITING);
        }
        assert_eq!(queue.next().await.len(), MAX_BATCH);
    }
}
