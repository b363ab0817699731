//! Sealing and opening of session tickets.

use std::fmt;
use std::os::raw::c_int;
use std::slice;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use boring::ex_data::Index;
use boring::ssl::{
    ClientHello, ExtensionType, Ssl, SslContext, SslContextBuilder, SslContextRef, SslRef,
    SslVersion,
};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;
use zeroize::{Zeroize, Zeroizing};

use crate::context::Slot;
use crate::{EarlyDataReason, PskOffer, TlsError, session};

/// Seals and opens session tickets, for all TLS versions.
pub trait TicketSealer: Send + Sync {
    /// The most bytes that sealing adds.
    fn max_overhead(&self) -> usize;

    /// Seals a session. If it returns `None`, no ticket is sent and the handshake continues.
    fn seal(&self, session: &[u8]) -> Option<Vec<u8>>;

    /// Opens a ticket from a client. The bytes are untrusted.
    fn open(&self, ticket: &[u8]) -> OpenedTicket;

    /// Whether tickets that are issued now allow early data. If not, their clients do not offer
    /// any.
    fn allows_early_data(&self) -> bool {
        true
    }

    /// Whether TLS 1.3 tickets can be used only once. Then [`TicketSealer::seal_once`],
    /// [`TicketSealer::read_once`] and [`TicketSealer::use_up`] are called for TLS 1.3, and
    /// [`TicketSealer::seal`] and [`TicketSealer::open`] for TLS 1.2 only.
    fn uses_up_tickets(&self) -> bool {
        false
    }

    /// Seals a session of TLS 1.3.
    fn seal_once(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.seal(session)
    }

    /// Opens a ticket that a client offers as a pre-shared key, without using it up. The client's
    /// binder is not verified yet; `offer` lets another process that opens the ticket verify it.
    fn read_once(&self, ticket: &[u8], _offer: &PskOffer) -> OpenedTicket {
        self.open(ticket)
    }

    /// Uses up a ticket whose client has proved by its binder that it knows the session's secret. Called
    /// before anything is sent. Of several concurrent callers with the same ticket, one gets
    /// [`TicketUse::First`].
    fn use_up(&self, _ticket: &[u8]) -> TicketUse {
        TicketUse::First
    }
}

/// The outcome of [`TicketSealer::use_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketUse {
    /// The ticket was unused, and nobody can open it any more.
    First,
    /// Another connection used the ticket first.
    Again,
    /// Another process has taken over the keys meanwhile; [`TicketSealer::read_once`] now returns
    /// [`OpenedTicket::NeedsLookup`].
    HandedOver,
}

/// The outcome of [`TicketSealer::open`]. A session that is longer than its ticket is treated as
/// [`OpenedTicket::Ignored`]. Dropping it overwrites the session.
#[derive(Clone, PartialEq, Eq)]
pub enum OpenedTicket {
    /// The session that was sealed.
    Session(Vec<u8>),
    /// The session of a ticket that nobody can open again. The connection keeps it until its early
    /// data is decided.
    UsedUp(Vec<u8>),
    /// A session to resume with early data refused, and the reason. Tickets issued on the connection
    /// still allow early data.
    WithoutEarlyData(Vec<u8>, WithheldReason),
    /// The session has to be looked up by this key before the handshake can continue; see
    /// [`crate::Accepting`] and [`crate::TlsConnection::take_needed_session`].
    NeedsLookup(Vec<u8>),
    /// The ticket was used before. Handled as [`OpenedTicket::Ignored`], but reported as
    /// [`EarlyDataReason::TicketUsed`].
    AlreadyUsed,
    /// The ticket is unknown or expired: the handshake continues as a full one (RFC 5077 section
    /// 3.4).
    Ignored,
}

/// Why a sealer allows a session to be resumed, but not with early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithheldReason {
    /// The ticket was issued in another zone.
    Zone,
    /// The ticket was issued in another ticket epoch.
    Epoch,
    /// The session comes from a store that may have returned it to another node too.
    Store,
}

impl fmt::Debug for OpenedTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Sessions are secrets, and lookup keys may be.
        f.write_str(match self {
            Self::Session(_) => "Session(..)",
            Self::UsedUp(_) => "UsedUp(..)",
            Self::WithoutEarlyData(..) => "WithoutEarlyData(..)",
            Self::NeedsLookup(_) => "NeedsLookup(..)",
            Self::AlreadyUsed => "AlreadyUsed",
            Self::Ignored => "Ignored",
        })
    }
}

impl OpenedTicket {
    /// Takes the session out, if there is one.
    pub(crate) fn take_session(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Self::Session(session) | Self::UsedUp(session) | Self::WithoutEarlyData(session, _) => {
                Some(Zeroizing::new(std::mem::take(session)))
            }
            Self::NeedsLookup(_) | Self::AlreadyUsed | Self::Ignored => None,
        }
    }

    /// Overwrites the session.
    fn wipe(&mut self) {
        match self {
            Self::Session(session) | Self::UsedUp(session) | Self::WithoutEarlyData(session, _) => {
                session.zeroize();
            }
            Self::NeedsLookup(_) | Self::AlreadyUsed | Self::Ignored => {}
        }
    }
}

impl Drop for OpenedTicket {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// The state of a connection's ticket, beyond its session.
#[derive(Default)]
struct TicketOutcome {
    /// The key by which to look up the session, until the caller has taken it.
    needed: Option<Vec<u8>>,
    /// The pre-shared key that the client offers, until its ticket is opened. Only with a sealer whose
    /// tickets are used up.
    offer: Option<PskOffer>,
    /// The ticket that was opened and is to be used up when the client's binder has been verified.
    unused: Option<UnusedTicket>,
    /// Whether another connection used the ticket first, or another process took over the keys.
    lost: bool,
    /// The session that was looked up, or whose ticket is used up.
    provided: Option<OpenedTicket>,
    /// Whether the ticket was used up by this connection.
    used_up: bool,
    /// Whether another connection used the ticket before.
    already_used: bool,
    /// Whether `already_used` was reported to the caller.
    already_used_reported: bool,
    /// Why the sealer does not allow early data, if it does not.
    withheld: Option<WithheldReason>,
    /// Whether early data is refused on this connection by changing its session (QUIC).
    declined: bool,
    /// Whether the sealer has ignored the ticket.
    ignored: bool,
    /// Tickets issued in place of the one that the client used.
    replacements: u8,
    /// Whether a connection that accepts early data issues two replacements.
    second_ticket: bool,
}

struct UnusedTicket {
    ticket: Vec<u8>,
    session: Zeroizing<Vec<u8>>,
}

static TICKET_OUTCOME: Slot<Mutex<TicketOutcome>> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for ticket outcomes"));

/// Returns the state of a connection's ticket, or `None` if there is nothing beyond its session.
fn ticket_outcome(ssl: &SslRef) -> Option<MutexGuard<'_, TicketOutcome>> {
    let ticket_outcome = ssl.ex_data(*TICKET_OUTCOME)?;
    Some(ticket_outcome.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Updates the state of a connection's ticket.
fn update_ticket_outcome(ssl: &mut SslRef, change: impl FnOnce(&mut TicketOutcome)) {
    match ssl.ex_data_mut(*TICKET_OUTCOME) {
        Some(known) => change(known.get_mut().unwrap_or_else(PoisonError::into_inner)),
        None => {
            let mut ticket_outcome = TicketOutcome::default();
            change(&mut ticket_outcome);
            ssl.set_ex_data(*TICKET_OUTCOME, Mutex::new(ticket_outcome));
        }
    }
}

/// Takes the key by which to look up the session of a connection's ticket; see
/// [`crate::TlsConnection::take_needed_session`].
pub fn take_needed_session(ssl: &SslRef) -> Option<Vec<u8>> {
    ticket_outcome(ssl)?.needed.take()
}

/// Provides the session that was looked up; see [`crate::TlsConnection::provide_session`].
pub fn provide_session(ssl: &mut SslRef, session: OpenedTicket) {
    let session = match session {
        OpenedTicket::NeedsLookup(_) => OpenedTicket::Ignored,
        found => found,
    };
    update_ticket_outcome(ssl, |outcome| outcome.provided = Some(session));
}

/// The session that was looked up, or whose ticket this connection has used up, or
/// [`OpenedTicket::AlreadyUsed`]. Provide it to the connection that replaces this one.
pub fn provided_session(ssl: &SslRef) -> Option<OpenedTicket> {
    ticket_outcome(ssl)?.provided.clone()
}

/// Overwrites what [`provided_session`] returns. Call this when the connection's early data is
/// decided: from then on, nobody needs it.
pub fn forget_session(ssl: &SslRef) {
    if let Some(mut outcome) = ticket_outcome(ssl)
        && outcome.provided.take().is_some()
    {
        outcome.ignored = true;
    }
}

/// Whether another connection used the ticket before. Returns true once.
pub(crate) fn take_already_used(ssl: &SslRef) -> bool {
    ticket_outcome(ssl).is_some_and(|mut outcome| {
        outcome.already_used && !std::mem::replace(&mut outcome.already_used_reported, true)
    })
}

/// Whether the connection has used up its ticket.
pub(crate) fn is_used_up(ssl: &SslRef) -> bool {
    ticket_outcome(ssl).is_some_and(|outcome| outcome.used_up)
}

/// Whether the ticket was lost to another connection or process; see [`use_up`].
pub(crate) fn is_lost(ssl: &SslRef) -> bool {
    ticket_outcome(ssl).is_some_and(|outcome| outcome.lost)
}

/// The lookup key of a session that was not looked up.
pub(crate) fn needed_session(ssl: &SslRef) -> Option<Vec<u8>> {
    ticket_outcome(ssl)?.needed.clone()
}

/// Keeps the pre-shared key that a ClientHello offers, for [`TicketSealer::read_once`].
pub(crate) fn keep_offer(hello: &mut ClientHello<'_>) {
    let Some(content) = hello.get_extension(ExtensionType::PRE_SHARED_KEY) else { return };
    let Some(offer) = PskOffer::read(hello.as_bytes(), content) else { return };
    update_ticket_outcome(hello.ssl_mut(), |outcome| outcome.offer = Some(offer));
}

/// Opens a ticket that BoringSSL did not use. Returns the session that was looked up for it, or whose
/// ticket is used up, else what the sealer returns, or `None` if the connection has no sealer.
pub(crate) fn reopen(ssl: &SslRef, ticket: &[u8]) -> Option<OpenedTicket> {
    if let Some(known) = ticket_outcome(ssl) {
        if known.ignored || known.needed.is_some() {
            return Some(OpenedTicket::Ignored);
        }
        if let Some(provided) = &known.provided {
            return Some(provided.clone());
        }
    }
    let sealer = ssl.ssl_context().ex_data(*SEALER)?;
    match sealer.uses_up_tickets() {
        // A TLS 1.3 ticket whose client has not proved that it knows the secret.
        true => Some(OpenedTicket::Ignored),
        false => Some(sealer.open(ticket)),
    }
}

/// Opens a ticket that will be used up, and keeps its session until then.
fn read_once(ssl: &mut SslRef, sealer: &Sealer, ticket: &[u8]) -> OpenedTicket {
    let Some(mut outcome) = ticket_outcome(ssl) else { return OpenedTicket::Ignored };
    let Some(offer) = &outcome.offer else { return OpenedTicket::Ignored };
    let opened = sealer.read_once(ticket, offer);
    if let OpenedTicket::Session(session) = &opened {
        let session = Zeroizing::new(session.clone());
        outcome.unused = Some(UnusedTicket { ticket: ticket.to_vec(), session });
    }
    opened
}

/// Uses up the ticket that a connection has resumed. Call this once BoringSSL has written its flight, so
/// that it has verified the binder, and before anything is sent.
///
/// Returns false if the ticket was lost to another connection or process. This connection must then
/// send nothing; a new one, provided with [`provided_session`], takes its place.
pub fn use_up(ssl: &mut SslRef) -> bool {
    let resumed = ssl.session_reused();
    let sealer = ssl.ssl_context().ex_data(*SEALER);
    let (Some(sealer), Some(mut outcome)) = (sealer, ticket_outcome(ssl)) else { return true };
    outcome.offer = None;
    if let Some(unused) = outcome.unused.take()
        && resumed
    {
        outcome.use_up(unused, sealer);
    }
    !outcome.lost
}

/// Uses up a ticket that BoringSSL does not resume, for example because it is for another site or
/// cipher. BoringSSL does not verify its binder, so this function does. Otherwise a copy could be
/// accepted after a change of the configuration.
pub(crate) fn use_up_unresumed(ssl: &SslRef, ticket: &[u8]) {
    let sealer = ssl.ssl_context().ex_data(*SEALER).filter(|sealer| sealer.uses_up_tickets());
    let (Some(sealer), Some(mut outcome)) = (sealer, ticket_outcome(ssl)) else { return };
    let Some(offer) = outcome.offer.take() else { return };
    if outcome.ignored || outcome.needed.is_some() || outcome.provided.is_some() {
        return;
    }
    if outcome.unused.is_none() {
        match &mut sealer.read_once(ticket, &offer) {
            OpenedTicket::Session(session) => {
                let session = Zeroizing::new(std::mem::take(session));
                outcome.unused = Some(UnusedTicket { ticket: ticket.to_vec(), session });
            }
            OpenedTicket::AlreadyUsed => outcome.already_used = true,
            _ => {}
        }
    }
    if let Some(unused) = outcome.unused.take()
        && offer.proves(&unused.session)
    {
        outcome.use_up(unused, sealer);
    }
}

impl TicketOutcome {
    fn use_up(&mut self, mut unused: UnusedTicket, sealer: &Sealer) {
        match sealer.use_up(&unused.ticket) {
            TicketUse::First => {
                let session = std::mem::take(&mut *unused.session);
                (self.used_up, self.provided) = (true, Some(OpenedTicket::UsedUp(session)));
            }
            TicketUse::Again => {
                (self.lost, self.provided) = (true, Some(OpenedTicket::AlreadyUsed));
            }
            TicketUse::HandedOver => self.lost = true,
        }
    }
}

fn note_used_up(ssl: &mut SslRef, opened: &OpenedTicket) {
    match opened {
        OpenedTicket::UsedUp(_) => update_ticket_outcome(ssl, |outcome| outcome.used_up = true),
        OpenedTicket::AlreadyUsed => {
            update_ticket_outcome(ssl, |outcome| outcome.already_used = true);
        }
        _ => {}
    }
}

/// Refuses early data on a QUIC connection whose ClientHello has not been processed. BoringSSL's
/// switch cannot be used: it would also omit the early-data context from the tickets that the
/// connection issues. Instead, the session is changed so that it does not allow early data.
pub fn decline_early_data(ssl: &mut SslRef) {
    update_ticket_outcome(ssl, |outcome| outcome.declined = true);
}

/// Replaces BoringSSL's reason if the sealer or the caller caused the refusal.
pub(crate) fn refine_reason(ssl: &SslRef, reason: EarlyDataReason) -> EarlyDataReason {
    let Some(ticket_outcome) = ticket_outcome(ssl) else { return reason };
    match (reason, ticket_outcome.withheld) {
        (EarlyDataReason::Disabled | EarlyDataReason::UnsupportedForSession, Some(why)) => {
            EarlyDataReason::Withheld(why)
        }
        (EarlyDataReason::UnsupportedForSession, None) if ticket_outcome.declined => {
            EarlyDataReason::Disabled
        }
        (EarlyDataReason::SessionNotResumed, _) if ticket_outcome.already_used => {
            EarlyDataReason::TicketUsed
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

/// Makes `context` issue `tickets` tickets per TLS 1.3 handshake, sealed by `sealer`.
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
        reason: format!("{tickets} is more than BoringSSL sends"),
    })
}

/// Returns the sealer of a connection's context.
///
/// # Safety
/// `ssl` must be valid.
unsafe fn sealer_of<'a>(ssl: *mut ffi::SSL) -> Option<&'a Sealer> {
    // SAFETY: a valid connection has a valid context, which lives at least as long.
    unsafe {
        let context: &SslContextRef = SslContextRef::from_ptr(ffi::SSL_get_SSL_CTX(ssl));
        context.ex_data(*SEALER)
    }
}

unsafe extern "C" fn max_overhead(ssl: *mut ffi::SSL) -> usize {
    // SAFETY: BoringSSL passes a valid connection.
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
    // SAFETY: BoringSSL passes a valid connection and `input_len` readable bytes. The plaintext is
    // copied before anything is written, because both buffers may be the same.
    unsafe {
        *out_len = 0;
        if is_superfluous(SslRef::from_ptr_mut(ssl)) {
            return 1;
        }
        let session = slice::from_raw_parts(input, input_len);
        let is_tls13 = SslRef::from_ptr_mut(ssl).version2() == Some(SslVersion::TLS1_3);
        let sealed = sealer_of(ssl).and_then(|sealer| match is_tls13 {
            true => sealer.seal_once(session),
            false => sealer.seal(session),
        });
        if let Some(ticket) = sealed
            && ticket.len() <= max_out_len
        {
            slice::from_raw_parts_mut(out, ticket.len()).copy_from_slice(&ticket);
            *out_len = ticket.len();
        }
    }
    // Length 0: no ticket is sent, and the handshake continues.
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
    use ffi::ssl_ticket_aead_result_t as TicketResult;
    // SAFETY: as in `seal`. BoringSSL calls back from within a call on this connection, during
    // which nobody else accesses its slots.
    unsafe {
        *out_len = 0;
        let ticket = slice::from_raw_parts(input, input_len);
        let connection = SslRef::from_ptr_mut(ssl);
        let provided = ticket_outcome(connection).and_then(|known| known.provided.clone());
        let is_tls13 = connection.version2() == Some(SslVersion::TLS1_3);
        let mut opened = match (provided, sealer_of(ssl).cloned()) {
            (Some(provided), _) => provided,
            (None, Some(sealer)) if is_tls13 && sealer.uses_up_tickets() => {
                read_once(connection, &sealer, ticket)
            }
            (None, Some(sealer)) => sealer.open(ticket),
            (None, None) => OpenedTicket::Ignored,
        };
        note_used_up(connection, &opened);
        let is_declined = match &mut opened {
            OpenedTicket::Session(_) | OpenedTicket::UsedUp(_) => declined(connection),
            OpenedTicket::WithoutEarlyData(_, why) => {
                let why = *why;
                update_ticket_outcome(connection, |outcome| outcome.withheld = Some(why));
                let is_quic = ffi::SSL_is_quic(ssl) == 1;
                if !is_quic {
                    // BoringSSL reads the flag after this; `TlsConnection` sets it anew.
                    ffi::SSL_set_early_data_enabled(ssl, 0);
                }
                is_quic
            }
            OpenedTicket::NeedsLookup(id) => {
                let id = std::mem::take(id);
                update_ticket_outcome(connection, |outcome| outcome.needed = Some(id));
                return TicketResult::ssl_ticket_aead_retry;
            }
            OpenedTicket::AlreadyUsed | OpenedTicket::Ignored => {
                update_ticket_outcome(connection, |outcome| outcome.ignored = true);
                return TicketResult::ssl_ticket_aead_ignore_ticket;
            }
        };
        let session = opened.take_session().and_then(|session| match is_declined {
            true => session::without_early_data(&session).map(Zeroizing::new),
            false => Some(session),
        });
        let Some(session) = session.filter(|session| session.len() <= max_out_len) else {
            return TicketResult::ssl_ticket_aead_ignore_ticket;
        };
        slice::from_raw_parts_mut(out, session.len()).copy_from_slice(&session);
        *out_len = session.len();
        TicketResult::ssl_ticket_aead_success
    }
}

/// Decides whether the tickets that a server's connection issues allow early data: if `enabled`,
/// and if the sealer allows it. Call this after the ClientHello has been processed: BoringSSL's
/// switch then affects nothing else.
pub fn decide_early_data_of_tickets(ssl: &mut SslRef, enabled: bool) {
    // SAFETY: the connection is valid.
    unsafe {
        let allowed = sealer_of(ssl.as_ptr()).is_none_or(|sealer| sealer.allows_early_data());
        ffi::SSL_set_early_data_enabled(ssl.as_ptr(), (enabled && allowed).into());
    }
}

/// Makes a connection issue two tickets if it accepts early data, instead of one.
pub fn issue_second_ticket(ssl: &mut SslRef) {
    update_ticket_outcome(ssl, |outcome| outcome.second_ticket = true);
}

/// Whether the client needs no further ticket. A resumed TLS 1.3 connection issues one ticket in
/// place of the one that the client used (RFC 8446 appendix C.4 advises using each only once). The
/// client still has the other tickets of its first connection.
fn is_superfluous(ssl: &mut SslRef) -> bool {
    if !ssl.session_reused() || ssl.version2() != Some(SslVersion::TLS1_3) {
        return false;
    }
    // SAFETY: the connection is valid, and the call only reads.
    let accepted = unsafe { ffi::SSL_early_data_accepted(ssl.as_ptr()) == 1 };
    let mut superfluous = false;
    update_ticket_outcome(ssl, |outcome| {
        let allowed = 1 + u8::from(outcome.second_ticket && accepted);
        superfluous = outcome.replacements >= allowed;
        outcome.replacements = outcome.replacements.saturating_add(1);
    });
    superfluous
}

fn declined(ssl: &SslRef) -> bool {
    ticket_outcome(ssl).is_some_and(|outcome| outcome.declined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_overwritten_when_taken_or_dropped() {
        let secret = || b"secret".to_vec();
        let mut opened = OpenedTicket::UsedUp(secret());
        assert_eq!(opened.take_session().unwrap().as_slice(), b"secret");
        assert_eq!(opened, OpenedTicket::UsedUp(Vec::new()));
        for mut dropped in [OpenedTicket::Session(secret()), OpenedTicket::UsedUp(secret())] {
            dropped.wipe();
            assert!(dropped.take_session().unwrap().is_empty());
        }
    }
}
