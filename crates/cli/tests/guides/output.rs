//! Compares the output of commands with a guide.

/// The output that a guide shows.
///
/// Any number of spaces separates words, and a line `...` matches any number of lines. Words that may
/// differ match any text without a space, also as parts of words.
pub(crate) struct Output {
    lines: Vec<Line>,
}

enum Line {
    Any,
    /// What has to be there, in pieces; between two is anything without a space.
    Text(Vec<String>),
}

impl Output {
    pub(crate) fn new(lines: &[&str], differ: &[String]) -> Self {
        let line = |line: &&str| match line.trim() {
            "..." => Line::Any,
            line => Line::Text(pieces(&single_spaced(line), differ)),
        };
        Self { lines: lines.iter().map(line).collect() }
    }

    /// # Errors
    /// The line that is missing.
    pub(crate) fn compare(&self, output: &str) -> Result<(), String> {
        let output: Vec<_> = output.trim_end().lines().map(single_spaced).collect();
        // Greedy: the first place where the lines up to the next `...` fit will do.
        let mut at = 0;
        let mut loose = false;
        for line in &self.lines {
            let Line::Text(pieces) = line else {
                loose = true;
                continue;
            };
            let fits = |output: &String| matches(output, pieces);
            let found = if loose {
                output[at..].iter().position(fits).map(|skipped| at + skipped)
            } else {
                output.get(at).filter(|output| fits(output)).map(|_| at)
            };
            at = 1 + found.ok_or_else(|| format!("not printed: {}", pieces.join("(something)")))?;
            loose = false;
        }
        match output.get(at) {
            Some(more) if !loose => Err(format!("unexpected line: {more}")),
            _ => Ok(()),
        }
    }
}

/// The width of tables depends on their content.
fn single_spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn pieces(line: &str, differ: &[String]) -> Vec<String> {
    let mut pieces = vec![line.to_owned()];
    for word in differ {
        let split =
            |piece: &String| piece.split(word.as_str()).map(str::to_owned).collect::<Vec<_>>();
        pieces = pieces.iter().flat_map(split).collect();
    }
    pieces
}

fn matches(output: &str, pieces: &[String]) -> bool {
    let Some((first, more)) = pieces.split_first() else { return output.is_empty() };
    let Some(rest) = output.strip_prefix(first.as_str()) else { return false };
    if more.is_empty() {
        return rest.is_empty();
    }
    // At least one character, and no space.
    let ends = rest.char_indices().take_while(|(_, c)| *c != ' ').map(|(at, c)| at + c.len_utf8());
    ends.into_iter().any(|end| matches(&rest[end..], more))
}

/// Tests of the comparison.
pub(crate) fn rules() {
    let output = Output::new(&["key  a1b2", "...", "in 5 ms", "end"], &["a1b2".into(), "5".into()]);
    for (printed, fits) in [
        ("key ff\nmore\nmore\nin 17 ms\nend\n", true),
        ("key     ff\nin 17 ms\nend", true),
        ("key\nin 17 ms\nend\n", false),
        ("key ff gg\nin 17 ms\nend\n", false),
        ("key ff\nin 17 ms\nmore\nend\n", false),
        ("key ff\nin 17 ms\nend\nmore\n", false),
        ("key ff\nin 17 ms\n", false),
        ("before\nkey ff\nin 17 ms\nend\n", false),
    ] {
        assert_eq!(output.compare(printed).is_ok(), fits, "{printed}");
    }
    let open = Output::new(&["...", "early=accepted", "..."], &[]);
    assert!(open.compare("x\nearly=accepted\n").is_ok());
    assert!(open.compare("early=none\n").is_err());
    assert!(Output::new(&[], &[]).compare("\n").is_ok());
    // Part of a word.
    let part = Output::new(&["took 0.5ms"], &["0.5".into()]);
    assert!(part.compare("took 12.75ms").is_ok());
    assert!(part.compare("took 12.75s").is_err());
}
