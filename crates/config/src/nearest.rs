//! What was probably meant by a name that does not exist.

/// The known name that differs by a slip or two; `None`: none is that near.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, name), *known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_seen_and_another_word_is_not() {
        let known = ["header_timeout", "idle_timeout", "streams", "url"];
        assert_eq!(nearest("header_timout", &known), Some("header_timeout"));
        assert_eq!(nearest("stream", &known), Some("streams"));
        assert_eq!(nearest("uri", &known), Some("url"));
        assert_eq!(nearest("backlog", &known), None);
    }
}
