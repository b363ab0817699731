//! Whether what lies in a development authority's place is one: clients trust it unasked.

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, GeneralSubtree};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use crate::authority::bounds;

/// Whether PEM text is a single certificate of an authority that is bound exactly as ours are, and
/// nothing else.
///
/// # Errors
/// What it is instead.
pub(crate) fn check(pem: &[u8]) -> Result<(), &'static str> {
    // Whoever reads the file later may know more kinds of blocks than we do.
    let blocks = pem.windows(BEGIN.len()).filter(|text| text == &BEGIN).count();
    if blocks > 1 {
        return Err("it is more than a single certificate");
    }
    let unreadable = "it is no certificate";
    let block = Pem::iter_from_buffer(pem).next().ok_or(unreadable)?.map_err(|_| unreadable)?;
    if block.label != "CERTIFICATE" {
        return Err(unreadable);
    }
    let certificate = X509Certificate::from_der(&block.contents);
    let (rest, certificate) = certificate.map_err(|_| unreadable)?;
    match rest.is_empty() {
        true => check_bounds(&certificate),
        false => Err(unreadable),
    }
}

/// RFC 5280 sections 4.2.1.9 and 4.2.1.10.
fn check_bounds(certificate: &X509Certificate<'_>) -> Result<(), &'static str> {
    let basic = certificate.basic_constraints().ok().flatten();
    if !basic.is_some_and(|basic| basic.value.ca && basic.value.path_len_constraint == Some(0)) {
        return Err("it is no authority for servers alone");
    }
    let constraints = certificate.name_constraints().ok().flatten();
    let bound = constraints.filter(|it| it.critical).is_some_and(|constraints| {
        let permitted = constraints.value.permitted_subtrees.as_deref().unwrap_or_default();
        let excluded = constraints.value.excluded_subtrees.as_deref().unwrap_or_default();
        excluded.is_empty() && permitted.iter().map(subtree).eq(bounds::subtrees().map(Some))
    });
    if bound { Ok(()) } else { Err("it may vouch for other names than a development authority") }
}

/// As the certificate has it: a domain's name, or an address and its mask.
fn subtree(subtree: &GeneralSubtree<'_>) -> Option<Vec<u8>> {
    match subtree.base {
        GeneralName::DNSName(domain) => Some(domain.as_bytes().to_vec()),
        GeneralName::IPAddress(network) => Some(network.to_vec()),
        _ => None,
    }
}

const BEGIN: &[u8] = b"-----BEGIN";
