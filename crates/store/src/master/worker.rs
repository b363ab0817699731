//! One connection that carries claims and records, and is reopened when it breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use firstflight_replay::Mark;
use tokio::sync::watch;

use super::{Incarnation, Master, batch, heartbeat};
use crate::StoreError;
use crate::connection::{Connection, error_of, integer, text, time, unexpected_reply};
use crate::settings::RETRY_DELAY;

type Incarnations = watch::Receiver<Option<Arc<Incarnation>>>;

/// Runs until its task is aborted.
pub(super) async fn run(master: Arc<Master>) {
    let mut incarnations = master.incarnation.subscribe();
    // Reconnect at once the first time: the store may have closed the connection on purpose.
    let mut pause = Duration::ZERO;
    loop {
        let incarnation = match incarnations.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(incarnation)) => incarnation.clone(),
            _ => return,
        };
        let error = tokio::select! {
            error = serve_once(&master, &incarnation, &mut pause) => error,
            () = ended(&mut incarnations, &incarnation) => continue,
        };
        tracing::debug!(address = %incarnation.address, %error, "connection to the store is gone");
        tokio::time::sleep(pause).await;
        pause = RETRY_DELAY;
    }
}

/// Returns when `incarnation` has ended.
async fn ended(incarnations: &mut Incarnations, incarnation: &Arc<Incarnation>) {
    let over = |now: &Option<Arc<Incarnation>>| {
        now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, incarnation))
    };
    let _ = incarnations.wait_for(over).await;
}

async fn serve_once(
    master: &Master,
    incarnation: &Incarnation,
    pause: &mut Duration,
) -> StoreError {
    match open_worker_connection(master, incarnation).await {
        Ok(mut connection) => {
            let _open = OpenGuard::new(master);
            master.set_last_error(None);
            serve(master, incarnation, &mut connection, pause).await
        }
        Err(error) => {
            // The heartbeat's connection may work nevertheless: it logged in with an old password.
            if let StoreError::Refused(why) = &error
                && master.is_absent()
            {
                master.claim_warnings.warn(&incarnation.address, why);
                master.set_last_error(Some(error.clone()));
            }
            error
        }
    }
}

async fn serve(
    master: &Master,
    incarnation: &Incarnation,
    connection: &mut Connection,
    pause: &mut Duration,
) -> StoreError {
    loop {
        let jobs = tokio::select! {
            biased;
            error = connection.closed() => return error,
            jobs = master.queue.next() => jobs,
        };
        if let Err(error) = batch::run(connection, incarnation, master, jobs).await {
            return error;
        }
        *pause = Duration::ZERO;
    }
}

/// Opens a connection, and checks that the same process responds as in the heartbeat, and that it has
/// not returned to an earlier state since.
async fn open_worker_connection(
    master: &Master,
    incarnation: &Incarnation,
) -> Result<Connection, StoreError> {
    let settings = &master.settings;
    let mut connection = Connection::open(&incarnation.address, &settings.connect_options).await?;
    // Read the mark before the query: heartbeats continue meanwhile.
    let mark = master.continuity().mark().cloned();
    let mut request = redis::cmd("INFO").arg("server").get_packed_command();
    let mark_key = master.mark_key(mark.as_ref().map_or(0, Mark::number));
    redis::cmd("GET").arg(mark_key).write_packed_command(&mut request);
    redis::cmd("TIME").write_packed_command(&mut request);
    let values =
        tokio::time::timeout(settings.connect_options.timeout, connection.exchange(&request, 3))
            .await;
    let values = values.unwrap_or_else(|_| Err(StoreError::Absent("no reply".to_owned())))?;
    if let Some(error) = values.iter().find_map(error_of) {
        return Err(error);
    }
    let [info, mark_reply, now] = values.as_slice() else { return Err(unexpected_reply()) };
    let run_id = text(info).and_then(|info| heartbeat::field(info, "run_id"));
    if run_id != Some(incarnation.run_id.as_str()) {
        return Err(StoreError::Absent("another process listens at the address".to_owned()));
    }
    let stored_mark = integer(mark_reply).and_then(|mark| u64::try_from(mark).ok());
    let now = time(now).ok_or_else(unexpected_reply)?;
    if mark.is_some_and(|mark| {
        mark.is_lost(&incarnation.run_id, &incarnation.replication_id, stored_mark, now)
    }) {
        return Err(StoreError::Absent("it has returned to an earlier state".to_owned()));
    }
    settings.counters.connection();
    Ok(connection)
}

/// Counts the open connections, so that claims fail at once if there is none.
struct OpenGuard<'a>(&'a Master);

impl<'a> OpenGuard<'a> {
    fn new(master: &'a Master) -> Self {
        master.open_connections.fetch_add(1, Ordering::Relaxed);
        Self(master)
    }
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        self.0.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
