use std::os::raw::c_int;
use std::slice;
use std::sync::{Arc, LazyLock};

use boring::ex_data::Index;
use boring::ssl::{SslContext, SslContextBuilder, SslContextRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::TlsError;

/// Seals and opens session tickets, for all versions of TLS.
pub trait TicketSealer: Send + Sync {
    /// How many bytes sealing adds at most.
    fn max_overhead(&self) -> usize;

    /// Seals a session. `None`: no ticket is sent and the handshake goes on.
    fn seal(&self, session: &[u8]) -> Option<Vec<u8>>;

    /// Opens a ticket that some client sent; any bytes at all.
    fn open(&self, ticket: &[u8]) -> OpenedTicket;
}

/// What [`TicketSealer::open`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenedTicket {
    /// The session as it was sealed.
    Session(Vec<u8>),
    /// Not ours, or no longer: the connection goes on as a full handshake (RFC 5077 section 3.4).
    Ignored,
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
    // SAFETY: as in `seal`.
    unsafe {
        *out_len = 0;
        let ticket = slice::from_raw_parts(input, input_len);
        match sealer_of(ssl).map(|sealer| sealer.open(ticket)) {
            Some(OpenedTicket::Session(session)) if session.len() <= max_out_len => {
                slice::from_raw_parts_mut(out, session.len()).copy_from_slice(&session);
                *out_len = session.len();
                ffi::ssl_ticket_aead_result_t::ssl_ticket_aead_success
            }
            _ => ffi::ssl_ticket_aead_result_t::ssl_ticket_aead_ignore_ticket,
        }
    }
}
