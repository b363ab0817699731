//! The file's format.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

use super::sealing::{SECRET_BYTES, SealingKey};

/// Parses the keys of a text, in order and without duplicates.
///
/// # Errors
/// The line number, from 1, and what is wrong with it, never its content.
pub(super) fn parse(text: &str) -> Result<Vec<SealingKey>, (usize, String)> {
    let mut keys: Vec<SealingKey> = Vec::new();
    // Editors of some systems write a byte order mark.
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let problem = |what: String| (at + 1, format!("{what}; {SHAPE}"));
        let secret = decode(line).ok_or_else(|| {
            problem(format!("{} characters, which are not a key", line.chars().count()))
        })?;
        if secret.iter().all(|byte| *byte == secret[0]) {
            return Err(problem("the same byte 32 times is not a secret".to_owned()));
        }
        let key = SealingKey::new(secret);
        if keys.iter().all(|other| other.id() != key.id()) {
            keys.push(key);
        }
    }
    if keys.is_empty() {
        return Err((1, format!("there is no key; {SHAPE}")));
    }
    Ok(keys)
}

fn decode(line: &str) -> Option<Zeroizing<[u8; SECRET_BYTES]>> {
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    if line.len() == 2 * SECRET_BYTES {
        hex::decode_to_slice(line, secret.as_mut()).ok()?;
        return Some(secret);
    }
    // 32 bytes are 43 characters and a padding; the decoder needs room for 33.
    if !(43..=44).contains(&line.len()) {
        return None;
    }
    let mut bytes = Zeroizing::new([0; SECRET_BYTES + 1]);
    let decoded = [STANDARD, URL_SAFE]
        .iter()
        .find_map(|alphabet| alphabet.decode_slice(line, bytes.as_mut()).ok())?;
    if decoded != SECRET_BYTES {
        return None;
    }
    secret.copy_from_slice(&bytes[..SECRET_BYTES]);
    Some(secret)
}

const PADDED_OR_NOT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, PADDED_OR_NOT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, PADDED_OR_NOT);

pub(super) const SHAPE: &str = "each line is a key of 32 random bytes, as `openssl rand -hex 32` or `openssl rand -base64 32` \
     prints one";
