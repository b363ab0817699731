//! The words of a condition, each with its place.

use super::ConditionError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A number with its unit's factor applied; times are in milliseconds.
    Number {
        value: f64,
        is_time: bool,
    },
    Word(String),
    /// What stands between a function's parentheses.
    Arguments(String),
    Sign(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub token: Token,
    /// Byte where it starts.
    pub at: usize,
    /// Byte after it.
    pub end: usize,
}

/// Splits a condition; the last token is [`Token::End`].
pub(super) fn split(text: &str) -> Result<Vec<Placed>, ConditionError> {
    let mut tokens: Vec<Placed> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let after_word = matches!(tokens.last(), Some(Placed { token: Token::Word(word), .. })
            if !OPERATORS.contains(&word.as_str()));
        let (token, end) = match first {
            '(' if after_word => arguments(text, at)?,
            '0'..='9' | '.' => number(text, at)?,
            'a'..='z' | 'A'..='Z' | '_' => word(text, at),
            _ => sign(text, at)?,
        };
        tokens.push(Placed { token, at, end });
        at = end;
    }
    tokens.push(Placed { token: Token::End, at, end: at });
    Ok(tokens)
}

pub(super) const OPERATORS: [&str; 3] = ["and", "or", "not"];

fn arguments(text: &str, at: usize) -> Result<(Token, usize), ConditionError> {
    let Some(length) = text[at..].find(')') else {
        return Err(ConditionError::new(text, at, "this parenthesis is not closed"));
    };
    Ok((Token::Arguments(text[at + 1..at + length].to_owned()), at + length + 1))
}

fn number(text: &str, at: usize) -> Result<(Token, usize), ConditionError> {
    let digits = run(text, at, |c| c.is_ascii_digit() || c == '.');
    let unit_end = run(text, digits, |c| c.is_alphanumeric());
    let value = text[at..digits].parse::<f64>().ok().filter(|value| value.is_finite());
    let Some(value) = value else {
        let message = format!("{:?} is no number; write it like 1.5", &text[at..digits]);
        return Err(ConditionError::new(text, at, message));
    };
    let (factor, is_time) = match &text[digits..unit_end] {
        "" => (1.0, false),
        "us" | "µs" => (1e-3, true),
        "ms" => (1.0, true),
        "s" => (1e3, true),
        unit => {
            let message = format!("unknown unit {unit:?}; allowed are us, ms and s");
            return Err(ConditionError::new(text, digits, message));
        }
    };
    Ok((Token::Number { value: value * factor, is_time }, unit_end))
}

fn word(text: &str, at: usize) -> (Token, usize) {
    let end = run(text, at, |c| c.is_ascii_alphanumeric() || c == '_');
    (Token::Word(text[at..end].to_ascii_lowercase()), end)
}

fn sign(text: &str, at: usize) -> Result<(Token, usize), ConditionError> {
    const SIGNS: [&str; 12] = ["<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "(", ")"];
    match SIGNS.into_iter().find(|sign| text[at..].starts_with(sign)) {
        Some(sign) => Ok((Token::Sign(sign), at + sign.len())),
        None => {
            let sign = text[at..].chars().next().unwrap_or_default();
            let message = format!("{sign:?} means nothing here; signs are < <= > >= == != + - * /");
            Err(ConditionError::new(text, at, message))
        }
    }
}

/// The byte after the run of such characters that starts at `at`.
fn run(text: &str, at: usize, is: impl Fn(char) -> bool) -> usize {
    text[at..].find(|c| !is(c)).map_or(text.len(), |length| at + length)
}
