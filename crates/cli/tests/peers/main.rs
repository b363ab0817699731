//! Who keeps the rule of RFC 9846 section 8, that a server accepts a first flight at most once: the
//! checks of `firstflight audit` against our server and others, while a copy arrives at another node,
//! after a restart, or when a clock has been set.
//!
//! A trial is a cell of the table in `docs/evidence/audit.md`: `PEER::ROW`. Ours must pass in each. The cells
//! of other servers are controls, which show that the attacks work: nginx fails. Without
//! `AUDIT_PEERS=all`, which `make audit-peers` sets, most cells of other servers are left out.

#[path = "../chaos/clock.rs"]
mod clock;
mod configs;
#[path = "../chaos/kind.rs"]
#[allow(dead_code)]
mod kind;
mod nodes;
mod peer;
mod row;
mod rustls_server;
mod table;
mod tls_only;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::peer::Peer;
use crate::row::Row;
use crate::table::Cell;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cells mostly wait.
    arguments.test_threads.get_or_insert(8);
    let all = std::env::var("AUDIT_PEERS").is_ok_and(|value| value == "all");
    let cells = Peer::ALL.into_iter().flat_map(|peer| Row::ALL.map(|row| (peer, row)));
    let trials = cells.map(|(peer, row)| {
        let name = format!("{}::{}", peer.slug(), row.slug());
        let same = row == Row::SameInstance;
        let selected = all || same || peer.is_ours() || peer == Peer::Nginx;
        Trial::test(name, move || measure(peer, row).map_err(Into::into))
            .with_ignored_flag(!selected)
    });
    let mut trials: Vec<Trial> = trials.collect();
    trials.push(Trial::test("documented", || table::assert_documented().map_err(Into::into)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    nodes::end_store();
    if !arguments.list {
        table::publish();
    }
    conclusion.exit_code()
}

/// Measures a cell. Ours has to keep the rule, and of the others nginx has to break it where copies
/// are not too late.
fn measure(peer: Peer, row: Row) -> Result<(), String> {
    let missing = peer.program().filter(|program| firstflight_testkit::skipped_without(&[program]));
    if missing.is_some() {
        return Ok(());
    }
    let cell = match peer.inapplicable(row) {
        Some(reason) => Cell::inapplicable(peer, row, reason),
        None if peer.is_tls_only() => tls_only::measure(peer, row),
        None => row::measure(peer, row),
    };
    let shown = format!("{}: {}\n{}", cell.result.name(), cell.summary, cell.evidence.join("\n"));
    let result = cell.result;
    table::add(cell);
    match (peer, result) {
        (_, table::Outcome::Undecided) => Err(shown),
        (peer, table::Outcome::Again) if peer.is_ours() => Err(shown),
        (Peer::Nginx, table::Outcome::Once) => Err(format!("the attack has not worked: {shown}")),
        _ => Ok(()),
    }
}
