//! The pages and certificates that all servers of a run share.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, PKCS_RSA_SHA256,
};

use crate::{CertificateKind, LabError, ResponseSize};

/// The name on the servers' certificates.
pub(crate) const HOST: &str = "lab.test";

/// The pages, certificates and paths that all servers of a run share.
pub(crate) struct Site {
    /// The directory of the run.
    pub directory: PathBuf,
    /// The document root, with the page of each [`ResponseSize`], and `index.html` (1 KiB).
    pub root: PathBuf,
    /// The `firstflight` program.
    pub program: PathBuf,
    /// The certificates that clients trust, in one PEM file.
    pub trust: PathBuf,
    /// The file to which servers write their TLS secrets, if they can (`SSLKEYLOGFILE`).
    pub key_log: Option<PathBuf>,
    identities: Vec<Identity>,
}

/// A certificate and its key, as PEM files.
pub(crate) struct Identity {
    pub certificate: CertificateKind,
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Site {
    /// Creates the pages, and a certificate of each kind for [`HOST`]: self-signed, or with its chain.
    pub(crate) fn create(
        directory: &Path,
        program: &Path,
        certificates: &[CertificateKind],
    ) -> Result<Self, LabError> {
        let mut site = Self {
            directory: directory.to_owned(),
            root: directory.join("root"),
            program: program.to_owned(),
            trust: directory.join("trust.pem"),
            key_log: None,
            identities: Vec::new(),
        };
        fs::create_dir_all(&site.root).map_err(|source| LabError::File {
            verb: "make",
            path: site.root.clone(),
            source,
        })?;
        write(site.root.join("index.html"), &page(ResponseSize::OneKib))?;
        for size in ResponseSize::ALL {
            write(site.root.join(size.name()), &page(size))?;
        }
        let mut trust = String::new();
        for &certificate in certificates {
            let Issued { cert, key, trust: root } = match certificate {
                CertificateKind::Rsa4096Chain => issue_with_chain()?,
                _ => self_signed(certificate)?,
            };
            let identity = Identity {
                certificate,
                cert: directory.join(format!("{certificate}.cert.pem")),
                key: directory.join(format!("{certificate}.key.pem")),
            };
            write(identity.cert.clone(), cert.as_bytes())?;
            write(identity.key.clone(), key.as_bytes())?;
            trust.push_str(&root);
            site.identities.push(identity);
        }
        write(site.trust.clone(), trust.as_bytes())?;
        Ok(site)
    }

    /// Creates a site for browsers, with these pages and a certificate for all names below
    /// [`HOST`]. An authority of this run signs it, since browsers trust no self-signed
    /// certificate.
    pub(crate) fn for_browsers(
        directory: &Path,
        program: &Path,
        pages: &[(String, Vec<u8>)],
    ) -> Result<Self, LabError> {
        let root = directory.join("pages");
        fs::create_dir_all(&root).map_err(|source| LabError::File {
            verb: "make",
            path: root.clone(),
            source,
        })?;
        for (name, content) in pages {
            write(root.join(name), content)?;
        }
        let (authority, chain, key) = issue_for_browsers();
        let identity = Identity {
            certificate: CertificateKind::EcdsaP256,
            cert: directory.join("visited.cert.pem"),
            key: directory.join("visited.key.pem"),
        };
        write(identity.cert.clone(), chain.as_bytes())?;
        write(identity.key.clone(), key.as_bytes())?;
        let trust = directory.join("authority.pem");
        write(trust.clone(), authority.as_bytes())?;
        Ok(Self {
            directory: directory.to_owned(),
            root,
            program: program.to_owned(),
            trust,
            key_log: None,
            identities: vec![identity],
        })
    }

    /// The files of a certificate with which the site was created.
    pub(crate) fn identity(&self, certificate: CertificateKind) -> &Identity {
        let identity = self.identities.iter().find(|identity| identity.certificate == certificate);
        identity.expect("the site has every certificate of the plan")
    }
}

fn write(path: PathBuf, content: &[u8]) -> Result<(), LabError> {
    match fs::write(&path, content) {
        Ok(()) => Ok(()),
        Err(source) => Err(LabError::File { verb: "write", path, source }),
    }
}

/// The page of a size. It is the same in every run; the large one is as incompressible as an image.
pub(crate) fn page(size: ResponseSize) -> Vec<u8> {
    let mut body = Vec::with_capacity(size.bytes());
    match size {
        ResponseSize::OneKib => {}
        ResponseSize::TenKib => {
            body.extend_from_slice(b"<!doctype html>\n<title>10 KiB</title>\n");
            while body.len() + PARAGRAPH.len() <= size.bytes() {
                body.extend_from_slice(PARAGRAPH);
            }
        }
        ResponseSize::OneMib => {
            body.extend_from_slice(b"\x89PNG\r\n\x1a\n");
            let mut noise = vec![0; size.bytes() - body.len()];
            StdRng::seed_from_u64(1).fill_bytes(&mut noise);
            body.append(&mut noise);
        }
    }
    body.resize(size.bytes(), b'x');
    body
}

const PARAGRAPH: &[u8] =
    b"<p>The request stands in the first flight, and so does its answer.</p>\n";

/// The encoding before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410 section 7).
const ED25519_PREFIX: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// A certificate, with its chain, and its key; PEM.
struct Issued {
    cert: String,
    key: String,
    /// The certificate that clients trust.
    trust: String,
}

fn self_signed(certificate: CertificateKind) -> Result<Issued, LabError> {
    let (key, pem) = match certificate {
        CertificateKind::EcdsaP256 => {
            let key = KeyPair::generate().expect("a key of the library's default kind");
            let pem = key.serialize_pem();
            (key, pem)
        }
        CertificateKind::Ed25519 => {
            // rcgen would add the public key, which older servers cannot read.
            let mut der = ED25519_PREFIX.to_vec();
            der.extend_from_slice(&rand::random::<[u8; 32]>());
            let key = KeyPair::from_pkcs8_der_and_sign_algo(&der.into(), &PKCS_ED25519)
                .expect("any 32 bytes are a key");
            let pem = key.serialize_pem();
            (key, pem)
        }
        CertificateKind::Rsa2048 => rsa_key(2048)?,
        CertificateKind::Rsa4096Chain => rsa_key(4096)?,
    };
    let mut params = CertificateParams::new([HOST.to_owned()]).expect("a constant name");
    // Clients look up trusted certificates by name, so each needs a different name.
    params.distinguished_name.push(DnType::CommonName, format!("{HOST} {certificate}"));
    let cert = params.self_signed(&key).expect("a certificate for a constant name");
    Ok(Issued { cert: cert.pem(), key: pem, trust: cert.pem() })
}

/// An RSA key and its PEM.
fn rsa_key(bits: u32) -> Result<(KeyPair, String), LabError> {
    // rcgen cannot generate RSA keys with the cryptography library that it uses here.
    let pem = firstflight_tls::generate_rsa_key(bits)?;
    let key =
        KeyPair::from_pem_and_sign_algo(&pem, &PKCS_RSA_SHA256).expect("a key that was just made");
    Ok((key, pem))
}

/// A certificate for [`HOST`] with an RSA key of 4,096 bits, and two intermediate certificates with
/// such keys. The root is not part of the chain.
fn issue_with_chain() -> Result<Issued, LabError> {
    // Generating a key takes seconds. The root, which is not sent, shares the first intermediate's.
    let keys = thread::scope(|scope| {
        let keys = [(); 3].map(|()| scope.spawn(|| rsa_key(4096)));
        keys.map(|key| key.join().expect("making a key never panics"))
    });
    let [leaf, first, second] = keys;
    let ((leaf_key, key), (_, first_key), (_, second_key)) = (leaf?, first?, second?);
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("{HOST} {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    };
    let read = |pem: &str| {
        KeyPair::from_pem_and_sign_algo(pem, &PKCS_RSA_SHA256).expect("a key that was just made")
    };
    let made = "a certificate for a constant name";
    let root = authority("root").self_signed(&read(&first_key)).expect(made);
    let (mut chain, mut issuer) = (String::new(), Issuer::new(authority("root"), read(&first_key)));
    for (name, pem) in [("intermediate 1", &first_key), ("intermediate 2", &second_key)] {
        let cert = authority(name).signed_by(&read(pem), &issuer).expect(made);
        chain.insert_str(0, &cert.pem());
        issuer = Issuer::new(authority(name), read(pem));
    }
    let mut params = CertificateParams::new([HOST.to_owned()]).expect("a constant name");
    params.distinguished_name.push(DnType::CommonName, HOST);
    let leaf = params.signed_by(&leaf_key, &issuer).expect(made);
    Ok(Issued { cert: leaf.pem() + &chain, key, trust: root.pem() })
}

/// An authority's certificate, a certificate signed by it for all names below [`HOST`], and its
/// key; PEM.
fn issue_for_browsers() -> (String, String, String) {
    let key = || KeyPair::generate().expect("a key of the library's default kind");
    let authority_key = key();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "firstflight lab authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = params.self_signed(&authority_key).expect("an authority of constant names");
    let issuer = Issuer::new(params, authority_key);
    let (leaf_key, names) = (key(), [HOST.to_owned(), format!("*.{HOST}")]);
    let mut params = CertificateParams::new(names).expect("constant names");
    params.distinguished_name.push(DnType::CommonName, HOST);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Browsers refuse certificates with a validity of more than 398 days.
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + 30 * DAY).into();
    let leaf = params.signed_by(&leaf_key, &issuer).expect("a certificate for constant names");
    (authority.pem(), leaf.pem(), leaf_key.serialize_pem())
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_their_size_and_are_reproducible() {
        for size in ResponseSize::ALL {
            assert_eq!(page(size).len(), size.bytes());
            assert_eq!(page(size), page(size));
        }
        assert!(page(ResponseSize::TenKib).starts_with(b"<!doctype html>"));
        assert!(page(ResponseSize::OneMib).starts_with(b"\x89PNG"));
    }

    #[test]
    fn every_certificate_matches_its_key_and_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::create(directory.path(), Path::new("firstflight"), &CertificateKind::ALL);
        let site = site.unwrap();
        let trust = fs::read_to_string(&site.trust).unwrap();
        for certificate in CertificateKind::ALL {
            let identity = site.identity(certificate);
            firstflight_tls::Identity::from_files(&identity.cert, &identity.key).unwrap();
            let chain = fs::read_to_string(&identity.cert).unwrap();
            let certificates = chain.matches("BEGIN CERTIFICATE").count();
            match certificate {
                CertificateKind::Rsa4096Chain => assert_eq!(certificates, 3),
                _ => assert!(trust.contains(&chain)),
            }
        }
    }
}
