//! Tables in Markdown, and the page in which they stand.

use std::error::Error;
use std::fs;
use std::path::Path;

/// A table and its name in the page.
pub(crate) type Table = (&'static str, String);

/// Puts each table between `<!-- NAME -->` and `<!-- /NAME -->`.
pub(crate) fn fill(page: &Path, tables: &[Table]) -> Result<(), Box<dyn Error>> {
    let mut text = fs::read_to_string(page)?;
    for (name, table) in tables {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let found = text.split_once(&begin);
        let found = found.and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
        let (before, after) =
            found.ok_or_else(|| format!("{}: no place for {name}", page.display()))?;
        text = format!("{before}{begin}{table}{end}{after}");
    }
    fs::write(page, text)?;
    Ok(())
}

/// A table in Markdown.
pub(crate) fn markdown<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", "---|".repeat(N));
    let rows: String = rows.iter().map(|row| line(row)).collect();
    line(&head.map(str::to_owned)) + &rule + &rows
}
