//! What waits for a connection: commands, each with a time by which it is of use.

use std::time::Instant;

use firstflight_replay::Unknown;
use redis::{Cmd, Value};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::StoreError;

/// How many commands one exchange carries at most.
const MAX_BATCH: usize = 256;

/// How many commands may wait. With more the store is slower than what is asked of it, and whoever
/// came last would get his response too late.
const MAX_WAITING: usize = 8192;

/// A command and who waits for its reply.
pub(crate) struct Job {
    /// In the store's protocol.
    pub command: Vec<u8>,
    /// After this nobody waits for it any more, and it is not sent.
    pub deadline: Instant,
    pub check: Check,
    pub reply: oneshot::Sender<Result<Reply, StoreError>>,
}

/// What the batch has to see beside the command's own reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing.
    None,
    /// Whether claims count.
    Claim,
    /// Whether a record is there for later claims.
    Record,
}

/// What was answered.
pub(crate) struct Reply {
    pub value: Value,
    /// What came of the check; `Ok` without one.
    pub verdict: Result<(), Unknown>,
}

impl Job {
    pub(crate) fn new(
        command: &Cmd,
        deadline: Instant,
        check: Check,
    ) -> (Self, oneshot::Receiver<Result<Reply, StoreError>>) {
        let (reply, receiver) = oneshot::channel();
        (Self { command: command.get_packed_command(), deadline, check, reply }, receiver)
    }

    /// Whether anybody still waits.
    fn is_wanted(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_closed()
    }
}

pub(crate) struct Queue {
    sender: mpsc::Sender<Job>,
    receiver: Mutex<mpsc::Receiver<Job>>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        Self { sender, receiver: Mutex::new(receiver) }
    }

    /// Puts a job at the end; `false` if too many wait.
    pub(crate) fn push(&self, job: Job) -> bool {
        self.sender.try_send(job).is_ok()
    }

    /// All that wait and are wanted, as far as one exchange takes them, once there are any.
    pub(crate) async fn next(&self) -> Vec<Job> {
        loop {
            let mut jobs = Vec::new();
            self.receiver.lock().await.recv_many(&mut jobs, MAX_BATCH).await;
            let now = Instant::now();
            jobs.retain(|job| job.is_wanted(now));
            if !jobs.is_empty() {
                return jobs;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_sent() {
        let queue = Queue::new();
        let ping = redis::cmd("PING");
        let later = Instant::now() + Duration::from_secs(60);
        let (late, _late) = Job::new(&ping, Instant::now(), Check::Claim);
        let (left, gone) = Job::new(&ping, later, Check::Claim);
        let (good, _good) = Job::new(&ping, later, Check::None);
        drop(gone);
        for job in [late, left, good] {
            assert!(queue.push(job));
        }
        let jobs = queue.next().await;
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].check, Check::None);
    }

    #[tokio::test]
    async fn a_full_queue_takes_no_more() {
        let queue = Queue::new();
        let mut waiting = Vec::new();
        let later = Instant::now() + Duration::from_secs(60);
        for place in 0..=MAX_WAITING {
            let (job, receiver) = Job::new(&redis::cmd("PING"), later, Check::Claim);
            waiting.push(receiver);
            assert_eq!(queue.push(job), place < MAX_WAITING);
        }
        assert_eq!(queue.next().await.len(), MAX_BATCH);
    }
}
