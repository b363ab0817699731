//! `firstflight doctor`: checks whether this machine can run the lab.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;
use firstflight_emulator::{Finding, State, examine};
use firstflight_lab::SERVERS;

/// Check whether this machine can run the lab, and show how to fix what is missing.
///
/// Tests namespaces, packet sockets, TUN devices, TCP Fast Open, congestion control, hardware
/// counters, processors, clock and wake-ups, and leaves nothing behind. Exits with 1 if something
/// is missing that the lab needs.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut findings = examine();
    findings.push(servers());
    match args.json {
        true => outln!("{}", json(&findings)),
        false => out!("{}", text(&findings, std::io::stdout().is_terminal())),
    }
    let missing = findings.iter().any(|finding| finding.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Which other servers are installed. None is required.
fn servers() -> Finding {
    let (installed, not_installed): (Vec<_>, Vec<_>) =
        SERVERS.into_iter().partition(|server| server.installed());
    let names = |servers: &[firstflight_lab::ServerKind]| {
        servers.iter().map(|server| server.name()).collect::<Vec<_>>().join(", ")
    };
    let fix = (!not_installed.is_empty()).then(|| {
        format!(
            "to compare with {}, install them: scripts/install-deps bench",
            names(&not_installed)
        )
    });
    Finding {
        name: "servers",
        state: if not_installed.is_empty() { State::Good } else { State::Limited },
        what: format!("{} can be measured", names(&installed)),
        fix,
    }
}

fn json(findings: &[Finding]) -> serde_json::Value {
    let to_json = |finding: &Finding| {
        serde_json::json!({
            "name": finding.name,
            "state": finding.state.to_string(),
            "what": finding.what,
            "fix": finding.fix,
        })
    };
    findings.iter().map(to_json).collect()
}

fn text(findings: &[Finding], colour: bool) -> String {
    let mut text = String::new();
    for Finding { name, state, what, fix } in findings {
        let (on, off) = match (colour, state) {
            (false, _) => ("", ""),
            (true, State::Good) => ("\x1b[32m", "\x1b[0m"),
            (true, State::Limited) => ("\x1b[33m", "\x1b[0m"),
            (true, State::Missing) => ("\x1b[31m", "\x1b[0m"),
        };
        let state = format!("{:<8}", state.to_string());
        text.push_str(&paragraph(&format!("{on}{state}{off}{name:<20}"), what));
        if let Some(fix) = fix {
            text.push_str(&paragraph(&" ".repeat(INDENT), &format!("-> {fix}")));
        }
    }
    text
}

/// The column of the text, after state and name.
const INDENT: usize = 28;
const WIDTH: usize = 100;

/// Wraps text to lines of at most [`WIDTH`] columns, the first of which starts with `head`.
fn paragraph(head: &str, words: &str) -> String {
    let mut text = head.to_owned();
    let mut column = INDENT;
    for (index, word) in words.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(INDENT));
            column = INDENT;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_within_a_terminal() {
        let finding = Finding {
            name: "namespaces",
            state: State::Missing,
            what: "words ".repeat(40),
            fix: Some("fix ".repeat(40)),
        };
        let text = text(&[finding], false);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.starts_with("missing namespaces          words"), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(INDENT))), "{text}");
        assert!(!text.contains('\x1b'));
    }
}
