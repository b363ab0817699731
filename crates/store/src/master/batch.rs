//! One exchange: all that waits, and what shows whether the store's word on it counts.

use firstflight_replay::{Epoch, StoreObservation, Unknown};
use redis::{ServerError, Value};

use super::queue::{Check, Job, Reply};
use super::{Life, Master};
use crate::StoreError;
use crate::link::{Link, epoch_age, error_of, integer, refusal, time};
use crate::settings::millis;

/// Sends `jobs` and answers each of them.
///
/// # Errors
/// If the connection is good for nothing more. All jobs have been answered then too.
pub(super) async fn run(
    link: &mut Link,
    life: &Life,
    master: &Master,
    jobs: Vec<Job>,
) -> Result<(), StoreError> {
    let settings = &master.settings;
    settings.counters.batch();
    let witness =
        jobs.iter().any(|job| job.check != Check::None).then_some(BatchCheck { life, master });
    let mut request = Vec::new();
    jobs.iter().for_each(|job| request.extend_from_slice(&job.command));
    let extra = witness.as_ref().map_or(0, |witness| witness.ask(&mut request));
    let exchange = link.exchange(&request, jobs.len() + extra);
    let answered = match tokio::time::timeout(settings.overdue, exchange).await {
        Ok(answered) => answered,
        Err(_) => Err(StoreError::Unknown(Unknown::Slow)),
    };
    let mut values = match answered {
        Ok(values) => values,
        Err(error) => {
            jobs.into_iter().for_each(|job| drop(job.reply.send(Err(error.clone()))));
            return Err(error);
        }
    };
    let seen = values.split_off(jobs.len());
    let judged = witness.map(|witness| witness.judge(&seen));
    let (verdicts, sound) = match judged {
        Some(Ok(verdicts)) => (verdicts, Ok(())),
        Some(Err(garbled)) => (Verdicts::same(Err(Unknown::Refused)), Err(garbled)),
        None => (Verdicts::same(Ok(())), Ok(())),
    };
    if values.iter().any(has_moved) {
        settings.refresh.notify_one();
    }
    if let Some(why) = complaint(&jobs, &values, verdicts.claim) {
        master.complaints.warn(&life.address, &why);
    }
    let odd =
        jobs.iter().zip(&values).any(|(job, value)| job.check != Check::None && !is_plain(value));
    for (job, value) in jobs.into_iter().zip(values) {
        let verdict = verdicts.of(job.check);
        let _ = job.reply.send(Ok(Reply { value, verdict }));
    }
    if odd { Err(garbled()) } else { sound }
}

/// What a batch shows of the store, for each kind of check.
#[derive(Clone, Copy)]
struct Verdicts {
    claim: Result<(), Unknown>,
    record: Result<(), Unknown>,
}

impl Verdicts {
    fn same(verdict: Result<(), Unknown>) -> Self {
        Self { claim: verdict, record: verdict }
    }

    fn of(self, check: Check) -> Result<(), Unknown> {
        match check {
            Check::None => Ok(()),
            Check::Claim => self.claim,
            Check::Record => self.record,
        }
    }
}

/// What claims were refused for, apart from what heartbeats see and say.
fn complaint(jobs: &[Job], values: &[Value], verdict: Result<(), Unknown>) -> Option<String> {
    let counting = jobs.iter().zip(values).filter(|(job, _)| job.check != Check::None);
    let refused = counting.filter_map(|(_, value)| error_of(value)).next();
    match (refused, verdict) {
        (Some(error), _) => Some(error.to_string()),
        (None, Err(Unknown::Unreplicated)) => {
            Some("fewer replicas have the claims than `replicas` asks for".to_owned())
        }
        _ => None,
    }
}

/// Whether a claim, a `GET` or a `GETDEL` may be answered so. A store that answers anything else
/// has lost count of what it answers.
fn is_plain(value: &Value) -> bool {
    matches!(value, Value::Nil | Value::Okay | Value::BulkString(_) | Value::ServerError(_))
}

/// Whether a cluster says that the key is another's.
fn has_moved(value: &Value) -> bool {
    let is_move = |error: &ServerError| matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN");
    matches!(value, Value::ServerError(error) if is_move(error))
}

/// What is asked behind the claims of a batch, and what follows from the responses.
struct BatchCheck<'a> {
    life: &'a Life,
    master: &'a Master,
}

impl BatchCheck<'_> {
    /// Adds the questions, and says how many they are.
    fn ask(&self, request: &mut Vec<u8>) -> usize {
        let settings = &self.master.settings;
        let mut questions = 3;
        if settings.replicas > 0 {
            let mut wait = redis::cmd("WAIT");
            // Shorter than the budget, so that what is missing can still be said in time.
            wait.arg(settings.replicas).arg(millis(settings.budget * 2 / 3));
            wait.write_packed_command(request);
            questions += 1;
        }
        request.extend_from_slice(&self.master.epoch_questions);
        questions
    }

    /// Whether claims count, and records.
    ///
    /// # Errors
    /// If these are no responses to those questions.
    fn judge(&self, seen: &[Value]) -> Result<Verdicts, StoreError> {
        if let Some(why) = seen.iter().find_map(refusal) {
            return Ok(Verdicts::same(Err(why)));
        }
        let (waited, [epoch, now, left]) = match seen {
            [epoch, now, left] => (None, [epoch, now, left]),
            [waited, epoch, now, left] => (Some(waited), [epoch, now, left]),
            _ => return Err(garbled()),
        };
        if let Some(waited) = waited {
            let replicas = integer(waited).ok_or_else(garbled)?;
            if replicas < i64::from(self.master.settings.replicas) {
                return Ok(Verdicts::same(Err(Unknown::Unreplicated)));
            }
        }
        let sighting = StoreObservation {
            run_id: self.life.run_id.clone(),
            replication_id: self.life.replication_id.clone(),
            slots: self.master.slots(&self.life.address),
            epoch: epoch_of(epoch)?,
            epoch_age: epoch_age(left),
            store_time: time(now).ok_or_else(garbled)?,
            node_time: self.master.settings.node_time(),
        };
        let (continuity, now) = (self.master.continuity(), self.master.settings.now());
        Ok(Verdicts {
            claim: continuity.check_claims(&sighting, now),
            record: continuity.check_record(&sighting, now),
        })
    }
}

/// The three questions by which a store's word is judged, in the order in which heartbeats ask
/// them too: the epoch, the time, and the life left to the epoch.
pub(super) fn epoch_questions(key: &str) -> Vec<u8> {
    let mut request = redis::cmd("GET").arg(key).get_packed_command();
    redis::cmd("TIME").write_packed_command(&mut request);
    redis::cmd("PTTL").arg(key).write_packed_command(&mut request);
    request
}

/// The epoch record, if there is one.
///
/// # Errors
/// For what no `GET` answers.
pub(super) fn epoch_of(value: &Value) -> Result<Option<Epoch>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(text) => Ok(Epoch::parse(text)),
        _ => Err(garbled()),
    }
}

pub(super) fn garbled() -> StoreError {
    StoreError::Refused("its answer is not what was asked for".to_owned())
}
