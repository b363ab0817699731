use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, ptr};

use boring::asn1::{Asn1Time, Asn1TimeRef};
use boring::error::ErrorStack;
use boring::pkey::{PKey, Private};
use boring::ssl::SslCredential;
use boring::x509::X509;
use boring_sys as ffi;
use foreign_types::ForeignType;

use crate::clock::SteadyClock;
use crate::error::reasons;
use crate::{TlsError, ocsp};

/// A certificate chain and the private key of its first certificate; an OCSP response with it.
#[derive(Clone)]
pub struct Identity {
    chain: Vec<X509>,
    key: PKey<Private>,
    pub(crate) staple: Option<Staple>,
}

/// An OCSP response to show with a certificate.
#[derive(Clone)]
pub(crate) struct Staple {
    pub(crate) response: Arc<[u8]>,
    /// The seconds since 1970 until which it holds; `None`: not said.
    pub(crate) until: Option<i64>,
}

/// How far a responder's clock may be ahead of ours, in seconds.
const CLOCKS_APART: i64 = 300;

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

    /// The same from bytes in memory.
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
            return Err(pem("certificate", cert_at, "no certificate block in it".to_owned()));
        };
        let key = PKey::private_key_from_pem(key)
            .map_err(|stack| pem("private key", key_at, reasons(&stack)))?;
        let public =
            leaf.public_key().map_err(|stack| pem("certificate", cert_at, reasons(&stack)))?;
        if !public.public_eq(&key) {
            return Err(TlsError::Mismatch { cert: cert_at.to_owned(), key: key_at.to_owned() });
        }
        Ok(Self { chain, key, staple: None })
    }

    /// The same with an OCSP response (DER) to staple for clients that ask (RFC 6066 section 8)
    /// until it is no longer good. Its signature is left to them.
    ///
    /// # Errors
    /// [`TlsError::Ocsp`]: it is damaged or old, or about another certificate, or says that this
    /// one is not good.
    pub fn with_ocsp(mut self, response: &[u8]) -> Result<Self, TlsError> {
        let serial = self.serial()?;
        let said = ocsp::about(response, &serial)?;
        let now = SteadyClock::unix_micros() / 1_000_000;
        if !said.good {
            return Err(TlsError::Ocsp("it says that the certificate is not good"));
        }
        if said.from > now + CLOCKS_APART {
            return Err(TlsError::Ocsp("it is not good yet; look at the clock"));
        }
        if said.until.is_some_and(|until| until <= now) {
            return Err(TlsError::Ocsp("it is no longer good"));
        }
        self.staple = Some(Staple { response: response.into(), until: said.until });
        Ok(self)
    }

    /// Whether the certificate is for this host name or address (RFC 9110 section 4.3.4).
    pub fn covers(&self, host: &str) -> bool {
        let leaf = &self.chain[0];
        let covered = match host.parse::<IpAddr>() {
            Ok(_) => leaf.check_ip_asc(host),
            Err(_) => leaf.check_host(host),
        };
        covered.unwrap_or(false)
    }

    /// From when the certificate is valid, in seconds since 1970; `None`: it does not say so well.
    pub fn valid_from(&self) -> Option<i64> {
        unix(self.chain[0].not_before())
    }

    /// When the certificate expires, in seconds since 1970; `None`: it does not say so well.
    pub fn expires(&self) -> Option<i64> {
        unix(self.chain[0].not_after())
    }

    /// The certificate's number as its INTEGER has it (RFC 5280 section 4.1.2.2).
    ///
    /// # Errors
    /// [`TlsError::Setup`]: the library has no memory.
    pub fn serial(&self) -> Result<Vec<u8>, TlsError> {
        let serial = (self.chain[0].serial_number().to_bn())
            .map_err(TlsError::setup("the certificate's number"))?
            .to_vec();
        // An INTEGER has a zero before a first bit that would make it negative.
        Ok(match serial.first() {
            Some(first) if *first >= 0x80 => [&[0], &*serial].concat(),
            Some(_) => serial,
            None => vec![0],
        })
    }

    /// Which key of its authority signed the certificate (RFC 5280 section 4.2.1.1); `None`: it
    /// does not say.
    pub fn authority_key_id(&self) -> Option<Vec<u8>> {
        self.chain[0].authority_key_id().map(|id| id.as_slice().to_vec())
    }

    /// For contexts and connections. `partition`: only sessions that were issued with the same
    /// words are resumed; 32 bytes at most.
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
        // SAFETY: the credential is new and ours alone; everything is copied or counted by the
        // library; buffers and key are valid, the partition is readable for its length.
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

fn unix(time: &Asn1TimeRef) -> Option<i64> {
    let since = Asn1Time::from_unix(0).ok()?.diff(time).ok()?;
    Some(i64::from(since.days) * 86_400 + i64::from(since.secs))
}

/// Bytes that the library counts references to.
struct Buffer(*mut ffi::CRYPTO_BUFFER);

impl Buffer {
    fn new(bytes: &[u8]) -> Result<Self, ErrorStack> {
        // SAFETY: the bytes are readable and copied; no pool is given.
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
