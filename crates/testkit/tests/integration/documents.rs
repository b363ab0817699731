//! The repository's Markdown: each link to a file or heading of it leads somewhere.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let documents: Vec<_> = documents(&root);
    assert!(documents.len() > 30, "only {} documents", documents.len());
    let mut broken = Vec::new();
    for document in documents {
        for link in links(&fs::read_to_string(&document).unwrap()) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let exists = match heading {
                "" => target.exists(),
                heading => {
                    fs::read_to_string(&target).is_ok_and(|text| headings(&text).contains(heading))
                }
            };
            if !exists {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_broken_link_is_found() {
    let text = "## Why: the `gate`, and why not\n[a](b.md#c) `[x](y)`\n```\n[no](link)\n```\n[w](https://h)";
    assert_eq!(links(text), ["b.md#c"]);
    assert_eq!(headings(text), HashSet::from(["why-the-gate-and-why-not".to_owned()]));
}

fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.join("docs"), root.join("examples"), root.join("packaging")];
    let top = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    found.extend(top.filter(|path| is_document(path)));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false if is_document(&entry) => found.push(entry),
                false => {}
            }
        }
    }
    found
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// The targets inside the repository.
fn links(text: &str) -> Vec<String> {
    let prose: String = prose(text).map(|line| without_code(line) + "\n").collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let local = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    targets.map(|(target, _)| target).filter(local).map(str::to_owned).collect()
}

/// The anchors of the headings, as GitHub makes them.
fn headings(text: &str) -> HashSet<String> {
    let name = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    prose(text).filter(|line| line.starts_with('#')).map(name).collect()
}

/// The lines outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// A line without its `code`.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}
