//! Answers to a certificate authority that asks by TLS-ALPN-01 (RFC 8737) whose a name is.

use std::sync::{Arc, LazyLock};

use boring::ssl::{ClientHello, ExtensionType, NameType, SelectCertError, Ssl, SslOptions, SslRef};

use crate::Identity;
use crate::context::Slot;

/// The protocol by which an authority asks (RFC 8737 section 6.2). It has no application data: the
/// certificate is the response.
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The extension of a ClientHello that offers that protocol and no other, as RFC 8737 section 3
/// has authorities do.
const OFFER: &[u8] = b"\x00\x0b\x0aacme-tls/1";

/// What a server answers to authorities.
pub trait ChallengeCertificates: Send + Sync {
    /// The certificate that proves control of a name; `None`: nobody is to ask for it now.
    fn certificate(&self, server_name: &str) -> Option<Identity>;
}

/// There for a connection that is an authority's question, and answered.
static ANSWERED: Slot<()> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for an authority's question"));

/// Whether a connection is an authority's question that is answered.
pub(crate) fn is_answered(ssl: &SslRef) -> bool {
    ssl.ex_data(*ANSWERED).is_some()
}

/// Answers an authority's question. False: it is none, or nothing is there to answer.
pub(crate) fn answer(
    hello: &mut ClientHello<'_>,
    certificates: &Arc<dyn ChallengeCertificates>,
) -> Result<bool, SelectCertError> {
    let alpn = hello.get_extension(ExtensionType::APPLICATION_LAYER_PROTOCOL_NEGOTIATION);
    if alpn != Some(OFFER) {
        return Ok(false);
    }
    let name = hello.servername(NameType::HOST_NAME);
    let Some(identity) = name.and_then(|name| certificates.certificate(name)) else {
        return Ok(false);
    };
    // Sessions of sites are none here, whatever the authority's client offers.
    let credential =
        identity.credential(ACME_TLS_ALPN, None).map_err(|_| SelectCertError::ERROR)?;
    let ssl = hello.ssl_mut();
    ssl.add_credential(&credential).map_err(|_| SelectCertError::ERROR)?;
    ssl.set_options(SslOptions::NO_TICKET);
    ssl.set_ex_data(*ANSWERED, ());
    Ok(true)
}
