//! When the authority itself would renew a certificate (RFC 9773).

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::CertificateIdentifier;

use crate::acme::ca::Ca;
use crate::acme::plan::Window;
use crate::acme::state::State;
use crate::acme::{AcmeConfig, Issued, account};

/// What the authority suggests, and when to ask again. `None` for the window: it suggests nothing,
/// or cannot be asked; that is no trouble, since there are rules without.
pub(crate) async fn suggested(
    config: &AcmeConfig,
    state: &State,
    issued: &Issued,
) -> (Option<Window>, Duration) {
    match ask(config, state, issued).await {
        Some((window, again)) => (Some(window), again.clamp(MIN_RENEWAL_INTERVAL, LATEST)),
        None => (None, LATEST),
    }
}

async fn ask(config: &AcmeConfig, state: &State, issued: &Issued) -> Option<(Window, Duration)> {
    let id = identifier(issued)?;
    let ca = Ca::new(config).ok()?;
    let account = account::kept(state, &ca).await?;
    let (info, again) = account.renewal_info(&id).await.ok()?;
    let window = info.suggested_window;
    Some((Window { start: window.start.unix_timestamp(), end: window.end.unix_timestamp() }, again))
}

/// RFC 9773 section 4.1.
pub(crate) fn identifier(issued: &Issued) -> Option<CertificateIdentifier<'static>> {
    let identity = issued.identity().ok()?;
    let encode = |bytes: Vec<u8>| Cow::Owned(URL_SAFE_NO_PAD.encode(bytes));
    Some(CertificateIdentifier {
        authority_key_identifier: encode(identity.authority_key_id()?),
        serial: encode(identity.serial().ok()?),
    })
}

/// RFC 9773 section 4.3.2 lets clients keep what an authority says within bounds.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);
const LATEST: Duration = Duration::from_secs(86_400);
