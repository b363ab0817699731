//! Columns on a terminal.

/// Rows as lines, each column as wide as its widest field and two spaces apart.
pub(super) fn grid(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let fields = rows.iter().filter_map(|row| row.get(column));
        fields.map(|field| field.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let fields = row.iter().zip(&widths).map(|(field, width)| format!("{field:width$}"));
        text += fields.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A text of at most so many characters; what is left out shows as an ellipsis.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_end_without_spaces() {
        let row = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["A", "LONG", "C"]), row(&["ännchen", "b", ""])];
        assert_eq!(grid(&rows), "A        LONG  C\nännchen  b\n");
    }

    #[test]
    fn what_is_cut_shows_it() {
        assert_eq!((cut("abcd", 4), cut("abcde", 4)), ("abcd".into(), "abc…".into()));
    }
}
