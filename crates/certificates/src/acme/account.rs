//! The ACME account (RFC 8555 section 7.3), and what an authority tells its account about renewal.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{
    Account, AccountCredentials, CertificateIdentifier, ExternalAccountKey, NewAccount,
};
use tracing::info;
use zeroize::Zeroizing;

use crate::acme::client::AuthorityClient;
use crate::acme::client::ErrorContext;
use crate::acme::schedule::Window;
use crate::acme::storage::{self, StateDirectory};
use crate::acme::{AcmeConfig, AcmeError, ExternalAccount, IssuedCertificate};

/// Restores the stored account, or creates one.
///
/// # Errors
/// [`AcmeError`]: the authority refused or cannot be reached, or the state directory cannot be
/// used.
pub(crate) async fn open(
    config: &AcmeConfig,
    state: &StateDirectory,
    client: &AuthorityClient,
) -> Result<Account, AcmeError> {
    let directory = config.directory.to_string();
    let context = ErrorContext { client, directory: &directory, state };
    let contact = config.contact_urls()?;
    let stored = state.account::<AccountCredentials>()?;
    let Some(mut stored) = stored else {
        return new(config, &contact, &context).await;
    };
    let account =
        restore(client, &stored.credentials).await.map_err(|error| context.account_error(error))?;
    if stored.contact != contact {
        let contacts: Vec<_> = contact.iter().map(String::as_str).collect();
        account.update_contacts(&contacts).await.map_err(|error| context.account_error(error))?;
        stored.contact = contact;
        state.save_account(&stored)?;
    }
    Ok(account)
}

async fn restore(
    client: &AuthorityClient,
    credentials: &AccountCredentials,
) -> Result<Account, instant_acme::Error> {
    // `from_credentials` takes ownership, and the credentials have no `Clone`.
    let copy = serde_json::from_value(serde_json::to_value(credentials)?)?;
    Account::builder_with_http(Box::new(client.clone())).from_credentials(copy).await
}

async fn new(
    config: &AcmeConfig,
    contact: &[String],
    context: &ErrorContext<'_>,
) -> Result<Account, AcmeError> {
    let contacts: Vec<_> = contact.iter().map(String::as_str).collect();
    let account = NewAccount {
        contact: &contacts,
        terms_of_service_agreed: config.terms_agreed,
        only_return_existing: false,
    };
    let external = config.external_account.as_ref().map(external_key).transpose()?;
    let (account, credentials) = Account::builder_with_http(Box::new(context.client.clone()))
        .create(&account, context.directory.to_owned(), external.as_ref())
        .await
        .map_err(|error| context.account_error(error))?;
    context.state.save_account(&storage::Account { contact: contact.to_vec(), credentials })?;
    info!("created an account with {}", context.directory);
    Ok(account)
}

/// The key of an external account binding (RFC 8555 section 7.3.4).
fn external_key(external: &ExternalAccount) -> Result<ExternalAccountKey, AcmeError> {
    let key_error = |reason: String| AcmeError::ExternalKey { path: external.key.clone(), reason };
    let text =
        std::fs::read_to_string(&external.key).map_err(|error| key_error(error.to_string()))?;
    let text = Zeroizing::new(text);
    let key = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
    let key = key.map_err(|_| key_error("the file is not base64url".to_owned()))?;
    Ok(ExternalAccountKey::new(external.id.clone(), &Zeroizing::new(key)))
}

/// Requests the renewal window that the authority suggests (RFC 9773), and returns when to request
/// it again. Returns no window if the authority suggests none: the schedule has its own rule.
///
/// # Errors
/// The authority cannot be reached, or fails. Request it again after [`MIN_RENEWAL_INTERVAL`].
pub(crate) async fn suggested_window(
    config: &AcmeConfig,
    state: &StateDirectory,
    issued: &IssuedCertificate,
) -> Result<(Option<Window>, Duration), instant_acme::Error> {
    let nothing = Ok((None, MAX_RENEWAL_INTERVAL));
    let (Some(id), Ok(client)) = (certificate_id(issued), AuthorityClient::new(config)) else {
        return nothing;
    };
    let Ok(Some(stored)) = state.account::<AccountCredentials>() else { return nothing };
    let account = restore(&client, &stored.credentials).await?;
    match account.renewal_info(&id).await {
        Ok((info, next_request)) => {
            let window = info.suggested_window;
            let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
            let next_request = next_request.clamp(MIN_RENEWAL_INTERVAL, MAX_RENEWAL_INTERVAL);
            Ok((Some(Window { start, end }), next_request))
        }
        Err(instant_acme::Error::Unsupported(_)) => nothing,
        Err(error) => Err(error),
    }
}

/// The identifier of a certificate (RFC 9773 section 4.1).
pub(crate) fn certificate_id(issued: &IssuedCertificate) -> Option<CertificateIdentifier<'static>> {
    let identity = issued.identity().ok()?;
    let encode = |bytes: Vec<u8>| Cow::Owned(URL_SAFE_NO_PAD.encode(bytes));
    Some(CertificateIdentifier {
        authority_key_identifier: encode(identity.authority_key_id()?),
        serial: encode(identity.serial().ok()?),
    })
}

/// RFC 9773 section 4.3.2 allows clients to bound the interval that an authority requests.
pub(crate) const MIN_RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);
const MAX_RENEWAL_INTERVAL: Duration = Duration::from_secs(86_400);
