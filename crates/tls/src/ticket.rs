use std::fmt;
use std::os::raw::c_int;
use std::slice;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use boring::ex_data::Index;
use boring::ssl::{Ssl, SslContext, SslContextBuilder, SslContextRef, SslRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::context::Slot;
use crate::{EarlyDataReason, TlsError, session_der};

/// Seals and opens session tickets, for all versions of TLS.
pub trait TicketSealer: Send + Sync {
    /// How many bytes sealing adds at most.
    fn max_overhead(&self) -> usize;

    /// Seals a session. `None`: no ticket is sent and the handshake goes on.
    fn seal(&self, session: &[u8]) -> Option<Vec<u8>>;

    /// Opens a ticket that some client sent; any bytes at all.
    fn open(&self, ticket: &[u8]) -> OpenedTicket;
}

/// What [`TicketSealer::open`] found. A session may not be longer than its ticket: one that is
/// counts as [`OpenedTicket::Ignored`].
#[derive(Clone, PartialEq, Eq)]
pub enum OpenedTicket {
    /// The session as it was sealed.
    Session(Vec<u8>),
    /// The same, to be resumed with early data refused, and why. Tickets issued on the connection
    /// still allow early data.
    WithoutEarlyData(Vec<u8>, Withheld),
    /// The session has to be fetched by these words before the handshake can go on; see
    /// [`crate::Accepting`] and [`crate::Machine::needed_session`].
    Elsewhere(Vec<u8>),
    /// Not ours, or no longer: the connection goes on as a full handshake (RFC 5077 section 3.4).
    Ignored,
}

/// Why a sealer resumes a session without early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// The ticket was issued in another zone.
    Zone,
    /// The ticket was issued in another ticket epoch.
    Epoch,
    /// The session comes from a store that may have given it to somebody else too.
    Store,
}

impl fmt::Debug for OpenedTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Sessions are secrets, and so may be the words by which to fetch one.
        f.write_str(match self {
            Self::Session(_) => "Session(..)",
            Self::WithoutEarlyData(..) => "WithoutEarlyData(..)",
            Self::Elsewhere(_) => "Elsewhere(..)",
            Self::Ignored => "Ignored",
        })
    }
}

/// What a connection's ticket has come to, where that is more than its session.
#[derive(Default)]
struct TicketOutcome {
    /// By what to fetch the session, as long as nobody was told.
    needed: Option<Vec<u8>>,
    /// What was fetched.
    provided: Option<OpenedTicket>,
    /// Why early data was switched off for the ticket's sake, if it was.
    withheld: Option<Withheld>,
    /// Whether early data is declined on this connection by way of its ticket.
    declined: bool,
    /// Whether the sealer has ignored the ticket.
    ignored: bool,
}

static REDEMPTION: Slot<Mutex<TicketOutcome>> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for a ticket's redemption"));

/// The redemption of a connection; `None`: its ticket was plain, or it had none.
fn redemption(ssl: &SslRef) -> Option<MutexGuard<'_, TicketOutcome>> {
    let redemption = ssl.ex_data(*REDEMPTION)?;
    Some(redemption.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Changes the redemption of a connection, which starts here if there was none.
fn redeem(ssl: &mut SslRef, change: impl FnOnce(&mut TicketOutcome)) {
    match ssl.ex_data_mut(*REDEMPTION) {
        Some(known) => change(known.get_mut().unwrap_or_else(PoisonError::into_inner)),
        None => {
            let mut redemption = TicketOutcome::default();
            change(&mut redemption);
            ssl.set_ex_data(*REDEMPTION, Mutex::new(redemption));
        }
    }
}

/// By what to fetch the session of a connection's ticket, told once; see
/// [`crate::Machine::needed_session`].
pub fn needed(ssl: &SslRef) -> Option<Vec<u8>> {
    redemption(ssl)?.needed.take()
}

/// What came of fetching; see [`crate::Machine::provide_session`].
pub fn provide(ssl: &mut SslRef, session: OpenedTicket) {
    let session = match session {
        OpenedTicket::Elsewhere(_) => OpenedTicket::Ignored,
        found => found,
    };
    redeem(ssl, |redemption| redemption.provided = Some(session));
}

/// What a ticket opens as that the library has not used: the session that was provided for it, or
/// the sealer's. `None`: the connection has no sealer.
pub(crate) fn open_again(ssl: &SslRef, ticket: &[u8]) -> Option<OpenedTicket> {
    if let Some(known) = redemption(ssl) {
        if known.ignored {
            return Some(OpenedTicket::Ignored);
        }
        if let Some(provided) = &known.provided {
            return Some(provided.clone());
        }
    }
    Some(ssl.ssl_context().ex_data(*SEALER)?.open(ticket))
}

/// Declines early data on a connection over QUIC whose ClientHello has not been looked at. The
/// library's switch would not do: it also leaves the early-data context out of the tickets that the
/// connection issues. So whatever session its ticket holds is resumed as one without early data.
pub fn decline(ssl: &mut SslRef) {
    redeem(ssl, |redemption| redemption.declined = true);
}

/// The library's reason, where it was our doing.
pub(crate) fn explain(ssl: &SslRef, reason: EarlyDataReason) -> EarlyDataReason {
    let Some(redemption) = redemption(ssl) else { return reason };
    match (reason, redemption.withheld) {
        (EarlyDataReason::Disabled | EarlyDataReason::UnsupportedForSession, Some(why)) => {
            EarlyDataReason::Withheld(why)
        }
        (EarlyDataReason::UnsupportedForSession, None) if redemption.declined => {
            EarlyDataReason::Disabled
        }
        (reason, _) => reason,
    }
}

type Sealer = Arc<dyn TicketSealer>;

static SEALER: LazyLock<Index<SslContext, Sealer>> =
    LazyLock::new(|| SslContext::new_ex_index().expect("an index for the ticket sealer"));

static METHOD: ffi::SSL_TICKET_AEAD_METHOD = ffi::SSL_TICKET_AEAD_METHOD {
    max_overhead: Some(max_overhead),
    seal: Some(seal),
    open: Some(open),
};

/// Makes `context` issue `tickets` tickets a TLS 1.3 handshake, all sealed by `sealer`.
pub(crate) fn install(
    context: &mut SslContextBuilder,
    sealer: Sealer,
    tickets: usize,
) -> Result<(), TlsError> {
    context.set_ex_data(*SEALER, sealer);
    // SAFETY: the context is valid, and METHOD is static, so it outlives every context.
    let done = unsafe {
        ffi::SSL_CTX_set_ticket_aead_method(context.as_ptr(), &METHOD);
        ffi::SSL_CTX_set_num_tickets(context.as_ptr(), tickets)
    };
    if done == 1 {
        return Ok(());
    }
    Err(TlsError::Setup {
        what: "the number of tickets",
        reason: format!("{tickets} is more than the library sends"),
    })
}

/// The sealer of the context to which a connection belongs.
///
/// SAFETY of the callers: `ssl` comes from the library, which calls back only while it is valid.
unsafe fn sealer_of<'a>(ssl: *mut ffi::SSL) -> Option<&'a Sealer> {
    // SAFETY: a valid connection has a valid context, which lives at least as long.
    unsafe {
        let context: &SslContextRef = SslContextRef::from_ptr(ffi::SSL_get_SSL_CTX(ssl));
        context.ex_data(*SEALER)
    }
}

unsafe extern "C" fn max_overhead(ssl: *mut ffi::SSL) -> usize {
    // SAFETY: called by the library with a valid connection.

    unsafe { sealer_of(ssl) }.map_or(0, |sealer| sealer.max_overhead())
}

unsafe extern "C" fn seal(
    ssl: *mut ffi::SSL,
    out: *mut u8,
    out_len: *mut usize,
    max_out_len: usize,
    input: *const u8,
    input_len: usize,
) -> c_int {
    // SAFETY: called by the library with a valid connection and `input_len` readable bytes; the
    // plaintext is copied before anything is written, because both buffers may be one.
    unsafe {
        *out_len = 0;
        let session = slice::from_raw_parts(input, input_len);
        if let Some(ticket) = sealer_of(ssl).and_then(|sealer| sealer.seal(session))
            && ticket.len() <= max_out_len
        {
            slice::from_raw_parts_mut(out, ticket.len()).copy_from_slice(&ticket);
            *out_len = ticket.len();
        }
    }
    // Length 0 means: no ticket, and the handshake goes on.
    1
}

unsafe extern "C" fn open(
    ssl: *mut ffi::SSL,
    out: *mut u8,
    out_len: *mut usize,
    max_out_len: usize,
    input: *const u8,
    input_len: usize,
) -> ffi::ssl_ticket_aead_result_t {
    use ffi::ssl_ticket_aead_result_t as Answer;
    // SAFETY: as in `seal`; the library calls back from within a call on this connection, during
    // which nobody else has hold of its slots.
    unsafe {
        *out_len = 0;
        let ticket = slice::from_raw_parts(input, input_len);
        let connection = SslRef::from_ptr_mut(ssl);
        let opened = match redemption(connection).and_then(|known| known.provided.clone()) {
            Some(provided) => provided,
            None => sealer_of(ssl).map_or(OpenedTicket::Ignored, |sealer| sealer.open(ticket)),
        };
        let session = match opened {
            OpenedTicket::Session(session) => match declined(connection) {
                true => session_der::without_early_data(&session),
                false => Some(session),
            },
            OpenedTicket::WithoutEarlyData(session, why) => {
                redeem(connection, |redemption| redemption.withheld = Some(why));
                match ffi::SSL_is_quic(ssl) {
                    1 => session_der::without_early_data(&session),
                    _ => {
                        // The library looks at the flag after this; the machine puts it back.
                        ffi::SSL_set_early_data_enabled(ssl, 0);
                        Some(session)
                    }
                }
            }
            OpenedTicket::Elsewhere(id) => {
                redeem(connection, |redemption| redemption.needed = Some(id));
                return Answer::ssl_ticket_aead_retry;
            }
            OpenedTicket::Ignored => {
                redeem(connection, |redemption| redemption.ignored = true);
                return Answer::ssl_ticket_aead_ignore_ticket;
            }
        };
        let Some(session) = session.filter(|session| session.len() <= max_out_len) else {
            return Answer::ssl_ticket_aead_ignore_ticket;
        };
        slice::from_raw_parts_mut(out, session.len()).copy_from_slice(&session);
        *out_len = session.len();
        Answer::ssl_ticket_aead_success
    }
}

fn declined(ssl: &SslRef) -> bool {
    redemption(ssl).is_some_and(|redemption| redemption.declined)
}
