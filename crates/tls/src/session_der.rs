//! The fields of a session's DER form (ssl_asn1.cc) that the library does not show or change.

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const MAX_EARLY_DATA: u8 = 0xa0 | 24;
const QUIC_EARLY_DATA_CONTEXT: u8 = 0xa0 | 28;

/// The same session without leave for early data. (`SSL_SESSION_copy_without_early_data` also loses
/// `ticket_age_add`, and then the session resumes nothing.) `None`: the bytes are no session.
pub(crate) fn without_early_data(session: &[u8]) -> Option<Vec<u8>> {
    let (fields, _) = element(session, SEQUENCE)?;
    let Some((before, after)) = around(fields, MAX_EARLY_DATA) else {
        return Some(session.to_vec());
    };
    let length = before.len() + after.len();
    let mut shorter = vec![SEQUENCE];
    match length {
        0..=0x7f => shorter.push(length as u8),
        _ => {
            let bytes = length.to_be_bytes();
            let skip = bytes.iter().take_while(|byte| **byte == 0).count();
            shorter.push(0x80 | (bytes.len() - skip) as u8);
            shorter.extend_from_slice(&bytes[skip..]);
        }
    }
    shorter.extend_from_slice(before);
    shorter.extend_from_slice(after);
    Some(shorter)
}

/// The early-data context that the session was issued under, over QUIC.
pub fn early_data_context(session: &[u8]) -> Option<&[u8]> {
    let (fields, _) = element(session, SEQUENCE)?;
    let (before, _) = around(fields, QUIC_EARLY_DATA_CONTEXT)?;
    let (content, _) = element(&fields[before.len()..], QUIC_EARLY_DATA_CONTEXT)?;
    Some(element(content, OCTET_STRING)?.0)
}

/// What lies before and after the field with this tag.
fn around(fields: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let mut rest = fields;
    while let Some((&found, _)) = rest.split_first() {
        let (_, after) = element(rest, found)?;
        if found == tag {
            return Some((&fields[..fields.len() - rest.len()], after));
        }
        rest = after;
    }
    None
}

/// The content of the first element, which must have this tag, and what comes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    // Tags from 31 on have more bytes; what is looked for here lies before them.
    if found != tag || found & 0x1f == 0x1f {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_field_is_found_and_left_out() {
        let session = [0x30, 9, 0x02, 1, 1, 0xb8, 0, 0xbc, 2, 0x04, 0];
        assert_eq!(early_data_context(&session), Some(&[][..]));
        let shorter = without_early_data(&session).unwrap();
        assert_eq!(shorter, [0x30, 7, 0x02, 1, 1, 0xbc, 2, 0x04, 0]);
        assert_eq!(without_early_data(&shorter).unwrap(), shorter);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = early_data_context(&bytes);
            if let Some(shorter) = without_early_data(&bytes) {
                prop_assert!(shorter.len() <= bytes.len().max(2) + 4);
            }
        }
    }
}
