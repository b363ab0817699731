//! Hands the strike register and the punctured ticket keys over from one process to the next, over a
//! stream between them.
//!
//! The old process sends a digest of its store's address, then the length and the bytes of the
//! register; if [`HAS_KEYS`] is set in the length, the length and the bytes of the keys follow. The new
//! process replies [`RECEIVED`], and the old one confirms with [`TRANSFERRED`]. Only then do they belong
//! to the new process; any earlier failure leaves them where they were. After that the old process
//! sends a [`HandoffQuery`] for each flight, and the new one replies with one byte, until the old one
//! has ended. To have a ticket opened, the old process sends [`OPEN`] and the length of a
//! [`TicketOffer`], padded to the length of a query, then the [`TicketOffer`]. The reply is the
//! length and the bytes of the session, or the length [`NO_SESSION`].

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::ServerConfig;
use firstflight_replay::{ClaimKey, HandoffQuery, HandoffReply, InvalidRegister, RegisterSnapshot};
use firstflight_tickets::{OpenOutcome, PuncturedTickets};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

use crate::context::ShutdownStage;
use crate::gate::{EarlyDataGate, Successor, SuccessorRequest, SuccessorSession};
use crate::handshake::tickets::TicketRing;
use crate::handshake::tickets::punctured::{TicketOffer, aged};
use crate::http::ServerContext;

/// Why the register was not handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoffError {
    /// The stream failed.
    #[error("the strike register was not handed over: the other process disconnected: {0}")]
    Disconnected(#[from] std::io::Error),
    /// The register has an unknown format.
    #[error("the strike register was not handed over: {0}")]
    Invalid(#[from] InvalidRegister),
    /// The other process did not confirm the transfer.
    #[error("the strike register was not handed over: the other process sent something else")]
    Unconfirmed,
    /// The punctured ticket keys have an unknown format.
    #[error(
        "the other process has handed over punctured ticket keys that this one cannot use; restart \
         instead of upgrading"
    )]
    InvalidKeys,
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
    #[error("the strike register was not handed over within {HANDOFF_TIMEOUT:?}")]
    Timeout,
}

/// Hands the register over to the process at the other end. `config` is in use, and must not be
/// replaced meanwhile.
///
/// # Errors
/// [`HandoffError`]: this process keeps the register.
pub(crate) async fn hand_off(
    (shared, ring): (&Arc<ServerContext>, &Arc<TicketRing>),
    config: &ServerConfig,
    mut stream: UnixStream,
) -> Result<(), HandoffError> {
    let (requests, mut received) = mpsc::unbounded_channel();
    if shared.shutdown.stage() != ShutdownStage::Running {
        return Err(HandoffError::NotOwner);
    }
    let closed = shared.gate.hand_off(Successor::new(requests));
    let register = closed.ok_or(HandoffError::NotOwner)?;
    let keys = ring.punctured().and_then(PuncturedTickets::hand_off);
    let store_digest = store_digest(config);
    let sending = send_register(&mut stream, &register, keys.as_deref(), &store_digest);
    let sent = timeout(HANDOFF_TIMEOUT, sending).await;
    if let Err(error) = sent.unwrap_or(Err(HandoffError::Timeout)) {
        take_keys(ring, keys.as_deref());
        shared.gate.reopen();
        // Claims that were waiting for the successor. Tickets are tried here again.
        while let Ok(request) = received.try_recv() {
            if let SuccessorRequest::Claim { query, reply } = request {
                let _ = reply.send(shared.gate.reply_to(&query));
            }
        }
        return Err(error);
    }
    drop(keys);
    let (flights, names) = register.len();
    info!("the strike register is handed over: {flights} flights, {names} names");
    let (shared, ring) = (shared.clone(), ring.clone());
    tokio::spawn(async move {
        if let Err(error) = forward_queries(&mut stream, &mut received, &shared.gate).await {
            // Nobody knows what the successor has claimed by itself.
            if shared.shutdown.stage() == ShutdownStage::Running {
                warn!(
                    "the process that has the strike register has ended: {error}; tickets issued \
                     before bring no early data, and idempotency keys and nonces that are not known \
                     here get 503 for their lifetime, or until a restart"
                );
            }
            if let Some(punctured) = ring.punctured() {
                punctured.replace_keys();
            }
            shared.gate.take_back();
        }
        // Wakes [`Successor::closed`] after the register is open.
        drop(received);
    });
    Ok(())
}

async fn send_register(
    stream: &mut UnixStream,
    register: &RegisterSnapshot,
    keys: Option<&Vec<u8>>,
    store_digest: &str,
) -> Result<(), HandoffError> {
    stream.write_all(store_digest.as_bytes()).await?;
    let bytes = register.to_bytes();
    let flag = if keys.is_some() { HAS_KEYS } else { 0 };
    stream.write_u64(bytes.len() as u64 | flag).await?;
    stream.write_all(&bytes).await?;
    if let Some(keys) = keys {
        stream.write_u64(keys.len() as u64).await?;
        stream.write_all(keys).await?;
    }
    if stream.read_u8().await? != RECEIVED {
        return Err(HandoffError::Unconfirmed);
    }
    // The last step that can fail. One byte fits into the buffer of a stream whose peer is alive.
    Ok(stream.write_u8(TRANSFERRED).await?)
}

/// Forwards queries to the other process as long as there can be any. Fails as soon as the other
/// process dies, even if there is nothing to send.
async fn forward_queries(
    stream: &mut UnixStream,
    received: &mut mpsc::UnboundedReceiver<SuccessorRequest>,
    gate: &EarlyDataGate,
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
        match request {
            None => return Ok(()),
            Some(SuccessorRequest::Claim { query, reply }) => {
                stream.write_all(&query.to_bytes()).await?;
                match HandoffReply::parse(stream.read_u8().await?) {
                    Some(response) => {
                        // Before the request runs.
                        gate.record_reply(&query, response);
                        let _ = reply.send(response);
                    }
                    None => debug!("invalid reply to {query:?}"),
                }
            }
            Some(SuccessorRequest::Open { offer, reply }) => {
                let _ = reply.send(open_ticket(stream, &offer).await?);
            }
        }
    }
}

/// Has the other process open a punctured ticket.
async fn open_ticket(stream: &mut UnixStream, offer: &[u8]) -> std::io::Result<SuccessorSession> {
    let mut request = vec![0; HandoffQuery::LENGTH];
    request[0] = OPEN;
    request[1..5].copy_from_slice(&(offer.len() as u32).to_be_bytes());
    request.extend_from_slice(offer);
    stream.write_all(&request).await?;
    match stream.read_u32().await? {
        NO_SESSION => Ok(None),
        length if length > MAX_OFFER_BYTES => Err(std::io::ErrorKind::InvalidData.into()),
        length => {
            let mut session = Zeroizing::new(vec![0; length as usize]);
            stream.read_exact(&mut session).await?;
            Ok(Some(session))
        }
    }
}

/// Takes over keys that another process has sent, or takes back keys that it did not accept.
/// Returns false if they are invalid.
fn take_keys(ring: &TicketRing, keys: Option<&Vec<u8>>) -> bool {
    match (ring.punctured(), keys) {
        (Some(punctured), Some(keys)) => punctured.take_over(keys).is_ok(),
        // The other process has no such keys, or this one does not use them: its clients make full
        // handshakes.
        _ => true,
    }
}

/// Takes the register over from the process at the other end, and responds to its queries afterwards.
///
/// # Errors
/// [`HandoffError`]: the other process keeps the register.
pub(crate) async fn take_over(
    (shared, ring): (&Arc<ServerContext>, &Arc<TicketRing>),
    config: &ServerConfig,
    mut stream: UnixStream,
) -> Result<(), HandoffError> {
    let store_digest = store_digest(config);
    let receiving = timeout(HANDOFF_TIMEOUT, receive_register(&mut stream, ring, &store_digest));
    let register = receiving.await.unwrap_or(Err(HandoffError::Timeout))?;
    shared.gate.take_over(&register);
    let (flights, names) = register.len();
    info!("the strike register is taken over: {flights} flights, {names} names");
    let (shared, ring) = (shared.clone(), ring.clone());
    tokio::spawn(async move {
        let error = serve_queries(&shared.gate, &ring, stream).await;
        debug!("the previous process has ended: {error}");
    });
    Ok(())
}

async fn receive_register(
    stream: &mut UnixStream,
    ring: &TicketRing,
    store_digest: &str,
) -> Result<RegisterSnapshot, HandoffError> {
    let mut their_digest = vec![0; store_digest.len()];
    stream.read_exact(&mut their_digest).await?;
    if their_digest != store_digest.as_bytes() {
        return Err(HandoffError::OtherStore);
    }
    let length = stream.read_u64().await?;
    let mut bytes = Vec::new();
    // Memory grows with the received bytes, not with the announced length.
    (&mut *stream).take(length & !HAS_KEYS).read_to_end(&mut bytes).await?;
    let register = RegisterSnapshot::parse(&bytes)?;
    let keys = match length & HAS_KEYS {
        0 => None,
        _ => Some(receive_keys(stream).await?),
    };
    stream.write_u8(RECEIVED).await?;
    // The keys are the other process's until it confirms.
    if stream.read_u8().await? != TRANSFERRED {
        return Err(HandoffError::Unconfirmed);
    }
    match take_keys(ring, keys.as_deref()) {
        true => Ok(register),
        false => Err(HandoffError::InvalidKeys),
    }
}

async fn receive_keys(stream: &mut UnixStream) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let length = stream.read_u64().await?;
    if length > MAX_KEYS_BYTES {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    // Reserved at once, because growing would leave copies behind.
    let mut keys = Zeroizing::new(Vec::with_capacity(length as usize));
    stream.take(length).read_to_end(&mut keys).await?;
    Ok(keys)
}

/// Responds to queries until the stream ends. Returns why it ended.
async fn serve_queries(
    gate: &EarlyDataGate,
    ring: &TicketRing,
    mut stream: UnixStream,
) -> std::io::Error {
    let mut bytes = [0; HandoffQuery::LENGTH];
    loop {
        if let Err(error) = stream.read_exact(&mut bytes).await {
            return error;
        }
        let served = match bytes {
            [OPEN, a, b, c, d, ..] => {
                serve_ticket(ring, &mut stream, u32::from_be_bytes([a, b, c, d])).await
            }
            _ => {
                let response = HandoffQuery::parse(&bytes);
                let response = response.map_or(0, |query| gate.reply_to(&query).to_byte());
                stream.write_u8(response).await
            }
        };
        if let Err(error) = served {
            return error;
        }
    }
}

/// Opens a punctured ticket for the other process.
async fn serve_ticket(
    ring: &TicketRing,
    stream: &mut UnixStream,
    length: u32,
) -> std::io::Result<()> {
    if length > MAX_OFFER_BYTES {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut offer = vec![0; length as usize];
    stream.read_exact(&mut offer).await?;
    let opened = match (ring.punctured(), TicketOffer::from_bytes(&offer)) {
        (Some(punctured), Some(offer)) => offer.open(punctured),
        _ => OpenOutcome::Unknown,
    };
    match opened {
        OpenOutcome::Session { content, sealed_at } => {
            let session = aged(content, sealed_at);
            stream.write_u32(session.len() as u32).await?;
            stream.write_all(&session).await
        }
        _ => stream.write_u32(NO_SESSION).await,
    }
}

/// Identifies the store: equal for equal stores, and of fixed length.
fn store_digest(config: &ServerConfig) -> String {
    let store = config.store.as_ref();
    let identity = store.map(|store| (&store.topology, &store.prefix, store.database));
    ClaimKey::from_name(&[format!("{identity:?}").as_bytes()]).to_string()
}

/// Enough for a register of a million records on a busy machine.
const HANDOFF_TIMEOUT: Duration = Duration::from_secs(10);

/// In the length of the register: the punctured ticket keys follow.
const HAS_KEYS: u64 = 1 << 63;

/// More than punctured ticket keys may take in memory.
const MAX_KEYS_BYTES: u64 = 1 << 30;

/// The first byte of a ticket to open; no query starts with it.
const OPEN: u8 = 0x40;

/// In place of a session's length: the ticket was not opened.
const NO_SESSION: u32 = u32::MAX;

/// A ticket of 64 KiB with its client's proof.
const MAX_OFFER_BYTES: u32 = 65_535 + 512;

/// The new process has received the register.
const RECEIVED: u8 = 1;

/// The old process confirms that the register belongs to the new one.
const TRANSFERRED: u8 = 2;
