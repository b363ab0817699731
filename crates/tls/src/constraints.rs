//! Name constraints on IP addresses (RFC 5280 section 4.2.1.10). BoringSSL implements them for host
//! names only, and rejects every certificate with an address under such an authority.

use std::os::raw::c_int;
use std::slice;

use boring::stack::StackRef;
use boring::x509::{X509, X509Ref};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::der::{self, SEQUENCE};

/// Tags of GeneralName: dNSName and iPAddress, in their primitive encoding.
const DNS: u8 = 0x82;
const ADDRESS: u8 = 0x87;
/// Tags of permittedSubtrees and excludedSubtrees.
const PERMITTED: u8 = 0xa0;
const EXCLUDED: u8 = 0xa1;

/// Whether the certificate at `depth` satisfies all name constraints above it in the chain. Returns
/// false for constraints on anything but host names and addresses.
pub(crate) fn are_satisfied(chain: &StackRef<X509>, depth: usize) -> bool {
    let Some(certificate) = chain.get(depth) else { return false };
    let Some(names) = SubjectNames::of(certificate) else { return false };
    let above = (depth + 1..chain.len()).filter_map(|index| chain.get(index));
    above.into_iter().all(|issuer| match extension(issuer) {
        Ok(None) => true,
        Ok(Some(der)) => Constraints::parse(der).is_some_and(|bounds| bounds.allow(&names)),
        Err(DuplicateExtension) => false,
    })
}

/// The subject alternative names of a certificate.
#[derive(Debug, Default)]
struct SubjectNames {
    hosts: Vec<String>,
    addresses: Vec<Vec<u8>>,
}

impl SubjectNames {
    /// Returns `None` if there is a name of another kind.
    fn of(certificate: &X509Ref) -> Option<Self> {
        let mut names = Self::default();
        for name in certificate.subject_alt_names()?.iter() {
            match (name.dnsname(), name.ipaddress()) {
                (Some(host), _) => names.hosts.push(host.to_ascii_lowercase()),
                (None, Some(address)) => names.addresses.push(address.to_owned()),
                (None, None) => return None,
            }
        }
        Some(names)
    }
}

/// The names that an authority may issue certificates for.
#[derive(Debug, Default)]
struct Constraints<'a> {
    permitted: Vec<Base<'a>>,
    excluded: Vec<Base<'a>>,
}

#[derive(Clone, Copy, Debug)]
enum Base<'a> {
    Host(&'a str),
    /// Address followed by mask.
    Network(&'a [u8]),
}

impl<'a> Constraints<'a> {
    /// Returns `None` if the extension is invalid or constrains other kinds of names.
    fn parse(der: &'a [u8]) -> Option<Self> {
        let (mut rest, []) = der::element(der, SEQUENCE)? else { return None };
        let mut constraints = Self::default();
        while !rest.is_empty() {
            let (tag, subtrees, remaining) = der::any(rest)?;
            let bases = match tag {
                PERMITTED => &mut constraints.permitted,
                EXCLUDED => &mut constraints.excluded,
                _ => return None,
            };
            parse_subtrees(subtrees, bases)?;
            rest = remaining;
        }
        Some(constraints)
    }

    fn allow(&self, names: &SubjectNames) -> bool {
        let hosts_bounded = self.permitted.iter().any(|base| matches!(base, Base::Host(_)));
        let networks_bounded = self.permitted.iter().any(|base| matches!(base, Base::Network(_)));
        let within = |bases: &[Base<'_>], host: &str| bases.iter().any(|base| base.has_host(host));
        let inside =
            |bases: &[Base<'_>], address: &[u8]| bases.iter().any(|base| base.has_address(address));
        names.hosts.iter().all(|host| {
            // A wildcard could match an excluded name.
            let may_be_excluded = host.starts_with('*') && !self.excluded.is_empty();
            !may_be_excluded
                && !within(&self.excluded, host)
                && (!hosts_bounded || within(&self.permitted, host))
        }) && names.addresses.iter().all(|address| {
            !inside(&self.excluded, address)
                && (!networks_bounded || inside(&self.permitted, address))
        })
    }
}

/// Parses GeneralSubtrees. RFC 5280 does not use their minimum and maximum.
fn parse_subtrees<'a>(mut der: &'a [u8], bases: &mut Vec<Base<'a>>) -> Option<()> {
    while !der.is_empty() {
        let (subtree, rest) = der::element(der, SEQUENCE)?;
        let (tag, base, []) = der::any(subtree)? else { return None };
        bases.push(match tag {
            DNS => Base::Host(std::str::from_utf8(base).ok().filter(|host| host.is_ascii())?),
            ADDRESS if matches!(base.len(), 8 | 32) => Base::Network(base),
            _ => return None,
        });
        der = rest;
    }
    Some(())
}

impl Base<'_> {
    /// Whether `host` is the base or below it.
    fn has_host(self, host: &str) -> bool {
        let Self::Host(base) = self else { return false };
        let base = base.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(host);
        match (base.as_str(), base.strip_prefix('.')) {
            ("", _) => true,
            (_, Some(_)) => host.ends_with(&base),
            (base, None) => {
                host.strip_suffix(base).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        }
    }

    fn has_address(self, address: &[u8]) -> bool {
        let Self::Network(network) = self else { return false };
        let (base, mask) = network.split_at(network.len() / 2);
        base.len() == address.len()
            && address.iter().zip(base).zip(mask).all(|((a, b), mask)| a & mask == b & mask)
    }
}

/// The extension occurs more than once, which RFC 5280 section 4.2 forbids.
struct DuplicateExtension;

/// Returns the content of a certificate's name constraints extension.
fn extension(certificate: &X509Ref) -> Result<Option<&[u8]>, DuplicateExtension> {
    let nid: c_int = ffi::NID_name_constraints as c_int;
    // SAFETY: the certificate is valid. The result borrows from it.
    unsafe {
        let index = ffi::X509_get_ext_by_NID(certificate.as_ptr(), nid, -1);
        if index < 0 {
            return Ok(None);
        }
        if ffi::X509_get_ext_by_NID(certificate.as_ptr(), nid, index) >= 0 {
            return Err(DuplicateExtension);
        }
        let extension = ffi::X509_get_ext(certificate.as_ptr(), index);
        let data = ffi::X509_EXTENSION_get_data(extension).cast_const();
        let length = usize::try_from(ffi::ASN1_STRING_length(data.cast())).unwrap_or(0);
        Ok(Some(slice::from_raw_parts(ffi::ASN1_STRING_get0_data(data.cast()), length)))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CidrSubnet, GeneralSubtree, KeyPair, NameConstraints};

    use super::*;

    /// An authority's certificate with these constraints.
    fn authority(permitted: Vec<GeneralSubtree>, excluded: Vec<GeneralSubtree>) -> X509 {
        let mut params = CertificateParams::default();
        params.name_constraints =
            Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: excluded });
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        X509::from_der(made.der()).unwrap()
    }

    fn names(all: &[&str]) -> SubjectNames {
        let params =
            CertificateParams::new(all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        let made = params.unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap();
        SubjectNames::of(&X509::from_der(made.der()).unwrap()).unwrap()
    }

    fn host(name: &str) -> GeneralSubtree {
        GeneralSubtree::DnsName(name.to_owned())
    }

    fn network(address: &str, prefix: u8) -> GeneralSubtree {
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address.parse().unwrap(), prefix))
    }

    #[test]
    fn rfc5280_4_2_1_10_permitted_names_and_addresses() {
        let issuer = authority(
            vec![host("localhost"), host("test"), network("10.0.0.0", 8), network("::1", 128)],
            vec![],
        );
        let bounds = Constraints::parse(extension(&issuer).ok().unwrap().unwrap()).unwrap();
        for good in [
            &["localhost", "app.localhost", "A.Test", "*.app.test"][..],
            &["10.255.1.2", "::1"],
            &["test"],
        ] {
            assert!(bounds.allow(&names(good)), "{good:?}");
        }
        for bad in ["example.com", "mytest", "test.example", "11.0.0.1", "::2", "notlocalhost"] {
            assert!(!bounds.allow(&names(&["localhost", bad])), "{bad}");
        }
    }

    #[test]
    fn rfc5280_4_2_1_10_excluded_takes_precedence_over_permitted() {
        let issuer = authority(
            vec![network("10.0.0.0", 8)],
            vec![network("10.1.0.0", 16), host("www.example.com")],
        );
        let bounds = Constraints::parse(extension(&issuer).ok().unwrap().unwrap()).unwrap();
        assert!(bounds.allow(&names(&["10.2.0.1", "example.com"])));
        for bad in ["10.1.2.3", "www.example.com", "a.www.example.com", "*.example.com"] {
            assert!(!bounds.allow(&names(&[bad])), "{bad}");
        }
    }

    #[test]
    fn unsupported_or_invalid_constraints_are_rejected() {
        let mail = authority(vec![GeneralSubtree::Rfc822Name("example.com".into())], vec![]);
        assert!(Constraints::parse(extension(&mail).ok().unwrap().unwrap()).is_none());
        let whole = authority(vec![host("test"), network("10.0.0.0", 8)], vec![]);
        let der = extension(&whole).ok().unwrap().unwrap();
        assert!((0..der.len()).all(|end| Constraints::parse(&der[..end]).is_none()));
        assert!(Constraints::parse(&[der, &[0]].concat()).is_none());
        let plain = CertificateParams::default().self_signed(&KeyPair::generate().unwrap());
        let plain = X509::from_der(plain.unwrap().der()).unwrap();
        assert!(matches!(extension(&plain), Ok(None)));
    }
}
