//! Hands the strike register over from one process to the next, over a stream between them.
//!
//! The old process sends a digest of its store's address, then the length and the bytes of the
//! register. The new process replies [`RECEIVED`], and the old one confirms with [`TRANSFERRED`]. Only then
//! does the register belong to the new process; any earlier failure leaves it where it was. After
//! that the old process sends a [`HandoffQuery`] for each flight, and the new one replies with one
//! byte, until the old one has ended.

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::ServerConfig;
use firstflight_replay::{ClaimKey, HandoffQuery, HandoffReply, InvalidSnapshot, RegisterSnapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::context::ShutdownStage;
use crate::gate::{EarlyDataGate, Successor, SuccessorRequest};
use crate::http::ServerContext;

/// Why the register was not handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The stream failed.
    #[error("the strike register was not handed over: the other process disconnected: {0}")]
    Disconnected(#[from] std::io::Error),
    /// The other process violated the protocol.
    #[error("the strike register was not handed over: {0}")]
    Invalid(#[from] InvalidSnapshot),
    /// This process has handed the register over before, or is stopping.
    #[error("this process has no strike register to hand over, or it is stopping")]
    NotOwner,
    /// The processes claim flights in different stores, and neither would know the other's claims.
    #[error(
        "the strike register was not handed over: the processes use different [store] settings; \
         stop the old process and start the new one"
    )]
    OtherStore,
    /// The other process did not respond in time.
    #[error("the strike register was not handed over within {HANDOVER_TIMEOUT:?}")]
    Timeout,
}

/// Hands the register over to the process at the other end. `config` is in use, and must not be
/// replaced meanwhile.
///
/// # Errors
/// [`HandoverError`]: this process keeps the register.
pub(crate) async fn hand_over(
    shared: &Arc<ServerContext>,
    config: &ServerConfig,
    mut stream: UnixStream,
) -> Result<(), HandoverError> {
    let (requests, mut received) = mpsc::unbounded_channel();
    if shared.shutdown.stage() != ShutdownStage::Running {
        return Err(HandoverError::NotOwner);
    }
    let closed = shared.gate.hand_over(Successor::new(requests));
    let inheritance = closed.ok_or(HandoverError::NotOwner)?;
    let sent =
        timeout(HANDOVER_TIMEOUT, send_register(&mut stream, &inheritance, &store_digest(config)))
            .await;
    if let Err(error) = sent.unwrap_or(Err(HandoverError::Timeout)) {
        shared.gate.reopen();
        // Claims that were waiting for the successor.
        while let Ok(request) = received.try_recv() {
            let _ = request.reply.send(shared.gate.reply_to(&request.query));
        }
        return Err(error);
    }
    let (flights, names) = inheritance.len();
    info!("the strike register is handed over: {flights} flights, {names} names");
    let shared = shared.clone();
    tokio::spawn(async move {
        if let Err(error) = forward_queries(&mut stream, &mut received).await {
            // Nobody knows what the successor has claimed.
            if shared.shutdown.stage() == ShutdownStage::Running {
                warn!(
                    "the process that has the strike register has ended: {error}; tickets issued \
                     before bring no early data"
                );
            }
            shared.gate.start_epoch();
            shared.gate.reopen();
        }
        // Wakes [`Successor::closed`] after the register is open.
        drop(received);
    });
    Ok(())
}

async fn send_register(
    stream: &mut UnixStream,
    inheritance: &RegisterSnapshot,
    store_digest: &str,
) -> Result<(), HandoverError> {
    stream.write_all(store_digest.as_bytes()).await?;
    let bytes = inheritance.to_bytes();
    stream.write_u64(bytes.len() as u64).await?;
    stream.write_all(&bytes).await?;
    if stream.read_u8().await? != RECEIVED {
        return Err(InvalidSnapshot.into());
    }
    // The last step that can fail. One byte fits into the buffer of a stream whose peer is alive.
    Ok(stream.write_u8(TRANSFERRED).await?)
}

/// Forwards queries to the other process as long as there can be any. Fails as soon as the other
/// process dies, even if there is nothing to send.
async fn forward_queries(
    stream: &mut UnixStream,
    received: &mut mpsc::UnboundedReceiver<SuccessorRequest>,
) -> std::io::Result<()> {
    loop {
        let request = tokio::select! {
            request = received.recv() => request,
            // The other process only sends replies, so a read without a query means the end of the
            // stream.
            read = stream.read_u8() => {
                return read.and_then(|_| Err(std::io::ErrorKind::InvalidData.into()));
            }
        };
        let Some(request) = request else { return Ok(()) };
        stream.write_all(&request.query.to_bytes()).await?;
        match HandoffReply::parse(stream.read_u8().await?) {
            Some(response) => drop(request.reply.send(response)),
            None => debug!("invalid reply to {:?}", request.query),
        }
    }
}

/// Takes the register over from the process at the other end, and responds to its queries afterwards.
///
/// # Errors
/// [`HandoverError`]: the other process keeps the register.
pub(crate) async fn take_over(
    shared: &Arc<ServerContext>,
    config: &ServerConfig,
    mut stream: UnixStream,
) -> Result<(), HandoverError> {
    let store_digest = store_digest(config);
    let receiving = timeout(HANDOVER_TIMEOUT, receive_register(&mut stream, &store_digest));
    let inheritance = receiving.await.unwrap_or(Err(HandoverError::Timeout))?;
    shared.gate.take_over(&inheritance);
    let (flights, names) = inheritance.len();
    info!("the strike register is taken over: {flights} flights, {names} names");
    let shared = shared.clone();
    tokio::spawn(async move {
        let error = serve_queries(&shared.gate, stream).await;
        debug!("the previous process has ended: {error}");
    });
    Ok(())
}

async fn receive_register(
    stream: &mut UnixStream,
    store_digest: &str,
) -> Result<RegisterSnapshot, HandoverError> {
    let mut theirs = vec![0; store_digest.len()];
    stream.read_exact(&mut theirs).await?;
    if theirs != store_digest.as_bytes() {
        return Err(HandoverError::OtherStore);
    }
    let length = stream.read_u64().await?;
    let mut bytes = Vec::new();
    // Memory grows with the received bytes, not with the announced length.
    (&mut *stream).take(length).read_to_end(&mut bytes).await?;
    let inheritance = RegisterSnapshot::parse(&bytes)?;
    stream.write_u8(RECEIVED).await?;
    match stream.read_u8().await? {
        TRANSFERRED => Ok(inheritance),
        _ => Err(InvalidSnapshot.into()),
    }
}

/// Responds to queries until the stream ends. Returns why it ended.
async fn serve_queries(gate: &EarlyDataGate, mut stream: UnixStream) -> std::io::Error {
    let mut bytes = [0; HandoffQuery::LENGTH];
    loop {
        if let Err(error) = stream.read_exact(&mut bytes).await {
            return error;
        }
        let response = HandoffQuery::parse(&bytes);
        let response = response.map_or(0, |query| gate.reply_to(&query).to_byte());
        if let Err(error) = stream.write_u8(response).await {
            return error;
        }
    }
}

/// Identifies the store: equal for equal stores, and of fixed length.
fn store_digest(config: &ServerConfig) -> String {
    let store_digest = config
        .store
        .as_ref()
        .map(|store_digest| (&store_digest.topology, &store_digest.prefix, store_digest.database));
    ClaimKey::from_name(&[format!("{store_digest:?}").as_bytes()]).to_string()
}

/// Enough for a register of a million records on a busy machine.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The new process has received the register.
const RECEIVED: u8 = 1;

/// The old process confirms that the register is the new one's.
const TRANSFERRED: u8 = 2;
