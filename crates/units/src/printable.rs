//! Text from a peer, escaped so that it is text wherever it is shown.
//!
//! A terminal takes control characters for commands, a log takes a line end for the next entry, and
//! a reader takes reordered text for what it seems to say. A server's words, a client's
//! `User-Agent` or a certificate's subject may hold any of them.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes what is not text in the way of Rust's literals (`\n`, `\u{1b}`): control characters (C0,
/// DEL, and C1, which is U+0080 to U+009F), separators of lines, and marks that reorder text.
///
/// ```
/// use firstflight_units::printable;
///
/// assert_eq!(printable("caf\u{e9}, 10 \u{20ac}"), "caf\u{e9}, 10 \u{20ac}");
/// assert_eq!(printable("\x1b[2J\r\n\u{9b}H"), r"\u{1b}[2J\r\n\u{9b}H");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable, |c, out| out.extend(c.escape_default()))
}

/// The same, of a text of several lines whose line ends are our own.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let odd = |c| c != '\n' && is_unprintable(c);
    escaped(text, odd, |c, out| out.extend(c.escape_default()))
}

/// The same, of bytes that may not be UTF-8: those that are not are shown as `\x9b`.
pub fn printable_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return printable(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        out.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.into()
}

/// The same, of JSON, which means the same afterwards (RFC 8259 section 7 has only C0 escaped).
/// White space between values stays.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let odd = |c: char| !c.is_ascii_whitespace() && is_unprintable(c);
    // None of them is outside the Basic Multilingual Plane.
    escaped(json, odd, |c, out| {
        let _ = write!(out, "\\u{:04x}", u32::from(c));
    })
}

/// Whether a character is a control character or reorders text on a terminal.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Line and paragraph separators, and the controls of bidirectional text.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

fn escaped(
    text: &str,
    odd: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    // The usual case, which needs no decoding.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let Some(first) = text.find(&odd) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        match odd(c) {
            true => escape(c, &mut out),
            false => out.push(c),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn controls_of_every_kind_are_escaped() {
        assert_eq!(printable("a\0\x07\x08\t\x1b]0;x\x7f"), r"a\u{0}\u{7}\u{8}\t\u{1b}]0;x\u{7f}");
        assert_eq!(printable("\u{80}\u{9b}31m\u{9f}"), r"\u{80}\u{9b}31m\u{9f}");
        assert_eq!(printable("a\n::error::b\r"), r"a\n::error::b\r");
        assert_eq!(printable("\u{202e}txt\u{2066}\u{2028}"), r"\u{202e}txt\u{2066}\u{2028}");
        assert_eq!(printable_lines("a\r\nb\x1bc"), "a\\r\nb\\u{1b}c");
    }

    #[test]
    fn text_is_left_as_it_is() {
        for text in ["", r#"GET /a\b "c" %0a"#, "Z\u{fc}rich \u{6771}\u{4eac} \u{1f680} \u{a0}"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_bytes() {
        assert_eq!(printable_bytes(b"a\x9b31m\xc2\x9b\xe9"), r"a\x9b31m\u{9b}\xe9");
    }

    proptest! {
        #[test]
        fn nothing_odd_is_left(bytes: Vec<u8>, text: String) {
            prop_assert!(!printable(&text).contains(is_unprintable));
            prop_assert!(!printable_bytes(&bytes).contains(is_unprintable));
        }

        #[test]
        fn json_means_the_same(text in "[\\PC\u{0}-\u{a0}\u{2020}-\u{206f}]*") {
            let value = serde_json::json!({ "text": text });
            for json in [value.to_string(), format!("{value:#}")] {
                let shown = printable_json(&json);
                let odd = |c| c != '\n' && is_unprintable(c);
                prop_assert!(!shown.contains(odd), "{:?}", shown);
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&shown).unwrap(), &value);
            }
        }
    }
}
