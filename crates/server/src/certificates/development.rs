//! Certificates for sites without a configured one: signed by the user's development authority, or
//! self-signed for names that the authority is not allowed to sign.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use firstflight_certificates::authority::{
    Authority, default_directory, is_permitted_name, renew_at, self_signed,
};
use firstflight_tls::Identity;
use jiff::Timestamp;
use tracing::{info, warn};

use crate::ServerError;

/// Makes development certificates and holds those in use.
pub(crate) struct DevelopmentCertificates {
    /// `None` if there is no authority. The reason has been logged.
    authority: Option<Authority>,
    /// Addresses that the certificates are valid for, in addition to the sites' names.
    addresses: Vec<String>,
    current: Mutex<Option<CurrentCertificates>>,
}

/// The certificates in use.
#[derive(Clone)]
struct CurrentCertificates {
    /// The names of all sites.
    names: BTreeSet<String>,
    /// Signed by the authority, for the names that it is allowed to sign.
    signed: Option<Identity>,
    /// The names of that certificate.
    signed_names: Vec<String>,
    /// Self-signed, for all names. Made only if a site needs it.
    self_signed_identity: Option<Identity>,
    /// When to renew them, in seconds since 1970.
    renew_at: u64,
}

impl DevelopmentCertificates {
    /// Certificates for a server that listens on `addresses`. Creates the authority if the user has
    /// none.
    pub(crate) fn of_this_user(addresses: &[SocketAddr]) -> Self {
        let opened = default_directory().and_then(|path| Authority::open_or_create(&path, now()));
        let authority = opened.inspect_err(|error| {
            warn!(
                "{error}; until then the certificate is self-signed, and clients do not trust it"
            );
        });
        Self::new(authority.ok(), addresses)
    }

    /// `authority`: `None` for self-signed certificates.
    pub(crate) fn new(authority: Option<Authority>, addresses: &[SocketAddr]) -> Self {
        Self { authority, addresses: certificate_addresses(addresses), current: Mutex::default() }
    }

    /// Makes certificates for sites with these names, unless current ones exist.
    ///
    /// # Errors
    /// [`ServerError::IssuedCertificate`].
    pub(crate) fn prepare(&self, names: &[&String], now: u64) -> Result<(), ServerError> {
        let names: BTreeSet<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !current.as_ref().is_some_and(|current| current.names == names && now < current.renew_at)
        {
            *current = Some(self.make(names, now)?);
        }
        Ok(())
    }

    /// The certificate of a site with these names. Call [`prepare`](Self::prepare) first.
    pub(crate) fn identity(&self, names: &[String]) -> Option<Identity> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let current = current.as_ref()?;
        match &current.signed {
            Some(signed) if names.iter().all(|name| is_permitted_name(name)) => {
                Some(signed.clone())
            }
            _ => current.self_signed_identity.clone(),
        }
    }

    /// Whether the certificates should be renewed.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().is_some_and(|current| now >= current.renew_at)
    }

    /// Drops the certificates: the configuration names others.
    pub(crate) fn clear(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Postpones the renewal.
    pub(crate) fn postpone(&self, until: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &mut *current {
            current.renew_at = until;
        }
    }

    /// Logs for which names clients can trust the certificates, and how.
    pub(crate) fn announce(&self) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(authority), Some(current)) = (&self.authority, &*current) {
            info!(
                "certificate for {} signed by the development authority in {}: `firstflight fetch` \
                 trusts it, other clients with --cacert or after `firstflight authority trust`",
                current.signed_names.join(", "),
                authority.certificate().display()
            );
        }
    }

    fn make(&self, names: BTreeSet<String>, now: u64) -> Result<CurrentCertificates, ServerError> {
        let loopback = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let all: BTreeSet<_> =
            loopback.iter().chain(&self.addresses).chain(&names).cloned().collect();
        let (signable, unsignable): (Vec<_>, Vec<_>) =
            all.iter().cloned().partition(|name| is_permitted_name(name));
        let mut current = CurrentCertificates {
            names,
            signed: None,
            signed_names: signable,
            self_signed_identity: None,
            renew_at: u64::MAX,
        };
        if let Some(authority) = &self.authority {
            let made = authority.sign(&current.signed_names, now)?;
            let identity = made.identity()?;
            let expires = identity.expires().and_then(|expires| u64::try_from(expires).ok());
            current.renew_at = renew_at(now, expires.unwrap_or(now));
            current.signed = Some(identity);
        }
        let has_unsignable_site = unsignable.iter().any(|name| current.names.contains(name));
        if has_unsignable_site || current.signed.is_none() {
            let all: Vec<_> = all.into_iter().collect();
            current.self_signed_identity = Some(self_signed(&all)?.identity()?);
        }
        if self.authority.is_some() && !unsignable.is_empty() {
            warn!(
                "no certificate is configured for {}, and the development authority may not sign \
                 one, so clients trust none for that; configure certificate and key",
                unsignable.join(", ")
            );
        }
        Ok(current)
    }
}

/// The current time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// The addresses that clients may use for this server. A listener on all addresses has those of the
/// machine on private networks, so that a phone on the same network can connect.
fn certificate_addresses(listened: &[SocketAddr]) -> Vec<String> {
    let mut all: BTreeSet<IpAddr> =
        listened.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()).collect();
    if listened.iter().any(|address| address.ip().is_unspecified()) {
        let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let addresses = interfaces.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        all.extend(addresses.filter(|address| is_permitted_name(&address.to_string())));
    }
    all.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn development() -> (tempfile::TempDir, DevelopmentCertificates) {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(directory.path(), NOW).unwrap();
        let listened = ["10.1.2.3:443".parse().unwrap(), "[::]:443".parse().unwrap()];
        (directory, DevelopmentCertificates::new(Some(authority), &listened))
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn one_certificate_covers_all_names_that_the_authority_may_sign() {
        let (_directory, development) = development();
        let names = strings(&["a.test", "b.internal"]);
        development.prepare(&names.iter().collect::<Vec<_>>(), NOW).unwrap();
        let identity = development.identity(&names[..1]).unwrap();
        for name in ["localhost", "127.0.0.1", "::1", "10.1.2.3", "a.test", "b.internal"] {
            assert!(identity.covers(name), "{name}");
        }
        assert!(!identity.covers("::") && !identity.covers("0.0.0.0"));
        assert!(development.identity(&[]).unwrap().covers("a.test"));
    }

    #[test]
    fn only_sites_that_the_authority_may_not_sign_are_self_signed() {
        let (_directory, development) = development();
        let names = strings(&["a.test", "example.com"]);
        development.prepare(&names.iter().collect::<Vec<_>>(), NOW).unwrap();
        let unsignable = development.identity(&names).unwrap();
        assert!(unsignable.covers("example.com") && unsignable.covers("a.test"));
        assert!(!development.identity(&names[..1]).unwrap().covers("example.com"));
        let without_authority = DevelopmentCertificates::new(None, &[]);
        without_authority.prepare(&[&names[0]], NOW).unwrap();
        assert!(without_authority.identity(&names[..1]).unwrap().covers("a.test"));
    }

    #[test]
    fn the_certificate_is_renewed_before_it_expires_and_for_new_names() {
        let (_directory, development) = development();
        let (old, new) = (strings(&["a.test"]), strings(&["a.test", "b.test"]));
        let prepare = |names: &[String], now| {
            development.prepare(&names.iter().collect::<Vec<_>>(), now).unwrap();
            development.identity(&[]).unwrap()
        };
        let expires = |identity: &Identity| identity.expires().unwrap();
        let first = prepare(&old, NOW);
        let week = expires(&first) as u64 - NOW;
        assert!(!development.is_due(NOW + week / 2) && development.is_due(NOW + week * 3 / 4));
        assert_eq!(expires(&prepare(&old, NOW + 60)), expires(&first), "not renewed yet");
        assert!(prepare(&new, NOW + 60).covers("b.test"));
        let renewed = prepare(&new, NOW + week * 3 / 4);
        assert!(expires(&renewed) > expires(&first) && !development.is_due(NOW + week));
    }
}
