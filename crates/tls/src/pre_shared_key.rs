//! The pre_shared_key extension of a ClientHello.

/// The first identity and binder of a pre_shared_key extension (RFC 8446 section 4.2.11). BoringSSL
/// uses no other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PreSharedKey<'a> {
    pub(crate) identity: &'a [u8],
    pub(crate) obfuscated_age: u32,
    pub(crate) binder: &'a [u8],
    /// Length of the list of binders, including its two length bytes.
    pub(crate) binders_length: usize,
}

impl<'a> PreSharedKey<'a> {
    pub(crate) fn read(extension: &'a [u8]) -> Option<Self> {
        let (identities, binders) = length_prefixed(extension)?;
        let (identity, rest) = length_prefixed(identities)?;
        let (age, _) = rest.split_first_chunk()?;
        let (list, _) = length_prefixed(binders)?;
        let (&length, list) = list.split_first()?;
        Some(Self {
            identity,
            obfuscated_age: u32::from_be_bytes(*age),
            binder: list.get(..length.into())?,
            binders_length: binders.len(),
        })
    }
}

/// Splits off a vector with a two-byte length.
fn length_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc8446_4_2_11_the_first_identity_and_binder_are_read() {
        let extension = [
            0, 15, 0, 2, 7, 8, 0, 0, 1, 2, 0, 1, 9, 0, 0, 0, 3, // two identities
            0, 6, 2, 5, 6, 2, 1, 1, // two binders
        ];
        let expected = PreSharedKey {
            identity: &[7, 8],
            obfuscated_age: 0x0102,
            binder: &[5, 6],
            binders_length: 8,
        };
        assert_eq!(PreSharedKey::read(&extension), Some(expected));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(read) = PreSharedKey::read(&bytes) {
                prop_assert!(read.binders_length <= bytes.len());
            }
        }
    }
}
