//! Tables in Markdown, and the page that contains them.

use std::error::Error;
use std::fs;
use std::path::Path;

/// A table: its name in the page, and its Markdown.
pub(crate) type Table = (&'static str, String);

/// Writes each table between `<!-- NAME -->` and `<!-- /NAME -->`.
pub(crate) fn fill(page: &Path, tables: &[Table]) -> Result<(), Box<dyn Error>> {
    let mut text = fs::read_to_string(page)?;
    for (name, table) in tables {
        let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let found = text.split_once(&start);
        let found = found.and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
        let (before, after) =
            found.ok_or_else(|| format!("{}: <!-- {name} --> is missing", page.display()))?;
        text = format!("{before}{start}{table}{end}{after}");
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
