//! The sections `[[site]]`.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beside;
use super::fields::Fields;
use super::route::RouteSection;
use super::tls;
use crate::{CertificateSource, SettingError, Site};

/// What is served under some names; there may be several. The first is for clients that name no
/// site, or an unknown one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SiteSection {
    /// Host names; `"*.example.test"` stands for all names with one label more. All sites but the
    /// first need one. Tickets are good for the site with the same first name.
    pub(crate) names: Vec<String>,
    /// Certificate chain, PEM, the site's own first.
    ///
    /// By default the one of `[tls]`.
    pub(crate) certificate: Option<PathBuf>,
    /// The private key of that certificate, PEM.
    pub(crate) key: Option<PathBuf>,
    /// Whether the certificate comes from the authority of `[acme]`, for all of `names`, and is
    /// renewed by itself.
    ///
    /// By default not: it takes names that lead here, and agreeing to the authority's terms.
    pub(crate) acme: bool,
    /// A file with an OCSP response, DER, to staple (RFC 6066 section 8). It is to be renewed by a
    /// program beside, and taken up when it changes.
    pub(crate) ocsp: Option<PathBuf>,
    /// Fields that each response gets, in place of those of the same names; an empty value removes
    /// the field.
    pub(crate) headers: Fields,
    /// What becomes of the requests below a path. At least one.
    pub(crate) route: Vec<RouteSection>,
}

impl SiteSection {
    pub(super) fn site(self, base: &Path) -> Result<Site, SettingError> {
        let routes = self.route.into_iter().enumerate();
        let routes = routes
            .map(|(at, route)| route.route(base).map_err(|misfit| misfit.under_index("route", at)));
        let files = tls::certificate(self.certificate, self.key, base)?;
        let certificate = match (self.acme, files) {
            (true, Some(_)) => {
                let reason = "the site has a certificate, so none is asked for; leave out either";
                return Err(SettingError::new("acme", reason));
            }
            (true, None) => Some(CertificateSource::Acme),
            (false, files) => files,
        };
        Ok(Site {
            names: self.names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            certificate,
            ocsp: self.ocsp.map(|path| beside(base, path)),
            headers: self.headers.0,
            routes: routes.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn of(site: &Site) -> Self {
        let (certificate, key) = tls::files(site.certificate.as_ref());
        Self {
            names: site.names.clone(),
            certificate,
            key,
            acme: site.certificate == Some(CertificateSource::Acme),
            ocsp: site.ocsp.clone(),
            headers: Fields(site.headers.clone()),
            route: site.routes.iter().map(RouteSection::of).collect(),
        }
    }
}
