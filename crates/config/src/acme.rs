//! Which sites use ACME, and whether their settings can work.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use firstflight_certificates::acme::{AcmeConfig, AcmeError, ChallengeKind, certificate_names};
use nix::unistd::{AccessFlags, Gid, User, access, getgrouplist};

use crate::check::check_authorities;
use crate::{CertificateSource, Content, ListenerProtocol, ServerConfig, SettingError, Site};

impl ServerConfig {
    /// The names of the certificates to order, one list per site with `acme = true`, in the order
    /// of the sites.
    pub fn acme_names(&self) -> Vec<Vec<String>> {
        self.acme_sites().map(|(_, site)| site.names.clone()).collect()
    }

    fn acme_sites(&self) -> impl Iterator<Item = (usize, &Site)> {
        let sites = match &self.content {
            Content::Sites(content) => &*content.sites,
            Content::PingPong => &[],
        };
        let uses_acme = |site: &Site| site.certificate == Some(CertificateSource::Acme);
        sites.iter().enumerate().filter(move |(_, site)| uses_acme(site))
    }

    /// Settings that are probably wrong, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let Some(acme) = self.acme.as_ref().filter(|_| self.acme_sites().next().is_some()) else {
            return Vec::new();
        };
        let is_reachable = |kind: &ChallengeKind| {
            self.listeners.iter().any(|listener| {
                let serves = match kind {
                    ChallengeKind::TlsAlpn01 => listener.protocol == ListenerProtocol::Https,
                    // A listener with TLS would not understand an HTTP request.
                    ChallengeKind::Http01 => listener.protocol == ListenerProtocol::Redirect,
                };
                serves && listener.address.port() == kind.port()
            })
        };
        if self.listeners.is_empty() || acme.challenges.iter().any(is_reachable) {
            return Vec::new();
        }
        let requirements = acme.challenges.iter().map(|kind| match kind {
            ChallengeKind::TlsAlpn01 => "tls-alpn-01 needs protocol = \"https\" at port 443",
            ChallengeKind::Http01 => "http-01 needs protocol = \"redirect\" at port 80",
        });
        vec![format!(
            "no listener has a port to which the authority connects ({}); no certificate can be issued \
             unless a device in front of this server forwards such a port",
            requirements.collect::<Vec<_>>().join(", ")
        )]
    }

    pub(crate) fn acme_errors(&self) -> Vec<SettingError> {
        let mut errors = Vec::new();
        for (at, site) in self.acme_sites() {
            let mut note = |key: &'static str, reason: String| {
                errors.push(SettingError::new(key, reason).under_index("site", at));
            };
            if self.acme.is_none() {
                let reason = "acme = true needs a section [acme]; read the authority's terms of \
                              service, and set terms_agreed = true there";
                note("acme", reason.to_owned());
            }
            if site.names.is_empty() {
                let reason = "the certificate is for the site's names, but the site has none; add \
                              names = [\"example.test\"]";
                note("acme", reason.to_owned());
            }
            let single_names = site.names.iter().map(std::slice::from_ref);
            let name_lists = single_names.chain((site.names.len() > 1).then_some(&*site.names));
            let reasons: BTreeSet<_> = name_lists
                .filter_map(|names| certificate_names(names).err())
                .map(|error| error.to_string())
                .collect();
            reasons.into_iter().for_each(|reason| note("names", reason));
        }
        if let Some(acme) = &self.acme {
            errors.extend(acme_error(acme).map(|error| error.under("acme")));
        }
        errors
    }

    /// Checks that the files of `[acme]` exist, and that its state directory can be used.
    pub(crate) fn check_acme_files(&self) -> Result<(), SettingError> {
        let Some(acme) = &self.acme else { return Ok(()) };
        if let Some(file) = &acme.authority {
            check_authorities(file).map_err(|reason| SettingError::new("authority", reason))?;
        }
        if self.acme_sites().next().is_none() {
            return Ok(());
        }
        let user = self.process.user.as_deref();
        let problem = |reason| SettingError::new("state", reason);
        check_state(&acme.state, user).map_err(problem)
    }
}

/// Checks what the authority would refuse.
fn acme_error(acme: &AcmeConfig) -> Option<SettingError> {
    let error = acme.check().err()?;
    let key = match &error {
        AcmeError::TermsNotAgreed(_) => "terms_agreed",
        AcmeError::NoChallenge => "challenges",
        AcmeError::Contact(_) => "contact",
        _ => "directory",
    };
    Some(SettingError::new(key, error.to_string()))
}

/// Checks that a user can write to a directory or create it; `None` is the calling user.
fn check_state(state: &Path, user: Option<&str>) -> Result<(), String> {
    let mut existing = state;
    let metadata = loop {
        match std::fs::metadata(existing) {
            Ok(metadata) => break metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", existing.display())),
        }
        existing = match existing.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
    };
    if !metadata.is_dir() {
        return Err(format!("{} is not a directory; set state to another one", existing.display()));
    }
    let who = user.map(|name| (name, User::from_name(name).ok().flatten()));
    let writable = match &who {
        Some((_, Some(user))) => may_write(&metadata, user),
        // An unknown user is reported when the process is to become that user.
        Some((_, None)) => true,
        None => access(existing, AccessFlags::W_OK | AccessFlags::X_OK).is_ok(),
    };
    if writable {
        return Ok(());
    }
    let who = who.map_or_else(|| "this user".to_owned(), |(name, _)| format!("user {name}"));
    let created =
        if existing == state { "" } else { ", in which the state directory would be created" };
    Err(format!(
        "{who} may not write to {}{created}; create {} for that user with mode 700, or set another \
         state (--acme-state)",
        existing.display(),
        state.display()
    ))
}

/// Whether the permission bits of a directory allow a user to create files in it.
fn may_write(directory: &Metadata, user: &User) -> bool {
    let mode = directory.permissions().mode();
    let groups = CString::new(user.name.as_str())
        .ok()
        .and_then(|name| getgrouplist(&name, user.gid).ok())
        .unwrap_or_default();
    let bits = match () {
        () if user.uid.is_root() => return true,
        () if directory.uid() == user.uid.as_raw() => mode >> 6,
        () if groups.contains(&Gid::from_raw(directory.gid())) => mode >> 3,
        () => mode,
    };
    bits & 0o3 == 0o3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listener;

    fn config(
        listeners: &[(&str, ListenerProtocol)],
        challenges: &[ChallengeKind],
    ) -> ServerConfig {
        let listener = |(address, protocol): &(&str, ListenerProtocol)| Listener {
            protocol: *protocol,
            ..Listener::new(address.parse().unwrap())
        };
        let mut config = ServerConfig {
            content: Content::files("/srv"),
            listeners: listeners.iter().map(listener).collect(),
            acme: Some(AcmeConfig { challenges: challenges.to_vec(), ..AcmeConfig::default() }),
            ..ServerConfig::default()
        };
        if let Content::Sites(content) = &mut config.content {
            content.sites[0].names = vec!["example.test".to_owned()];
            content.sites[0].certificate = Some(CertificateSource::Acme);
        }
        config
    }

    #[test]
    fn rfc8555_8_3_and_rfc8737_3_authorities_connect_to_two_ports_only() {
        use ChallengeKind::{Http01, TlsAlpn01};
        use ListenerProtocol::{Https, Redirect};
        for (listeners, challenges, warned) in [
            (&[("[::]:443", Https)][..], &[TlsAlpn01, Http01][..], false),
            (&[("[::]:443", Https)], &[Http01], true),
            (&[("[::]:8443", Https), ("[::]:80", Redirect)], &[TlsAlpn01, Http01], false),
            (&[("[::]:8443", Https), ("[::]:80", Redirect)], &[TlsAlpn01], true),
            (&[("[::]:80", Https), ("[::]:443", Redirect)], &[TlsAlpn01, Http01], true),
            (&[], &[TlsAlpn01], false),
        ] {
            let warnings = config(listeners, challenges).warnings();
            assert_eq!(!warnings.is_empty(), warned, "{listeners:?} {challenges:?}: {warnings:?}");
        }
        let mut without_acme = config(&[("[::]:1", Https)], &[TlsAlpn01]);
        without_acme.content = Content::files("/srv");
        assert!(without_acme.warnings().is_empty());
    }

    #[test]
    fn an_unusable_state_directory_is_reported_with_its_user() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("a/b");
        assert_eq!(check_state(&state, None), Ok(()));
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(check_state(&file, None).unwrap_err().contains("not a directory"));
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let error = check_state(&state, Some("nobody")).unwrap_err();
        assert!(error.contains("user nobody") && error.contains("a/b"), "{error}");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(check_state(&state, Some("nobody")), Ok(()));
    }
}
