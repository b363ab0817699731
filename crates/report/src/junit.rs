//! Check outcomes as JUnit XML, which pipelines show as test cases.
//! The files have four elements, which quick-xml writes and escapes. quick-junit, the crate for the
//! format, depends on a calendar, UUIDs and a terminal parser.

use quick_xml::Writer;
use quick_xml::escape::partial_escape;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use crate::CheckOutcome;

/// Renders one test case for each outcome: a failure if it does not hold, an error if it could not
/// be decided, skipped if it could not have failed.
pub fn render(outcomes: &[CheckOutcome]) -> String {
    let mut out = Writer::new_with_indent(Vec::new(), b' ', 2);
    // Writing to memory does not fail.
    let _ = write(&mut out, outcomes);
    let mut text = String::from_utf8_lossy(&out.into_inner()).into_owned();
    text.push('\n');
    text
}

type Out = Writer<Vec<u8>>;

fn write(out: &mut Out, outcomes: &[CheckOutcome]) -> std::io::Result<()> {
    let failures = outcomes.iter().filter(|v| v.undecided.is_none() && !v.passed()).count();
    let errors = outcomes.iter().filter(|outcome| outcome.undecided.is_some()).count();
    let counts = [
        ("tests", outcomes.len().to_string()),
        ("failures", failures.to_string()),
        ("errors", errors.to_string()),
    ];
    out.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    open(out, "testsuites", &counts)?;
    let named = [("name", "firstflight".to_owned())];
    open(out, "testsuite", &[&named[..], &counts[..]].concat())?;
    for outcome in outcomes {
        case(out, outcome)?;
    }
    out.write_event(Event::End(BytesEnd::new("testsuite")))?;
    out.write_event(Event::End(BytesEnd::new("testsuites")))
}

fn case(out: &mut Out, outcome: &CheckOutcome) -> std::io::Result<()> {
    let class = format!("firstflight.{}", outcome.group);
    open(out, "testcase", &[("name", outcome.claim()), ("classname", class)])?;
    if let Some(why) = &outcome.undecided {
        text(out, "error", &[("message", why.clone())], why)?;
    } else if let Some(first) = outcome.findings.first() {
        let message = match outcome.findings.len() {
            1 => first.clone(),
            n => format!("{first}, and {} more", n - 1),
        };
        let shown = &outcome.findings[..outcome.findings.len().min(MAX_FINDINGS)];
        text(out, "failure", &[("message", message)], &shown.join("\n"))?;
    } else if outcome.is_idle() {
        text(out, "skipped", &[("message", outcome.skipped.join("; "))], "")?;
    }
    let mut more = vec![format!("{} checked", outcome.checked)];
    more.extend(outcome.skipped.iter().map(|left_out| format!("left out: {left_out}")));
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

/// Replaces characters that XML 1.0 cannot represent (section 2.2).
fn allowed(text: &str) -> String {
    let is_allowed = |c: char| {
        matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
            || c >= '\u{10000}'
    };
    text.chars().map(|c| if is_allowed(c) { c } else { '\u{fffd}' }).collect()
}

const MAX_FINDINGS: usize = 1000;
