//! Files of attacks: names, expected outcomes, and bytes. The files document their format.

/// One case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The text after `=>`.
    pub(crate) expected: String,
    /// The text after `=3>`.
    pub(crate) expected_http3: Option<String>,
    /// The lines of the case, with their escapes.
    pub(crate) lines: Vec<String>,
}

/// The cases of a file.
///
/// # Panics
/// If one has no expectation.
pub(crate) fn cases(text: &str) -> Vec<Case> {
    let mut cases = Vec::<Case>::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(name) = line.strip_prefix("== ") {
            let case = Case {
                name: name.to_owned(),
                expected: String::new(),
                expected_http3: None,
                lines: Vec::new(),
            };
            cases.push(case);
        } else if let Some(expected) = line.strip_prefix("=> ") {
            cases.last_mut().unwrap().expected = expected.to_owned();
        } else if let Some(expected) = line.strip_prefix("=3> ") {
            cases.last_mut().unwrap().expected_http3 = Some(expected.to_owned());
        } else {
            cases.last_mut().unwrap().lines.push(line.to_owned());
        }
    }
    for case in &cases {
        assert!(!case.expected.is_empty(), "{}: no expectation", case.name);
    }
    cases
}

/// Decodes a text with escapes.
///
/// # Panics
/// If an escape is invalid.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, decoded) = match first {
            '\\' => escape(&rest[1..]),
            '{' => repeated(&rest[1..]),
            _ => (0, first.to_string().into_bytes()),
        };
        bytes.extend(decoded);
        rest = &rest[first.len_utf8() + length..];
    }
    bytes
}

fn escape(rest: &str) -> (usize, Vec<u8>) {
    let simple = |byte| (1, vec![byte]);
    match rest.as_bytes() {
        [b'r', ..] => simple(b'\r'),
        [b'n', ..] => simple(b'\n'),
        [b't', ..] => simple(b'\t'),
        [b'\\', ..] => simple(b'\\'),
        [b'x', ..] => (3, vec![u8::from_str_radix(&rest[1..3], 16).unwrap()]),
        _ => panic!("no escape: {rest}"),
    }
}

/// `N*TEXT}`.
fn repeated(rest: &str) -> (usize, Vec<u8>) {
    let (inner, _) = rest.split_once('}').unwrap();
    let (times, text) = inner.split_once('*').unwrap();
    (inner.len() + 1, bytes(text).repeat(times.parse().unwrap()))
}
