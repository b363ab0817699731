//! Escapes untrusted text for display in terminals, logs and reports.
//!
//! A terminal executes control characters, a line end starts another log entry, and marks that
//! reorder text mislead readers. A server's response, a client's `User-Agent` or a certificate's
//! subject may contain any of them.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes unprintable characters as in Rust literals (`\n`, `\u{1b}`): control characters (C0,
/// DEL, and C1, which is U+0080 to U+009F), line separators, and marks that reorder text.
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

/// Like [`printable`], but keeps `\n`: for text of several lines whose line ends are trusted.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let must_escape = |c| c != '\n' && is_unprintable(c);
    escaped(text, must_escape, |c, out| out.extend(c.escape_default()))
}

/// Like [`printable`], for bytes that may not be UTF-8. Invalid bytes are shown as `\x9b`.
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

/// Like [`printable`], for JSON: its value does not change. Valid JSON may contain all unprintable
/// characters but C0 unescaped (RFC 8259 section 7). White space between values is kept.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let must_escape = |c: char| !c.is_ascii_whitespace() && is_unprintable(c);
    // Four digits suffice: all unprintable characters are in the Basic Multilingual Plane.
    escaped(json, must_escape, |c, out| {
        let _ = write!(out, "\\u{:04x}", u32::from(c));
    })
}

/// Whether a character is a control character, separates lines, or reorders text on a terminal.
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
    must_escape: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    // Fast path: printable ASCII.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let Some(first) = text.find(&must_escape) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        match must_escape(c) {
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
    fn printable_text_is_unchanged() {
        for text in ["", r#"GET /a\b "c" %0a"#, "Z\u{fc}rich \u{6771}\u{4eac} \u{1f680} \u{a0}"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn invalid_utf8_is_shown_as_hexadecimal_bytes() {
        assert_eq!(printable_bytes(b"a\x9b31m\xc2\x9b\xe9"), r"a\x9b31m\u{9b}\xe9");
    }

    proptest! {
        #[test]
        fn no_unprintable_character_remains(bytes: Vec<u8>, text: String) {
            prop_assert!(!printable(&text).contains(is_unprintable));
            prop_assert!(!printable_bytes(&bytes).contains(is_unprintable));
        }

        #[test]
        fn escaped_json_has_the_same_value(text in "[\\PC\u{0}-\u{a0}\u{2020}-\u{206f}]*") {
            let value = serde_json::json!({ "text": text });
            for json in [value.to_string(), format!("{value:#}")] {
                let shown = printable_json(&json);
                let must_escape = |c| c != '\n' && is_unprintable(c);
                prop_assert!(!shown.contains(must_escape), "{:?}", shown);
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&shown).unwrap(), &value);
            }
        }
    }
}
