//! Encrypted ClientHello (RFC 9849): a server's keys, their files (RFC 9934), and the
//! configurations that a DNS record publishes (RFC 9848).

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use boring::error::ErrorStack;
use boring::hpke::HpkeKey;
use boring::pkey::{Id, PKey, Private};
use boring::rand::rand_bytes;
use boring::ssl::SslEchKeys;
use boring_sys as ffi;
use foreign_types::ForeignType;
use zeroize::Zeroizing;

use crate::TlsError;
use crate::error::reasons;

/// A server's ECH key, and the configurations with which clients encrypt to it.
#[derive(Clone)]
pub struct EchKey {
    /// X25519.
    key: PKey<Private>,
    /// The key's configurations, as an ECHConfigList (RFC 9849 section 4).
    list: Vec<u8>,
    /// The name that clients send in the clear.
    public_name: String,
}

impl EchKey {
    /// Generates a key. `public_name`: the name that clients send in the clear. The server needs a
    /// certificate for it, by which clients with outdated configurations get the current ones.
    ///
    /// # Errors
    /// [`TlsError::BadHost`]: the name is not valid for ECH, such as an address.
    pub fn generate(public_name: &str) -> Result<Self, TlsError> {
        let no_key = TlsError::setup("a new ECH key");
        let key = PKey::generate(Id::X25519).map_err(&no_key)?;
        let mut id = [0];
        rand_bytes(&mut id).map_err(&no_key)?;
        let config = marshal(&hpke(&key).map_err(&no_key)?, id[0], public_name)
            .ok_or_else(|| TlsError::BadHost(public_name.to_owned()))?;
        // The length fits: a configuration has one key and one host name.
        let list = [&(config.len() as u16).to_be_bytes()[..], &config].concat();
        Ok(Self { key, list, public_name: public_name.to_owned() })
    }

    /// Reads a file of RFC 9934: a private key, and the configurations for it.
    ///
    /// # Errors
    /// [`TlsError::File`] or [`TlsError::Pem`].
    pub fn from_file(path: &Path) -> Result<Self, TlsError> {
        let file = |source| TlsError::File { what: "ECH key", path: path.to_owned(), source };
        let pem = Zeroizing::new(fs::read_to_string(path).map_err(file)?);
        Self::parse(&pem).map_err(|reason| TlsError::Pem {
            what: "ECH key",
            path: path.to_owned(),
            reason,
        })
    }

    fn parse(pem: &str) -> Result<Self, String> {
        let key = PKey::private_key_from_pem(pem.as_bytes()).map_err(|stack| reasons(&stack))?;
        if key.id() != Id::X25519 {
            return Err("its private key is not an X25519 key".to_owned());
        }
        let begin = pem.split_once(BEGIN_CONFIG).map(|(_, rest)| rest);
        let text = begin.and_then(|rest| rest.split_once(END_CONFIG)).map(|(text, _)| text);
        let text: String = text.ok_or("it has no ECHCONFIG")?.split_whitespace().collect();
        let list = STANDARD.decode(text).map_err(|error| error.to_string())?;
        let configs = configs(&list).filter(|configs| !configs.is_empty());
        let configs = configs.ok_or("its ECHCONFIG is damaged")?;
        let name = configs.iter().find_map(|config| public_name(config));
        let public_name = name.ok_or("its ECHCONFIG has no public name")?.to_owned();
        let key = Self { key, list, public_name };
        EchKeys::new(std::slice::from_ref(&key)).map_err(|error| error.to_string())?;
        Ok(key)
    }

    /// Formats the file of RFC 9934: the private key and the configurations.
    ///
    /// # Errors
    /// [`TlsError::Setup`] if there is no memory.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, TlsError> {
        let key = self.key.private_key_to_pem_pkcs8().map_err(TlsError::setup("the ECH key"))?;
        let key = Zeroizing::new(String::from_utf8(key).expect("PEM is ASCII"));
        let list = self.config_list();
        let lines = list.as_bytes().chunks(64).map(String::from_utf8_lossy);
        let lines = lines.collect::<Vec<_>>().join("\n");
        Ok(Zeroizing::new(format!("{}{BEGIN_CONFIG}\n{lines}\n{END_CONFIG}\n", *key)))
    }

    /// The ECHConfigList in base64, as in the parameter `ech` of a DNS record.
    pub fn config_list(&self) -> String {
        STANDARD.encode(&self.list)
    }

    /// The name that clients send in the clear.
    pub fn public_name(&self) -> &str {
        &self.public_name
    }
}

impl fmt::Debug for EchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not appear in logs.
        f.debug_struct("EchKey").field("public_name", &self.public_name).finish_non_exhaustive()
    }
}

/// The keys that a server decrypts ClientHellos with. Cheap to clone.
#[derive(Clone)]
pub struct EchKeys(Arc<SslEchKeys>);

impl EchKeys {
    /// Clients whose configuration matches none of the keys get that of the first key. The other
    /// keys are for clients that know an earlier DNS record.
    ///
    /// # Errors
    /// [`TlsError::Setup`]: a configuration is not for its key.
    pub fn new(keys: &[EchKey]) -> Result<Self, TlsError> {
        let refused = TlsError::setup("an ECH key");
        let mut builder = SslEchKeys::builder().map_err(&refused)?;
        for (index, key) in keys.iter().enumerate() {
            for config in configs(&key.list).unwrap_or_default() {
                let private = hpke(&key.key).map_err(&refused)?;
                builder.add_key(index == 0, config, private).map_err(&refused)?;
            }
        }
        Ok(Self(Arc::new(builder.build())))
    }

    pub(crate) fn as_boring(&self) -> &SslEchKeys {
        &self.0
    }
}

/// The configurations of an ECHConfigList. Returns `None` if it is damaged.
fn configs(list: &[u8]) -> Option<Vec<&[u8]>> {
    let (length, mut rest) = list.split_first_chunk()?;
    if usize::from(u16::from_be_bytes(*length)) != rest.len() {
        return None;
    }
    let mut found = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]));
        let (config, others) = rest.split_at_checked(4 + length)?;
        found.push(config);
        rest = others;
    }
    Some(found)
}

/// The public name of a configuration (RFC 9849 section 4).
fn public_name(config: &[u8]) -> Option<&str> {
    // Version, length, id and KEM.
    let mut rest = config.get(7..)?;
    // The public key and the cipher suites.
    for _ in 0..2 {
        let (length, after) = rest.split_first_chunk()?;
        rest = after.get(usize::from(u16::from_be_bytes(*length))..)?;
    }
    let (&length, name) = rest.get(1..)?.split_first()?;
    std::str::from_utf8(name.get(..usize::from(length))?).ok()
}

fn hpke(key: &PKey<Private>) -> Result<HpkeKey, ErrorStack> {
    let mut raw = Zeroizing::new([0u8; 32]);
    key.raw_private_key(&mut *raw)?;
    // Despite its name, this function uses DHKEM(X25519, HKDF-SHA256).
    HpkeKey::dhkem_p256_sha256(&*raw)
}

/// Makes an ECHConfig. Returns `None` if the name is invalid.
fn marshal(key: &HpkeKey, id: u8, public_name: &str) -> Option<Vec<u8>> {
    let public_name = CString::new(public_name).ok()?;
    let (mut config, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: all arguments are valid during the call. On success `config` is a buffer of `length`
    // bytes, which we have to free.
    unsafe {
        let made = ffi::SSL_marshal_ech_config(
            &mut config,
            &mut length,
            id,
            key.as_ptr(),
            public_name.as_ptr(),
            MAX_PADDED_NAME,
        );
        if made != 1 {
            drop(ErrorStack::get());
            return None;
        }
        let copy = std::slice::from_raw_parts(config, length).to_vec();
        ffi::OPENSSL_free(config.cast());
        Some(copy)
    }
}

/// Clients pad names to this length, so that shorter ones look alike.
const MAX_PADDED_NAME: usize = 64;

const BEGIN_CONFIG: &str = "-----BEGIN ECHCONFIG-----";
const END_CONFIG: &str = "-----END ECHCONFIG-----";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9934_a_file_has_the_key_and_its_configurations() {
        let key = EchKey::generate("cover.test").unwrap();
        let pem = key.to_pem().unwrap();
        assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{}", *pem);
        let read = EchKey::parse(&pem).unwrap();
        assert_eq!((read.public_name(), &read.list), ("cover.test", &key.list));
        assert!(key.config_list().starts_with("AE"), "a length of two bytes");
        // Another key's configurations are refused, as are damaged ones.
        let other = EchKey::generate("cover.test").unwrap();
        let configs = &pem[pem.find(BEGIN_CONFIG).unwrap()..];
        let other = other.to_pem().unwrap();
        let mixed = format!("{}{configs}", &other[..other.find(BEGIN_CONFIG).unwrap()]);
        assert!(EchKey::parse(&mixed).is_err());
        let list = key.config_list();
        let (first, _) = list.split_at(8);
        for (part, new, expected) in [
            (BEGIN_CONFIG, "", "no ECHCONFIG"),
            (first, "AAAAAAAA", "damaged"),
            (first, "?", "nvalid"),
        ] {
            let error = EchKey::parse(&pem.replacen(part, new, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(EchKey::parse("").is_err());
    }

    #[test]
    fn names_that_clients_would_refuse_are_refused() {
        for bad in ["192.0.2.1", "", "a b", "a..b", "nul\0"] {
            assert!(EchKey::generate(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn damaged_configurations_do_not_panic() {
        let list = EchKey::generate("cover.test").unwrap().list;
        for cut in 0..list.len() {
            assert!(configs(&list[..cut]).is_none());
            let _ = public_name(&list[..cut]);
        }
        assert_eq!(configs(&list).unwrap().len(), 1);
    }
}
