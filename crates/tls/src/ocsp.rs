//! Reads OCSP responses (RFC 6960), to decide whether one can be stapled. Does not verify
//! signatures: clients do.

use crate::TlsError;
use crate::der::{ENUMERATED, GENERALIZED_TIME, INTEGER, OCTET_STRING, SEQUENCE, any, element};

const CONTEXT_0: u8 = 0xa0;
const CONTEXT_1: u8 = 0xa1;
/// `certStatus` good: an implicit NULL.
const GOOD: u8 = 0x80;

/// The status of one certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CertificateStatus {
    pub(crate) good: bool,
    /// `thisUpdate`, in seconds since 1970.
    pub(crate) this_update: i64,
    /// `nextUpdate`, in seconds since 1970. `None`: newer information is always available.
    pub(crate) next_update: Option<i64>,
}

/// Returns the status of the certificate with this serial number (the content of its INTEGER).
///
/// # Errors
/// [`TlsError::Ocsp`].
pub(crate) fn certificate_status(
    response: &[u8],
    serial: &[u8],
) -> Result<CertificateStatus, TlsError> {
    const DAMAGED: TlsError =
        TlsError::Ocsp("it is not an OCSP response in DER form, or it is damaged");
    let (fields, _) = element(response, SEQUENCE).ok_or(DAMAGED)?;
    let (status, fields) = element(fields, ENUMERATED).ok_or(DAMAGED)?;
    if status != [0] {
        return Err(TlsError::Ocsp("the responder returned an error"));
    }
    let mut remaining = single_responses(fields).ok_or(DAMAGED)?;
    while !remaining.is_empty() {
        let (single, rest) = element(remaining, SEQUENCE).ok_or(DAMAGED)?;
        let (theirs, status) = single_response(single).ok_or(DAMAGED)?;
        if theirs == serial {
            return Ok(status);
        }
        remaining = rest;
    }
    Err(TlsError::Ocsp("it is about another certificate"))
}

/// Returns the list of single responses.
fn single_responses(fields: &[u8]) -> Option<&[u8]> {
    let (bytes, _) = element(fields, CONTEXT_0)?;
    let (bytes, _) = element(bytes, SEQUENCE)?;
    let (_type, rest) = element(bytes, 0x06)?;
    let (basic, _) = element(rest, OCTET_STRING)?;
    let (basic, _) = element(basic, SEQUENCE)?;
    let (mut data, _) = element(basic, SEQUENCE)?;
    if let Some((_version, rest)) = element(data, CONTEXT_0) {
        data = rest;
    }
    let (responder, _, rest) = any(data)?;
    if responder != CONTEXT_1 && responder != 0xa2 {
        return None;
    }
    let (_produced, rest) = element(rest, GENERALIZED_TIME)?;
    Some(element(rest, SEQUENCE)?.0)
}

/// Reads serial number and status from a SingleResponse.
fn single_response(single: &[u8]) -> Option<(&[u8], CertificateStatus)> {
    let (id, rest) = element(single, SEQUENCE)?;
    let (_algorithm, id) = element(id, SEQUENCE)?;
    let (_issuer_name, id) = element(id, OCTET_STRING)?;
    let (_issuer_key, id) = element(id, OCTET_STRING)?;
    let (serial, _) = element(id, INTEGER)?;
    let (status, _, rest) = any(rest)?;
    let (this_update, rest) = element(rest, GENERALIZED_TIME)?;
    let next_update = match element(rest, CONTEXT_0) {
        Some((next, _)) => Some(unix_seconds(element(next, GENERALIZED_TIME)?.0)?),
        None => None,
    };
    Some((
        serial,
        CertificateStatus {
            good: status == GOOD,
            this_update: unix_seconds(this_update)?,
            next_update,
        },
    ))
}

/// `YYYYMMDDHHMMSSZ`, the only form that RFC 6960 allows (by RFC 5280 section 4.1.2.5.2).
fn unix_seconds(time: &[u8]) -> Option<i64> {
    let (digits, zone) = time.split_at_checked(14)?;
    if zone != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |part: &[u8]| part.iter().fold(0, |all, digit| all * 10 + i64::from(digit - b'0'));
    let two = |at: usize| number(&digits[at..at + 2]);
    let (year, month, day) = (number(&digits[..4]), two(4), two(6));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years start in March, so that the leap day is the last day (Hinnant's days_from_civil).
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
            - 719_468;
    Some(days * 86_400 + two(8) * 3600 + two(10) * 60 + two(12))
}

#[cfg(test)]
mod tests {
    use proptest::proptest;

    use super::*;

    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let mut all = vec![tag];
        match content.len() {
            length @ 0..=0x7f => all.push(length as u8),
            length => all.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        all.extend(content);
        all
    }

    fn response(status: u8) -> Vec<u8> {
        let time = |text: &str| der(GENERALIZED_TIME, &[text.as_bytes()]);
        let single = |serial: &[u8], status: u8| {
            let id = der(
                SEQUENCE,
                &[
                    &der(SEQUENCE, &[&der(0x06, &[&[1]])]),
                    &der(OCTET_STRING, &[&[7; 20]]),
                    &der(OCTET_STRING, &[&[8; 20]]),
                    &der(INTEGER, &[serial]),
                ],
            );
            let next = der(CONTEXT_0, &[&time("20261129000000Z")]);
            der(SEQUENCE, &[&id, &[status, 0], &time("20261122000000Z"), &next])
        };
        let data = der(
            SEQUENCE,
            &[
                &der(0xa2, &[&der(OCTET_STRING, &[&[9; 20]])]),
                &time("20261122000000Z"),
                &der(SEQUENCE, &[&single(&[1, 2], GOOD), &single(&[3], 0x81)]),
            ],
        );
        let basic = der(SEQUENCE, &[&data, &der(SEQUENCE, &[]), &der(0x03, &[&[0; 65]])]);
        let bytes = der(SEQUENCE, &[&der(0x06, &[&[1]]), &der(OCTET_STRING, &[&basic])]);
        let bytes = der(CONTEXT_0, &[&bytes]);
        der(SEQUENCE, &[&der(ENUMERATED, &[&[status]]), &bytes])
    }

    #[test]
    fn rfc6960_4_2_1_the_status_of_each_certificate_is_read() {
        let good = certificate_status(&response(0), &[1, 2]).unwrap();
        let (this_update, next_update) = (1_795_305_600, Some(1_795_910_400));
        assert_eq!(good, CertificateStatus { good: true, this_update, next_update });
        assert!(!certificate_status(&response(0), &[3]).unwrap().good);
        let message = |error: TlsError| error.to_string();
        assert!(
            message(certificate_status(&response(0), &[4]).unwrap_err())
                .contains("another certificate")
        );
        assert!(message(certificate_status(&response(3), &[3]).unwrap_err()).contains("error"));
        assert!(
            message(certificate_status(&response(0)[..80], &[3]).unwrap_err()).contains("damaged")
        );
    }

    #[test]
    fn times_are_seconds_since_1970() {
        for (time, seconds) in [
            ("19700101000000Z", Some(0)),
            ("20000229235959Z", Some(951_868_799)),
            ("20260301000000Z", Some(1_772_323_200)),
            ("20261122010203Z", Some(1_795_309_323)),
            ("20261322010203Z", None),
            ("202611220102Z", None),
            ("20261122010203+0100", None),
        ] {
            assert_eq!(unix_seconds(time.as_bytes()), seconds, "{time}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..200),
            cut in 0usize..300,
        ) {
            let _ = certificate_status(&bytes, &[1, 2]);
            let whole = response(0);
            let _ = certificate_status(&whole[..cut.min(whole.len())], &[1, 2]);
        }
    }
}
