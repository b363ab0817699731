//! One connection that carries claims and records, made again as often as it breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::{Life, Master, batch, info};
use crate::StoreError;
use crate::link::{Link, error_of, integer, text, time};
use crate::settings::RETRY;

type Lives = watch::Receiver<Option<Arc<Life>>>;

/// Runs for ever.
pub(super) async fn run(master: Arc<Master>) {
    let mut lives = master.life.subscribe();
    // The first connection after a broken one is made at once: it may have been closed on purpose.
    let mut pause = Duration::ZERO;
    loop {
        let life = match lives.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(life)) => life.clone(),
            _ => return,
        };
        let error = tokio::select! {
            error = attend(&master, &life, &mut pause) => error,
            () = ended(&mut lives, &life) => continue,
        };
        tracing::debug!(address = %life.address, %error, "connection to the store is gone");
        tokio::time::sleep(pause).await;
        pause = RETRY;
    }
}

/// Returns when `life` is over.
async fn ended(lives: &mut Lives, life: &Arc<Life>) {
    let over = |now: &Option<Arc<Life>>| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, life));
    let _ = lives.wait_for(over).await;
}

async fn attend(master: &Master, life: &Life, pause: &mut Duration) -> StoreError {
    match enter(master, life).await {
        Ok(mut link) => {
            let _open = Open::new(master);
            serve(master, life, &mut link, pause).await
        }
        Err(error) => error,
    }
}

async fn serve(master: &Master, life: &Life, link: &mut Link, pause: &mut Duration) -> StoreError {
    loop {
        let jobs = tokio::select! {
            biased;
            error = link.ended() => return error,
            jobs = master.queue.next() => jobs,
        };
        if let Err(error) = batch::run(link, life, master, jobs).await {
            return error;
        }
        *pause = Duration::ZERO;
    }
}

/// A connection to the very process that the heartbeat sees, and has not gone back since.
async fn enter(master: &Master, life: &Life) -> Result<Link, StoreError> {
    let settings = &master.settings;
    let mut link = Link::open(&life.address, &settings.access).await?;
    // Taken before the store is asked: heartbeats go on.
    let mark = master.continuity().mark().cloned();
    let mut request = redis::cmd("INFO").arg("server").get_packed_command();
    redis::cmd("GET").arg(&master.mark_key).write_packed_command(&mut request);
    redis::cmd("TIME").write_packed_command(&mut request);
    let values = tokio::time::timeout(settings.access.patience, link.exchange(&request, 3)).await;
    let values = values.unwrap_or_else(|_| Err(StoreError::Absent("it is silent".to_owned())))?;
    if let Some(error) = values.iter().find_map(error_of) {
        return Err(error);
    }
    let [said, there, now] = values.as_slice() else { return Err(batch::garbled()) };
    let run_id = text(said).and_then(|said| info::field(said, "run_id"));
    if run_id != Some(life.run_id.as_str()) {
        return Err(StoreError::Absent("another process answers".to_owned()));
    }
    let there = integer(there).and_then(|there| u64::try_from(there).ok());
    let now = time(now).ok_or_else(batch::garbled)?;
    if mark.is_some_and(|mark| mark.is_lost(&life.run_id, &life.replication_id, there, now)) {
        return Err(StoreError::Absent("it has gone back to an earlier state".to_owned()));
    }
    settings.counters.connection();
    Ok(link)
}

/// Counts the open connections, so that claims are not kept waiting where there is none.
struct Open<'a>(&'a Master);

impl<'a> Open<'a> {
    fn new(master: &'a Master) -> Self {
        master.open.fetch_add(1, Ordering::Relaxed);
        Self(master)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
