//! Server certificates: one identity, their selection by SNI, and ACME challenge certificates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::{fs, ptr};

use boring::asn1::{Asn1Time, Asn1TimeRef};
use boring::error::ErrorStack;
use boring::pkey::{PKey, Private};
use boring::rsa::Rsa;
use boring::sha::sha256;
use boring::ssl::{
    ClientHello, ExtensionType, NameType, SelectCertError, Ssl, SslContextBuilder, SslCredential,
    SslOptions, SslRef,
};
use boring::x509::X509;
use boring_sys as ffi;
use foreign_types::{ForeignType, ForeignTypeRef};

use crate::clock::SteadyClock;
use crate::context::Slot;
use crate::error::reasons;
use crate::host_map::dns_names;
use crate::{HostMap, TlsError, ocsp, ticket};

/// A certificate chain with the private key of its first certificate, and optionally an OCSP
/// response.
#[derive(Clone)]
pub struct Identity {
    chain: Vec<X509>,
    key: PKey<Private>,
    pub(crate) staple: Option<Staple>,
    alternatives: Vec<Identity>,
}

/// An OCSP response to staple.
#[derive(Clone)]
pub(crate) struct Staple {
    pub(crate) response: Arc<[u8]>,
    /// When it expires, in seconds since 1970, if it says so.
    pub(crate) next_update: Option<i64>,
}

/// How far a responder's clock may be ahead.
const MAX_RESPONDER_SKEW_SECS: i64 = 300;

impl Identity {
    /// Reads a chain (leaf first) and its key from two PEM files.
    ///
    /// # Errors
    /// [`TlsError::File`], [`TlsError::Pem`] or [`TlsError::Mismatch`], each naming the file.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |what, path: &Path| {
            fs::read(path).map_err(|source| TlsError::File { what, path: path.to_owned(), source })
        };
        Self::parse(&read("certificate", cert)?, cert, &read("private key", key)?, key)
    }

    /// Reads a chain (leaf first) and its key from PEM in memory.
    ///
    /// # Errors
    /// [`TlsError::Pem`] or [`TlsError::Mismatch`].
    pub fn from_pem(cert: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::parse(cert, Path::new("the certificate"), key, Path::new("the key"))
    }

    fn parse(cert: &[u8], cert_at: &Path, key: &[u8], key_at: &Path) -> Result<Self, TlsError> {
        let pem = |what, path: &Path, reason: String| TlsError::Pem {
            what,
            path: PathBuf::from(path),
            reason,
        };
        let chain = X509::stack_from_pem(cert)
            .map_err(|stack| pem("certificate", cert_at, reasons(&stack)))?;
        let Some(leaf) = chain.first() else {
            return Err(pem("certificate", cert_at, "no certificate found".to_owned()));
        };
        let key = PKey::private_key_from_pem(key)
            .map_err(|stack| pem("private key", key_at, reasons(&stack)))?;
        let public =
            leaf.public_key().map_err(|stack| pem("certificate", cert_at, reasons(&stack)))?;
        if !public.public_eq(&key) {
            return Err(TlsError::Mismatch { cert: cert_at.to_owned(), key: key_at.to_owned() });
        }
        Ok(Self { chain, key, staple: None, alternatives: Vec::new() })
    }

    /// Adds another certificate for the same names, with a key of another kind. A client gets the
    /// first one whose signatures it supports (RFC 8446 section 4.4.2.2).
    pub fn with_alternative(mut self, other: Self) -> Self {
        self.alternatives.push(other);
        self
    }

    /// Adds an OCSP response (DER), which is stapled for clients that request one (RFC 6066 section
    /// 8) until it expires. The clients verify its signature.
    ///
    /// # Errors
    /// Returns [`TlsError::Ocsp`] if it is invalid, expired or about another certificate, or if the
    /// certificate's status is not good.
    pub fn with_ocsp(mut self, response: &[u8]) -> Result<Self, TlsError> {
        let serial = self.serial()?;
        let status = ocsp::certificate_status(response, &serial)?;
        let now = SteadyClock::unix_micros() / 1_000_000;
        if !status.good {
            return Err(TlsError::Ocsp("the certificate's status is not good"));
        }
        if status.this_update > now + MAX_RESPONDER_SKEW_SECS {
            return Err(TlsError::Ocsp("it is not valid yet; check the system clock"));
        }
        if status.next_update.is_some_and(|until| until <= now) {
            return Err(TlsError::Ocsp("it has expired"));
        }
        self.staple = Some(Staple { response: response.into(), next_update: status.next_update });
        Ok(self)
    }

    /// Whether the certificate and all its alternatives are valid for this host name or address
    /// (RFC 9110 section 4.3.4).
    pub fn covers(&self, host: &str) -> bool {
        let leaf = &self.chain[0];
        let covered = match host.parse::<IpAddr>() {
            Ok(_) => leaf.check_ip_asc(host),
            Err(_) => leaf.check_host(host),
        };
        covered.unwrap_or(false) && self.alternatives.iter().all(|other| other.covers(host))
    }

    /// The DNS names that the certificate and its alternatives cover, in lower case, with their
    /// wildcards.
    fn dns_names(&self) -> Vec<String> {
        let own = dns_names(&self.chain[0]);
        own.into_iter().chain(self.alternatives.iter().flat_map(Self::dns_names)).collect()
    }

    /// When the certificate becomes valid, in seconds since 1970. Returns `None` if its date is
    /// malformed.
    pub fn valid_from(&self) -> Option<i64> {
        unix_seconds(self.chain[0].not_before())
    }

    /// When the certificate or the first of its alternatives expires, in seconds since 1970. Returns
    /// `None` if its date is malformed.
    pub fn expires(&self) -> Option<i64> {
        let others = self.alternatives.iter().filter_map(Self::expires);
        others.chain([unix_seconds(self.chain[0].not_after())?]).min()
    }

    /// The certificate's serial number, as the content of its INTEGER (RFC 5280 section 4.1.2.2).
    ///
    /// # Errors
    /// Returns [`TlsError::Setup`] if there is no memory.
    pub fn serial(&self) -> Result<Vec<u8>, TlsError> {
        let serial = (self.chain[0].serial_number().to_bn())
            .map_err(TlsError::setup("the certificate's serial number"))?
            .to_vec();
        // An INTEGER starts with a zero byte if its first bit would make it negative.
        Ok(match serial.first() {
            Some(first) if *first >= 0x80 => [&[0], &*serial].concat(),
            Some(_) => serial,
            None => vec![0],
        })
    }

    /// The authority key identifier (RFC 5280 section 4.2.1.1), if the certificate has one.
    pub fn authority_key_id(&self) -> Option<Vec<u8>> {
        self.chain[0].authority_key_id().map(|id| id.as_slice().to_vec())
    }

    /// Converts for contexts and connections. Only sessions that were issued with the same
    /// `partition` (the session id context, at most 32 bytes) are resumed.
    pub(crate) fn credential(
        &self,
        partition: &[u8],
        ocsp: Option<&[u8]>,
    ) -> Result<SslCredential, TlsError> {
        let refused = TlsError::setup("the certificate");
        let chain = self.chain.iter().map(|certificate| Buffer::new(&certificate.to_der()?));
        let chain: Vec<_> = chain.collect::<Result<_, ErrorStack>>().map_err(&refused)?;
        let ocsp = ocsp.map(Buffer::new).transpose().map_err(&refused)?;
        let pointers: Vec<_> = chain.iter().map(|buffer| buffer.0).collect();
        // SAFETY: the credential is new and not shared. BoringSSL copies or reference-counts
        // everything. Buffers and key are valid, the partition is readable for its length.
        unsafe {
            let new = ffi::SSL_CREDENTIAL_new_x509();
            if new.is_null() {
                return Err(refused(ErrorStack::get()));
            }
            let credential = SslCredential::from_ptr(new);
            let mut done =
                ffi::SSL_CREDENTIAL_set1_cert_chain(new, pointers.as_ptr().cast(), pointers.len())
                    == 1
                    && ffi::SSL_CREDENTIAL_set1_private_key(new, self.key.as_ptr()) == 1;
            if let Some(ocsp) = &ocsp {
                done = done && ffi::SSL_CREDENTIAL_set1_ocsp_response(new, ocsp.0) == 1;
            }
            if !partition.is_empty() {
                done = done
                    && ffi::SSL_CREDENTIAL_set1_session_id_context(
                        new,
                        partition.as_ptr(),
                        partition.len(),
                    ) == 1;
            }
            if done { Ok(credential) } else { Err(refused(ErrorStack::get())) }
        }
    }
}

fn unix_seconds(time: &Asn1TimeRef) -> Option<i64> {
    let since = Asn1Time::from_unix(0).ok()?.diff(time).ok()?;
    Some(i64::from(since.days) * 86_400 + i64::from(since.secs))
}

/// A reference-counted buffer of BoringSSL.
struct Buffer(*mut ffi::CRYPTO_BUFFER);

impl Buffer {
    fn new(bytes: &[u8]) -> Result<Self, ErrorStack> {
        // SAFETY: the bytes are readable and copied; there is no pool.
        let new = unsafe { ffi::CRYPTO_BUFFER_new(bytes.as_ptr(), bytes.len(), ptr::null_mut()) };
        if new.is_null() { Err(ErrorStack::get()) } else { Ok(Self(new)) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the reference is ours.
        unsafe { ffi::CRYPTO_BUFFER_free(self.0) }
    }
}

/// A server's certificates, selected by server name (SNI, RFC 6066 section 3). The first one is
/// also for clients that send no name or an unknown one.
///
/// Sessions are bound to the entry under which they were issued, because sites may differ in what
/// they allow as early data. A ticket that is offered with another entry's name leads to a full
/// handshake, and its early data is refused. The binding (BoringSSL's session id context) is the
/// entry's first name or its group, so all nodes of a cluster agree, and a certificate can be replaced.
#[derive(Clone)]
pub struct Identities {
    entries: Arc<[IdentityEntry]>,
    names: Arc<HostMap<usize>>,
}

/// The certificate for some server names.
#[derive(Clone)]
pub struct IdentityEntry {
    /// The names, as in [`HostMap::add`].
    pub names: Vec<String>,
    /// Certificate, key, and optionally an OCSP response.
    pub identity: Identity,
    /// Entries with the same group accept each other's tickets; they have the same certificate.
    /// `None`: the entry accepts only its own tickets.
    pub ticket_group: Option<String>,
}

impl IdentityEntry {
    /// An entry that accepts only its own tickets.
    pub fn new(names: Vec<String>, identity: Identity) -> Self {
        Self { names, identity, ticket_group: None }
    }

    /// The session id context that tickets are bound to, or `None` if they are not bound.
    fn partition(&self) -> Option<[u8; 32]> {
        match &self.ticket_group {
            // Names have no spaces, so a group never equals a name.
            Some(group) => Some(sha256(format!("group {group}").as_bytes())),
            None => self.names.first().map(|name| sha256(name.to_ascii_lowercase().as_bytes())),
        }
    }
}

impl Identities {
    /// `first` is also for clients that send no name, or an unknown one.
    ///
    /// # Errors
    /// [`TlsError::BadHost`] or [`TlsError::DuplicateName`].
    pub fn new(first: IdentityEntry, others: Vec<IdentityEntry>) -> Result<Self, TlsError> {
        let entries: Arc<[IdentityEntry]> = std::iter::once(first).chain(others).collect();
        let mut names = HostMap::default();
        for (index, entry) in entries.iter().enumerate() {
            for name in &entry.names {
                names.add(name, index)?;
            }
        }
        Ok(Self { entries, names: Arc::new(names) })
    }

    /// Returns the identity for a client that sent this name.
    pub fn for_name(&self, server_name: Option<&str>) -> &Identity {
        &self.entries[index(&self.names, server_name)].identity
    }

    /// All entries, starting with the default one.
    pub fn entries(&self) -> &[IdentityEntry] {
        &self.entries
    }

    /// Whether every name that the entry's certificate covers leads to an entry that accepts its tickets,
    /// so that a client may offer them under all of them (draft-ietf-tls-cross-sni-resumption).
    fn accepts_all_names(&self, at: usize) -> bool {
        let partition = self.entries[at].partition();
        let is_same = |index: usize| self.entries[index].partition() == partition;
        let covered = self.entries[at].identity.dns_names();
        // A label that no site uses stands for all labels that a wildcard matches.
        let leads_to_same = |name: &String| {
            let name = name.replacen('*', "any-other-name", 1);
            is_same(index(&self.names, Some(&name)))
        };
        let mut others = self.entries.iter().enumerate().filter(|(other, _)| !is_same(*other));
        covered.iter().all(leads_to_same)
            && others.all(|(_, other)| {
                let mut names = other.names.iter();
                names.all(|name| !self.entries[at].identity.covers(name) && !covered.contains(name))
            })
    }

    /// Makes a context select the certificate. `keep_psk_offers`: whether its connections keep the
    /// pre-shared keys that ClientHellos offer; the callback installed here sees them first.
    pub(crate) fn install(
        &self,
        context: &mut SslContextBuilder,
        challenges: Option<Arc<dyn ChallengeCertificates>>,
        keep_psk_offers: bool,
        across_names: bool,
    ) -> Result<(), TlsError> {
        let mut credentials: Vec<_> =
            self.entries.iter().map(Credentials::new).collect::<Result<_, _>>()?;
        for (index, credential) in credentials.iter_mut().enumerate() {
            credential.across_names = across_names && self.accepts_all_names(index);
        }
        let simple = self.entries[0].identity.staple.is_none() && challenges.is_none();
        if let ([only], true) = (&*credentials, simple) {
            let refused = TlsError::setup("the certificate");
            for credential in std::iter::once(&only.plain).chain(&only.alternatives) {
                context.add_credential(credential).map_err(&refused)?;
            }
            // SAFETY: the context is valid, and the call only stores a flag in it.
            unsafe {
                let flag = only.across_names.into();
                ffi::SSL_CTX_set_resumption_across_names_enabled(context.as_ptr(), flag);
            }
            if keep_psk_offers {
                context.set_select_certificate_callback(|mut hello: ClientHello<'_>| {
                    ticket::keep_offer(&mut hello);
                    Ok(())
                });
            }
            return Ok(());
        }
        let names = self.names.clone();
        context.set_select_certificate_callback(move |mut hello: ClientHello<'_>| {
            if keep_psk_offers {
                ticket::keep_offer(&mut hello);
            }
            if let Some(challenges) = &challenges
                && respond_to_validation(&mut hello, challenges)?
            {
                return Ok(());
            }
            let index = index(&names, hello.servername(NameType::HOST_NAME));
            let now = SteadyClock::unix_micros() / 1_000_000;
            // Credentials are added to the connection. SSL_set_SSL_CTX, the usual way, would also
            // reset its early-data settings.
            let chosen = &credentials[index];
            // SAFETY: the connection is valid, and the call only stores a flag in it.
            unsafe {
                let flag = chosen.across_names.into();
                ffi::SSL_set_resumption_across_names_enabled(hello.ssl_mut().as_ptr(), flag);
            }
            // In order of preference; the client's signature algorithms decide.
            let mut all = std::iter::once(chosen.at(now)).chain(&chosen.alternatives);
            all.try_for_each(|credential| hello.ssl_mut().add_credential(credential))
                .map_err(|_| SelectCertError::ERROR)
        });
        Ok(())
    }
}

impl From<Identity> for Identities {
    fn from(identity: Identity) -> Self {
        let entries = Arc::new([IdentityEntry::new(Vec::new(), identity)]);
        Self { entries, names: Arc::default() }
    }
}

fn index(names: &HostMap<usize>, server_name: Option<&str>) -> usize {
    server_name.and_then(|name| names.get(name)).copied().unwrap_or(0)
}

/// An entry in BoringSSL's form.
struct Credentials {
    plain: SslCredential,
    /// The credential with its OCSP response, and when the response expires, in seconds since 1970.
    stapled: Option<(SslCredential, Option<i64>)>,
    alternatives: Vec<SslCredential>,
    /// Whether its tickets may be offered under other names.
    across_names: bool,
}

impl Credentials {
    fn new(entry: &IdentityEntry) -> Result<Self, TlsError> {
        let partition = entry.partition();
        let partition = partition.as_ref().map_or(&[][..], |digest| digest);
        let identity = &entry.identity;
        let stapled = match &identity.staple {
            Some(staple) => {
                let credential = identity.credential(partition, Some(&staple.response))?;
                Some((credential, staple.next_update))
            }
            None => None,
        };
        let alternatives = identity.alternatives.iter();
        Ok(Self {
            plain: identity.credential(partition, None)?,
            stapled,
            alternatives: alternatives
                .map(|other| other.credential(partition, None))
                .collect::<Result<_, _>>()?,
            across_names: false,
        })
    }

    fn at(&self, now: i64) -> &SslCredential {
        match &self.stapled {
            Some((stapled, until)) if until.is_none_or(|until| now < until) => stapled,
            _ => &self.plain,
        }
    }
}

/// The application protocol of a TLS-ALPN-01 validation (RFC 8737 section 6.2). It has no
/// application data: the certificate is the response.
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The ALPN extension of a validation, which offers that protocol and no other (RFC 8737 section 3).
const ACME_ALPN_EXTENSION: &[u8] = b"\x00\x0b\x0aacme-tls/1";

/// Certificates for TLS-ALPN-01 validations.
pub trait ChallengeCertificates: Send + Sync {
    /// Returns the certificate that proves control of a name, if a validation is in progress.
    fn certificate(&self, server_name: &str) -> Option<Identity>;
}

/// Set on a connection that is a validation and has its certificate.
static IS_CHALLENGE: Slot<()> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for ACME validations"));

/// Whether a connection is a validation that has its certificate.
pub(crate) fn is_challenge(ssl: &SslRef) -> bool {
    ssl.ex_data(*IS_CHALLENGE).is_some()
}

/// Responds to a validation. Returns false if the ClientHello is not a validation, or there is no
/// certificate for it.
pub(crate) fn respond_to_validation(
    hello: &mut ClientHello<'_>,
    certificates: &Arc<dyn ChallengeCertificates>,
) -> Result<bool, SelectCertError> {
    let alpn = hello.get_extension(ExtensionType::APPLICATION_LAYER_PROTOCOL_NEGOTIATION);
    if alpn != Some(ACME_ALPN_EXTENSION) {
        return Ok(false);
    }
    let name = hello.servername(NameType::HOST_NAME);
    let Some(identity) = name.and_then(|name| certificates.certificate(name)) else {
        return Ok(false);
    };
    // Its own session id context: sessions of sites are not resumed here.
    let credential =
        identity.credential(ACME_TLS_ALPN, None).map_err(|_| SelectCertError::ERROR)?;
    let ssl = hello.ssl_mut();
    ssl.add_credential(&credential).map_err(|_| SelectCertError::ERROR)?;
    ssl.set_options(SslOptions::NO_TICKET);
    ssl.set_ex_data(*IS_CHALLENGE, ());
    Ok(true)
}

/// Generates an RSA key of `bits` bits, as PKCS #8 in PEM.
///
/// # Errors
/// Returns [`TlsError::Setup`] if BoringSSL does not support the size.
pub fn generate_rsa_key(bits: u32) -> Result<String, TlsError> {
    let pem = Rsa::generate(bits)
        .and_then(PKey::from_rsa)
        .and_then(|key| key.private_key_to_pem_pkcs8())
        .map_err(TlsError::setup("a new RSA key"))?;
    Ok(String::from_utf8(pem).expect("PEM is ASCII"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_has_the_requested_size() {
        let key = PKey::private_key_from_pem(generate_rsa_key(2048).unwrap().as_bytes()).unwrap();
        assert_eq!((key.rsa().unwrap().size(), key.bits()), (256, 2048));
        let error = generate_rsa_key(1).unwrap_err();
        assert!(error.to_string().contains("RSA key"), "{error}");
    }
}
