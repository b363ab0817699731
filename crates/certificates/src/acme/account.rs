//! The account with the authority: restored, opened, its contacts changed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use tracing::info;
use zeroize::Zeroizing;

use crate::acme::ca::Ca;
use crate::acme::said::FailureContext;
use crate::acme::state::{self, State};
use crate::acme::{AcmeConfig, AcmeError, ExternalAccount};

/// The account that is kept, or a new one.
///
/// # Errors
/// [`AcmeError`]: what the authority said, or the disk.
pub(crate) async fn open(
    config: &AcmeConfig,
    state: &State,
    ca: &Ca,
) -> Result<Account, AcmeError> {
    let directory = config.directory.to_string();
    let said = FailureContext { ca, directory: &directory, state };
    let contact = config.mailboxes()?;
    let kept = state.account::<AccountCredentials>()?;
    let Some(mut kept) = kept else {
        return new(config, &contact, &said).await;
    };
    let account =
        restore(ca, &kept.credentials).await.map_err(|error| said.account_error(error))?;
    if kept.contact != contact {
        let words: Vec<_> = contact.iter().map(String::as_str).collect();
        account.update_contacts(&words).await.map_err(|error| said.account_error(error))?;
        kept.contact = contact;
        state.save_account(&kept)?;
    }
    Ok(account)
}

/// The account that is kept, if there is one; nothing is changed.
pub(crate) async fn kept(state: &State, ca: &Ca) -> Option<Account> {
    let kept = state.account::<AccountCredentials>().ok()??;
    restore(ca, &kept.credentials).await.ok()
}

async fn restore(
    ca: &Ca,
    credentials: &AccountCredentials,
) -> Result<Account, instant_acme::Error> {
    // The library takes them and has no way to copy them.
    let copy = serde_json::from_value(serde_json::to_value(credentials)?)?;
    Account::builder_with_http(Box::new(ca.clone())).from_credentials(copy).await
}

async fn new(
    config: &AcmeConfig,
    contact: &[String],
    said: &FailureContext<'_>,
) -> Result<Account, AcmeError> {
    let words: Vec<_> = contact.iter().map(String::as_str).collect();
    let account = NewAccount {
        contact: &words,
        terms_of_service_agreed: config.terms_agreed,
        only_return_existing: false,
    };
    let external = config.external_account.as_ref().map(external_key).transpose()?;
    let (account, credentials) = Account::builder_with_http(Box::new(said.ca.clone()))
        .create(&account, said.directory.to_owned(), external.as_ref())
        .await
        .map_err(|error| said.account_error(error))?;
    said.state.save_account(&state::Account { contact: contact.to_vec(), credentials })?;
    info!("a new account with {}", said.directory);
    Ok(account)
}

/// RFC 8555 section 7.3.4.
fn external_key(external: &ExternalAccount) -> Result<ExternalAccountKey, AcmeError> {
    let wrong = |reason: String| AcmeError::ExternalKey { path: external.key.clone(), reason };
    let text = std::fs::read_to_string(&external.key).map_err(|error| wrong(error.to_string()))?;
    let text = Zeroizing::new(text);
    let key = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
    let key = key.map_err(|_| wrong("it is not base64url".to_owned()))?;
    Ok(ExternalAccountKey::new(external.id.clone(), &Zeroizing::new(key)))
}
