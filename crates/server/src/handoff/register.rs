//! The strike register on its way from one process to the next, over a stream between the two.
//!
//! The old process sends a digest of where its store is and `length, inheritance`, the new one
//! answers [`TAKEN`], and the old one says [`YOURS`]. Only then the register is the new one's;
//! whatever breaks off before leaves it where it was. After that the old process asks, [`HandoffQuery`]
//! by [`HandoffQuery`], and the new one answers each with a byte, until the old one has gone.

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::ServerConfig;
use firstflight_replay::{ClaimKey, HandoffQuery, HandoffReply, InvalidSnapshot, RegisterSnapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::context::Stop;
use crate::gate::{EarlyDataGate, Successor, SuccessorRequest};
use crate::http::Shared;

/// Why a register stayed where it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The stream broke.
    #[error("the strike register was not handed over, the other process has gone: {0}")]
    Broken(#[from] std::io::Error),
    /// The other process did not say what was expected.
    #[error("the strike register was not handed over: {0}")]
    Bad(#[from] InvalidSnapshot),
    /// This process has handed it over before, or stops.
    #[error("the strike register is another process's already, or this one is stopping")]
    NotOurs,
    /// The processes claim flights in different registers, and neither would know of the other's.
    #[error(
        "the strike register was not handed over: [store] is another one; stop the old process \
         and start the new one instead"
    )]
    OtherStore,
    /// The other process is too slow.
    #[error("the strike register was not handed over within {HANDOVER_TIMEOUT:?}")]
    Slow,
}

/// Hands the register over to the process at the other end. `config`: in use, and not replaced
/// meanwhile.
///
/// # Errors
/// [`HandOverError`]: the register is this process's still.
pub(crate) async fn hand_over(
    shared: &Arc<Shared>,
    config: &ServerConfig,
    mut stream: UnixStream,
) -> Result<(), HandOverError> {
    let (requests, mut received) = mpsc::unbounded_channel();
    if shared.shutdown.stage() != Stop::No {
        return Err(HandOverError::NotOurs);
    }
    let closed = shared.gate.close(Successor::new(requests));
    let inheritance = closed.ok_or(HandOverError::NotOurs)?;
    let given = timeout(HANDOVER_TIMEOUT, give(&mut stream, &inheritance, &store(config))).await;
    if let Err(error) = given.unwrap_or(Err(HandOverError::Slow)) {
        shared.gate.reopen();
        // What came meanwhile.
        while let Ok(ask) = received.try_recv() {
            let _ = ask.reply.send(shared.gate.response(&ask.question));
        }
        return Err(error);
    }
    let (flights, names) = inheritance.len();
    info!("the strike register is handed over: {flights} flights, {names} names");
    let shared = shared.clone();
    tokio::spawn(async move {
        if let Err(error) = ask_all(&mut stream, &mut received).await {
            // What it has claimed nobody knows.
            if shared.shutdown.stage() == Stop::No {
                warn!(
                    "the process that has the strike register is gone: {error}; tickets issued \
                     before bring no early data"
                );
            }
            shared.gate.start_epoch();
            shared.gate.reopen();
        }
        // Tells [`Successor::gone`], once the register is open.
        drop(received);
    });
    Ok(())
}

async fn give(
    stream: &mut UnixStream,
    inheritance: &RegisterSnapshot,
    store: &str,
) -> Result<(), HandOverError> {
    stream.write_all(store.as_bytes()).await?;
    let bytes = inheritance.to_bytes();
    stream.write_u64(bytes.len() as u64).await?;
    stream.write_all(&bytes).await?;
    if stream.read_u8().await? != TAKEN {
        return Err(InvalidSnapshot.into());
    }
    // The last that can fail. A byte for a process that is there arrives.
    Ok(stream.write_u8(YOURS).await?)
}

/// Asks the other process what comes up here, as long as anybody can. Returns an error at once if
/// the other process dies, also if there is nothing to ask.
async fn ask_all(
    stream: &mut UnixStream,
    received: &mut mpsc::UnboundedReceiver<SuccessorRequest>,
) -> std::io::Result<()> {
    loop {
        let ask = tokio::select! {
            ask = received.recv() => ask,
            // The other process sends nothing unasked, so this is the end of the stream.
            read = stream.read_u8() => {
                return read.and_then(|_| Err(std::io::ErrorKind::InvalidData.into()));
            }
        };
        let Some(ask) = ask else { return Ok(()) };
        stream.write_all(&ask.question.to_bytes()).await?;
        match HandoffReply::parse(stream.read_u8().await?) {
            Some(response) => drop(ask.reply.send(response)),
            None => debug!("no answer to {:?}", ask.question),
        }
    }
}

/// Takes the register over from the process at the other end, and answers its questions from then
/// on.
///
/// # Errors
/// [`HandOverError`]: the other process has the register still.
pub(crate) async fn take_over(
    shared: &Arc<Shared>,
    config: &ServerConfig,
    mut stream: UnixStream,
) -> Result<(), HandOverError> {
    let store = store(config);
    let taking = timeout(HANDOVER_TIMEOUT, take(&mut stream, &store));
    let inheritance = taking.await.unwrap_or(Err(HandOverError::Slow))?;
    shared.gate.take_over(&inheritance);
    let (flights, names) = inheritance.len();
    info!("the strike register is taken over: {flights} flights, {names} names");
    let shared = shared.clone();
    tokio::spawn(async move {
        let error = answer_all(&shared.gate, stream).await;
        debug!("the process before this one has gone: {error}");
    });
    Ok(())
}

async fn take(stream: &mut UnixStream, store: &str) -> Result<RegisterSnapshot, HandOverError> {
    let mut theirs = vec![0; store.len()];
    stream.read_exact(&mut theirs).await?;
    if theirs != store.as_bytes() {
        return Err(HandOverError::OtherStore);
    }
    let length = stream.read_u64().await?;
    let mut bytes = Vec::new();
    // Memory is taken as the bytes come.
    (&mut *stream).take(length).read_to_end(&mut bytes).await?;
    let inheritance = RegisterSnapshot::parse(&bytes)?;
    stream.write_u8(TAKEN).await?;
    match stream.read_u8().await? {
        YOURS => Ok(inheritance),
        _ => Err(InvalidSnapshot.into()),
    }
}

/// Answers questions until the stream ends, and says why it did.
async fn answer_all(gate: &EarlyDataGate, mut stream: UnixStream) -> std::io::Error {
    let mut bytes = [0; HandoffQuery::LENGTH];
    loop {
        if let Err(error) = stream.read_exact(&mut bytes).await {
            return error;
        }
        let response = HandoffQuery::parse(&bytes);
        let response = response.map_or(0, |question| gate.response(&question).to_byte());
        if let Err(error) = stream.write_u8(response).await {
            return error;
        }
    }
}

/// Where flights are claimed: the same text for the same store, always as long.
fn store(config: &ServerConfig) -> String {
    let store = config.store.as_ref().map(|store| (&store.topology, &store.prefix, store.database));
    ClaimKey::from_name(&[format!("{store:?}").as_bytes()]).to_string()
}

/// For a register of a million records and a machine that is busy.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The new process has read all.
const TAKEN: u8 = 1;

/// The old process has read that.
const YOURS: u8 = 2;
