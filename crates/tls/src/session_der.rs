//! The fields of a session's DER form (ssl_asn1.cc) that the library does not show or change.

use crate::der::{INTEGER, OCTET_STRING, SEQUENCE, element};

const TIME: u8 = 0xa0 | 1;
const TICKET_AGE_ADD: u8 = 0xa0 | 21;
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

/// When the session's ticket was issued, in seconds since 1970, and what obscures the ticket age
/// that its client states (`ticket_age_add`, RFC 8446 section 4.6.1).
pub(crate) fn issued_and_age_add(session: &[u8]) -> Option<(u64, u32)> {
    let (fields, _) = element(session, SEQUENCE)?;
    let field = |tag, kind| {
        let (before, _) = around(fields, tag)?;
        let (content, _) = element(&fields[before.len()..], tag)?;
        Some(element(content, kind)?.0)
    };
    let time = field(TIME, INTEGER)?;
    if time.len() > 9 {
        return None;
    }
    let issued = time.iter().fold(0, |time: u64, byte| time << 8 | u64::from(*byte));
    let age_add = field(TICKET_AGE_ADD, OCTET_STRING)?;
    Some((issued, u32::from_be_bytes(age_add.try_into().ok()?)))
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

    #[test]
    fn time_of_issue_and_age_add_are_read() {
        let session = [0x30, 15, 0xa1, 5, 0x02, 3, 1, 2, 3, 0xb5, 6, 0x04, 4, 0xff, 0, 0, 1];
        assert_eq!(issued_and_age_add(&session), Some((0x010203, 0xff00_0001)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = early_data_context(&bytes);
            let _ = issued_and_age_add(&bytes);
            if let Some(shorter) = without_early_data(&bytes) {
                prop_assert!(shorter.len() <= bytes.len().max(2) + 4);
            }
        }
    }
}
