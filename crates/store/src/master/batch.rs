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

/// Sends a batch of commands, and sends each its reply.
///
/// # Errors
/// If the connection cannot be used any more. Every command has its reply in that case too.
pub(super) async fn run(
    connection: &mut Connection,
    life: &Incarnation,
    master: &Master,
    jobs: Vec<PendingCommand>,
) -> Result<(), StoreError> {
    let settings = &master.settings;
    settings.counters.batch();
    let check =
        jobs.iter().any(|job| job.check != Check::None).then_some(BatchCheck { life, master });
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
    let seen = values.split_off(jobs.len());
    let judgement = check.map(|check| check.judge(&seen));
    let (verdicts, sound) = match judgement {
        Some(Ok(verdicts)) => (verdicts, Ok(())),
        Some(Err(error)) => (Verdicts::same(Err(Unknown::Refused)), Err(error)),
        None => (Verdicts::same(Ok(())), Ok(())),
    };
    if values.iter().any(has_moved) {
        settings.refresh.notify_one();
    }
    if let Some(why) = claim_error(&jobs, &values, verdicts.claim) {
        master.take_warnings.warn(&life.address, &why);
    }
    let has_unexpected_reply = jobs
        .iter()
        .zip(&values)
        .any(|(job, value)| job.check != Check::None && !is_expected(value));
    for (job, value) in jobs.into_iter().zip(values) {
        let verdict = verdicts.of(job.check, &settings.shared);
        let _ = job.reply.send(Ok(Reply { value, verdict }));
    }
    if has_unexpected_reply { Err(unexpected_reply()) } else { sound }
}

/// Whether replies of the batch count, for each kind of check.
struct Verdicts {
    claim: Result<(), Unknown>,
    record: Result<(), Unknown>,
    /// By which the records' ends are checked; `None` if the replies cannot be read.
    observed: Option<StoreObservation>,
}

impl Verdicts {
    fn same(verdict: Result<(), Unknown>) -> Self {
        Self { claim: verdict, record: verdict, observed: None }
    }

    fn of(&self, check: Check, config: &SharedConfig) -> Result<(), Unknown> {
        match check {
            Check::None => Ok(()),
            Check::Claim => self.claim,
            Check::Record { until } => self.record.and_then(|()| {
                let observed = self.observed.as_ref();
                observed.map_or(Ok(()), |observed| check_record_end(config, observed, until))
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
    let counting = jobs.iter().zip(values).filter(|(job, _)| job.check != Check::None);
    let refused = counting.filter_map(|(_, value)| error_of(value)).next();
    match (refused, verdict) {
        (Some(error), _) => Some(error.to_string()),
        (None, Err(Unknown::Unreplicated)) => {
            Some("fewer replicas have the claims than `replicas` requires".to_owned())
        }
        _ => None,
    }
}

/// Whether this is a possible reply to a claim, a `GET` or a `GETDEL`. With any other reply, the
/// connection is out of step.
fn is_expected(value: &Value) -> bool {
    matches!(value, Value::Nil | Value::Okay | Value::BulkString(_) | Value::ServerError(_))
}

/// Whether a cluster node replies that another node owns the key.
fn has_moved(value: &Value) -> bool {
    let is_move = |error: &ServerError| matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN");
    matches!(value, Value::ServerError(error) if is_move(error))
}

/// Checks behind the claims of a batch whether their replies count.
struct BatchCheck<'a> {
    life: &'a Incarnation,
    master: &'a Master,
}

impl BatchCheck<'_> {
    /// Appends the queries, and returns their number.
    fn append_to(&self, request: &mut Vec<u8>) -> usize {
        let settings = &self.master.settings;
        let mut questions = 3;
        if settings.replicas > 0 {
            let mut wait = redis::cmd("WAIT");
            // Shorter than the budget, so that a failure is still reported in time.
            wait.arg(settings.replicas).arg(millis(settings.budget * 2 / 3));
            wait.write_packed_command(request);
            questions += 1;
        }
        request.extend_from_slice(&self.master.epoch_queries);
        questions
    }

    /// Decides whether claims count, and records.
    ///
    /// # Errors
    /// If these are not replies to the queries.
    fn judge(&self, seen: &[Value]) -> Result<Verdicts, StoreError> {
        if let Some(why) = seen.iter().find_map(refusal) {
            return Ok(Verdicts::same(Err(why)));
        }
        let (waited, [epoch, now, left]) = match seen {
            [epoch, now, left] => (None, [epoch, now, left]),
            [waited, epoch, now, left] => (Some(waited), [epoch, now, left]),
            _ => return Err(unexpected_reply()),
        };
        if let Some(waited) = waited {
            let replicas = integer(waited).ok_or_else(unexpected_reply)?;
            if replicas < i64::from(self.master.settings.replicas) {
                return Ok(Verdicts::same(Err(Unknown::Unreplicated)));
            }
        }
        let observation = StoreObservation {
            run_id: self.life.run_id.clone(),
            replication_id: self.life.replication_id.clone(),
            slots: self.master.slots(&self.life.address),
            epoch: epoch_of(epoch)?,
            epoch_age: epoch_age(left),
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
    /// Whether a record that ends at this time of the store's clock is there for later claims.
    Record { until: Duration },
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
        let (left, gone) = PendingCommand::new(&ping, later, Check::Claim);
        let (good, _good) = PendingCommand::new(&ping, later, Check::None);
        drop(gone);
        for job in [late, left, good] {
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
        for master_address in 0..=MAX_WAITING {
            let (job, receiver) = PendingCommand::new(&redis::cmd("PING"), later, Check::Claim);
            waiting.push(receiver);
            assert_eq!(queue.push(job), master_address < MAX_WAITING);
        }
        assert_eq!(queue.next().await.len(), MAX_BATCH);
    }
}
