//! Whom a client trusts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use boring::nid::Nid;
use boring::ssl::{Ssl, SslContextBuilder, SslRef, SslVerifyMode};
use boring::x509::{X509Ref, X509StoreContext, X509StoreContextRef, X509VerifyError};

use crate::context::Slot;
use crate::{TlsError, constraints, roots};

/// Whom a client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The machine's own authorities.
    System,
    /// These, and the authorities in a PEM file besides.
    SystemAnd(PathBuf),
    /// The authorities in a PEM file and no others (curl's `--cacert`).
    File(PathBuf),
    /// Anybody (curl's `-k`): for trying out only.
    Anyone,
}

/// Where a connection notes by whose word its server's certificate was good.
type Anchor = Arc<OnceLock<String>>;

static ANCHOR: Slot<Anchor> =
    Slot::new(|| Ssl::new_ex_index().expect("an index for the authority of a connection"));

/// Makes a client's context verify so.
///
/// # Errors
/// [`TlsError`] with the file that cannot be read.
pub(crate) fn install(trust: &Trust, builder: &mut SslContextBuilder) -> Result<(), TlsError> {
    if *trust == Trust::Anyone {
        builder.set_verify(SslVerifyMode::NONE);
        return Ok(());
    }
    builder.set_verify_callback(SslVerifyMode::PEER, judge);
    if matches!(trust, Trust::System | Trust::SystemAnd(_)) {
        roots::believe(builder)?;
    }
    match trust {
        Trust::File(path) | Trust::SystemAnd(path) => believe(path, builder),
        Trust::System | Trust::Anyone => Ok(()),
    }
}

/// Believes the authorities in a PEM file.
///
/// # Errors
/// [`TlsError`] with the file that cannot be read.
pub(crate) fn believe(path: &Path, builder: &mut SslContextBuilder) -> Result<(), TlsError> {
    std::fs::metadata(path).map_err(|source| TlsError::File {
        what: "certificate authorities",
        path: path.to_owned(),
        source,
    })?;
    builder.set_ca_file(path).map_err(|stack| TlsError::Pem {
        what: "certificate authority",
        path: path.to_owned(),
        reason: crate::error::reasons(&stack),
    })
}

/// The last word on a certificate. It is the library's but for constraints on addresses, which it
/// cannot judge.
fn judge(good: bool, context: &mut X509StoreContextRef) -> bool {
    let depth = context.error_depth() as usize;
    if good {
        // The server's own comes last, when all above it is good.
        if depth == 0 {
            note_anchor(context);
        }
        return true;
    }
    let kept = context.verify_result() == Err(X509VerifyError::UNSUPPORTED_CONSTRAINT_TYPE)
        && context.chain().is_some_and(|chain| constraints::are_kept(chain, depth));
    if kept {
        context.set_error(Ok(()));
    }
    kept
}

fn note_anchor(context: &X509StoreContextRef) {
    let Ok(index) = X509StoreContext::ssl_idx() else { return };
    let anchor = context.ex_data(index).and_then(|ssl| ssl.ex_data(*ANCHOR));
    let chain = context.chain();
    let last = chain.and_then(|chain| chain.get(chain.len().checked_sub(1)?));
    if let (Some(anchor), Some(last)) = (anchor, last) {
        let _ = anchor.set(name(last));
    }
}

/// The common name of a certificate's subject, or the organisation's where it has none.
fn name(certificate: &X509Ref) -> String {
    let subject = certificate.subject_name();
    let entry = |nid| subject.entries_by_nid(nid).next();
    let entry = entry(Nid::COMMONNAME).or_else(|| entry(Nid::ORGANIZATIONNAME));
    let text = entry.and_then(|entry| entry.data().as_utf8().ok());
    text.map_or_else(|| "an authority without a name".to_owned(), |text| text.to_string())
}

/// Has a connection of a client note by whose word its server's certificate is good.
pub(crate) fn expect_anchor(ssl: &mut Ssl) {
    ssl.set_ex_data(*ANCHOR, Anchor::default());
}

/// By whose word it was.
pub(crate) fn anchor(ssl: &SslRef) -> Option<String> {
    ssl.ex_data(*ANCHOR)?.get().cloned()
}
