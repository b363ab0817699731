//! A minimal DER reader: elements with tags below 31.

pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0a;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;

/// Returns the content of the first element, which must have this tag, and the bytes after it.
pub(crate) fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = any(der)?;
    (found == tag).then_some((content, rest))
}

/// Returns tag and content of the first element, and the bytes after it.
pub(crate) fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    // Tags from 31 on take several bytes; none of the formats read here needs them.
    if found & 0x1f == 0x1f {
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
    let (content, rest) = rest.split_at_checked(length)?;
    Some((found, content, rest))
}
