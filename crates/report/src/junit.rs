//! Verdicts as JUnit XML, which pipelines show as test cases.
//!
//! Written by quick-xml. The crate for the format itself brings a calendar, UUIDs and a terminal
//! parser along, for files of four elements.

use quick_xml::Writer;
use quick_xml::escape::partial_escape;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use crate::Verdict;

/// One test case for each verdict: a failure for each that does not hold, an error for each that
/// could not be decided.
pub fn render(verdicts: &[Verdict]) -> String {
    let mut out = Writer::new_with_indent(Vec::new(), b' ', 2);
    // Writing to memory does not fail.
    let _ = write(&mut out, verdicts);
    let mut text = String::from_utf8_lossy(&out.into_inner()).into_owned();
    text.push('\n');
    text
}

type Out = Writer<Vec<u8>>;

fn write(out: &mut Out, verdicts: &[Verdict]) -> std::io::Result<()> {
    let failures = verdicts.iter().filter(|v| v.undecided.is_none() && !v.passed()).count();
    let errors = verdicts.iter().filter(|verdict| verdict.undecided.is_some()).count();
    let counts = [
        ("tests", verdicts.len().to_string()),
        ("failures", failures.to_string()),
        ("errors", errors.to_string()),
    ];
    out.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    open(out, "testsuites", &counts)?;
    let named = [("name", "firstflight".to_owned())];
    open(out, "testsuite", &[&named[..], &counts[..]].concat())?;
    for verdict in verdicts {
        case(out, verdict)?;
    }
    out.write_event(Event::End(BytesEnd::new("testsuite")))?;
    out.write_event(Event::End(BytesEnd::new("testsuites")))
}

fn case(out: &mut Out, verdict: &Verdict) -> std::io::Result<()> {
    let class = format!("firstflight.{}", verdict.group);
    open(out, "testcase", &[("name", verdict.name.clone()), ("classname", class)])?;
    if let Some(why) = &verdict.undecided {
        text(out, "error", &[("message", why.clone())], why)?;
    } else if let Some(first) = verdict.findings.first() {
        let message = match verdict.findings.len() {
            1 => first.clone(),
            n => format!("{first}, and {} more", n - 1),
        };
        let shown = &verdict.findings[..verdict.findings.len().min(MAX_FINDINGS)];
        text(out, "failure", &[("message", message)], &shown.join("\n"))?;
    }
    let mut more = vec![format!("{} checked", verdict.checked)];
    more.extend(verdict.left_out.iter().map(|left_out| format!("left out: {left_out}")));
    text(out, "system-out", &[], &more.join("\n"))?;
    out.write_event(Event::End(BytesEnd::new("testcase")))
}

fn open(out: &mut Out, name: &str, attributes: &[(&str, String)]) -> std::io::Result<()> {
    let mut start = BytesStart::new(name);
    for (name, value) in attributes {
        start.push_attribute((*name, allowed(value).as_str()));
    }
    out.write_event(Event::Start(start))
}

fn text(
    out: &mut Out,
    name: &str,
    attributes: &[(&str, String)],
    words: &str,
) -> std::io::Result<()> {
    open(out, name, attributes)?;
    let words = allowed(words);
    out.write_event(Event::Text(BytesText::from_escaped(partial_escape(words.as_str()))))?;
    out.write_event(Event::End(BytesEnd::new(name)))
}

/// Without what XML 1.0 has no way to say (section 2.2).
fn allowed(text: &str) -> String {
    let can = |c: char| {
        matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
            || c >= '\u{10000}'
    };
    text.chars().map(|c| if can(c) { c } else { '\u{fffd}' }).collect()
}

const MAX_FINDINGS: usize = 1000;
