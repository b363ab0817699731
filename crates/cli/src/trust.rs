//! Whom `fetch` and `bench` trust: the machine's authorities, and the development authority of
//! this user.

use firstflight_certificates::authority::{believed, directory};
use firstflight_tls::Trust;

/// The machine's authorities, and this user's unless it is `left_out` or there is none. One that is
/// there and of no use is left out with a sentence about it.
pub(crate) fn usual(left_out: bool) -> (Trust, Option<String>) {
    if left_out {
        return (Trust::System, None);
    }
    // Without a home there is none.
    let Ok(home) = directory() else { return (Trust::System, None) };
    match believed(&home) {
        Ok(Some(certificate)) => (Trust::SystemAnd(certificate), None),
        Ok(None) => (Trust::System, None),
        Err(error) => {
            (Trust::System, Some(format!("the development authority is left out: {error}")))
        }
    }
}
