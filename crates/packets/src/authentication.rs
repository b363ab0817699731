//! How the server authenticated: its Certificate, its signature, the group of its key exchange.

use crate::facts::{CertificateFacts, NamedGroup, TlsVersion, Unknown};
use crate::handshake;
use crate::presentation::Bytes;

/// What the messages of a full handshake said so far.
#[derive(Debug, Default)]
pub(crate) struct Authentication {
    pub(crate) certificate: Option<CertificateFacts>,
    pub(crate) signature_scheme: Option<u16>,
    /// Before TLS 1.3; after that it is in the ServerHello.
    pub(crate) group: Option<NamedGroup>,
}

impl Authentication {
    /// Takes in a message of the server. One that is malformed says nothing: the peers had to
    /// make do with it, not we.
    pub(crate) fn message(&mut self, kind: u8, body: &[u8], version: TlsVersion) {
        match kind {
            handshake::CERTIFICATE => {
                let certificates = certificates(body, version).ok();
                self.certificate = Some(facts(body, certificates));
            }
            handshake::COMPRESSED_CERTIFICATE if version == TlsVersion::Tls13 => {
                self.certificate = Some(facts(body, None));
            }
            handshake::CERTIFICATE_VERIFY => self.signature_scheme = Bytes(body).u16().ok(),
            handshake::SERVER_KEY_EXCHANGE => {
                if let Ok((group, scheme)) = key_exchange(body, version) {
                    self.group = Some(group);
                    self.signature_scheme = scheme;
                }
            }
            _ => {}
        }
    }
}

fn facts(body: &[u8], certificates: Option<u32>) -> CertificateFacts {
    // A message's length has 24 bits.
    CertificateFacts { message_bytes: body.len() as u32, certificates }
}

/// How many there are (RFC 8446 section 4.4.2, RFC 5246 section 7.4.2).
fn certificates(body: &[u8], version: TlsVersion) -> Result<u32, Unknown> {
    let mut bytes = Bytes(body);
    if version == TlsVersion::Tls13 {
        bytes.vec8()?;
    }
    let mut list = bytes.vec24()?;
    let mut count = 0;
    while !list.0.is_empty() {
        list.vec24()?;
        if version == TlsVersion::Tls13 {
            list.vec16()?;
        }
        count += 1;
    }
    Ok(count)
}

/// The group of an ECDHE key exchange, and from TLS 1.2 on the scheme of its signature (RFC 8422
/// section 5.4).
fn key_exchange(body: &[u8], version: TlsVersion) -> Result<(NamedGroup, Option<u16>), Unknown> {
    const NAMED_CURVE: u8 = 3;
    let mut bytes = Bytes(body);
    if bytes.u8()? != NAMED_CURVE {
        return Err(Unknown::NotTls);
    }
    let group = NamedGroup(bytes.u16()?);
    bytes.vec8()?;
    let scheme = match version {
        TlsVersion::Tls12 => Some(bytes.u16()?),
        _ => None,
    };
    Ok((group, scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8446_4_4_2_certificates_are_counted_in_both_forms() {
        let old = [0, 0, 9, 0, 0, 2, 1, 1, 0, 0, 1, 2];
        let new = [0, 0, 0, 13, 0, 0, 2, 1, 1, 0, 0, 0, 0, 1, 2, 0, 0];
        for (body, version) in [(&old[..], TlsVersion::Tls12), (&new, TlsVersion::Tls13)] {
            let mut read = Authentication::default();
            read.message(handshake::CERTIFICATE, body, version);
            let expected =
                CertificateFacts { message_bytes: body.len() as u32, certificates: Some(2) };
            assert_eq!(read.certificate, Some(expected));
            for len in 0..body.len() {
                assert!(certificates(&body[..len], version).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn rfc8422_5_4_the_key_exchange_names_its_group() {
        let body = [3, 0, 0x1d, 2, 9, 9, 4, 3, 0, 1, 7];
        let read = |version| key_exchange(&body, version).unwrap();
        assert_eq!(read(TlsVersion::Tls12), (NamedGroup::X25519, Some(0x0403)));
        assert_eq!(read(TlsVersion::Tls10), (NamedGroup::X25519, None));
        assert!(key_exchange(&body[1..], TlsVersion::Tls12).is_err(), "a classic DH exchange");
    }
}
