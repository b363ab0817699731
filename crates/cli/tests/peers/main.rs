//! Which servers keep the rule of RFC 9846 section 8 that a server accepts a first flight at most
//! once: the checks of `firstflight audit` against our server and others, over TCP and QUIC, where
//! a copy arrives at another node, after a restart, or when a clock has been set.
//!
//! A trial is a cell of the tables in `docs/evidence/audit.md`: `PEER::ROW`. Our server must pass
//! all. The cells of other servers are controls, which show that the attacks work: nginx and Caddy
//! fail. Without `AUDIT_PEERS=all`, which `make audit-peers` sets, most cells of other servers are
//! left out.

#[path = "../chaos/clock.rs"]
mod clock;
mod configs;
#[path = "../chaos/kind.rs"]
#[allow(dead_code)]
mod kind;
mod nodes;
mod peer;
mod quinn_server;
mod row;
mod rustls_server;
mod table;
mod tls_only;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::peer::{NGINX_HTTP3, PEERS, Peer, Server};
use crate::row::Row;
use crate::table::Cell;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cells mostly wait.
    arguments.test_threads.get_or_insert(12);
    let all = std::env::var("AUDIT_PEERS").is_ok_and(|value| value == "all");
    let mut trials = Vec::new();
    for peer in PEERS {
        for row in Row::ALL.into_iter().filter(|row| peer.quic || !row.needs_quic()) {
            let name = format!("{}::{}", peer.slug, row.slug());
            let is_missing = peer.program().as_deref() == Some("");
            let is_selected = (all || is_default(peer, row)) && !is_missing;
            trials.push(
                Trial::test(name, move || measure(peer, row).map_err(Into::into))
                    .with_ignored_flag(!is_selected),
            );
        }
    }
    trials.push(Trial::test("documented", || table::assert_documented().map_err(Into::into)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    nodes::end_store();
    if !arguments.list {
        table::publish();
    }
    conclusion.exit_code()
}

/// Whether a cell is measured in each run: over TCP those of our server and nginx, over QUIC the
/// rows of our server that differ there, and one row of each other server.
fn is_default(peer: Peer, row: Row) -> bool {
    let over_quic = row.needs_quic() || matches!(row, Row::SameInstance | Row::OtherNode);
    match peer.quic {
        true => row == Row::Addresses || peer.is_ours() && over_quic,
        false => row == Row::SameInstance || peer.is_ours() || peer.server == Server::Nginx,
    }
}

/// Measures a cell. Our server has to keep the rule, and a control has to break it, if the row
/// applies.
fn measure(peer: Peer, row: Row) -> Result<(), String> {
    let program = peer.program();
    match program.as_deref() {
        Some("") => {
            return Err(format!("give the path of an nginx with HTTP/3: {NGINX_HTTP3}=PATH"));
        }
        Some(program) if firstflight_testkit::skipped_without(&[program]) => return Ok(()),
        _ => {}
    }
    let cell = match peer.inapplicable(row) {
        Some(reason) => Cell::inapplicable(peer, row, reason),
        None if peer.is_tls_only() => tls_only::measure(peer, row),
        None => row::measure(peer, row),
    };
    let shown = format!("{}: {}\n{}", cell.result.name(), cell.summary, cell.evidence.join("\n"));
    let result = cell.result;
    table::add(cell);
    match result {
        table::Outcome::Undecided => Err(shown),
        table::Outcome::Again | table::Outcome::AgainByClient if peer.is_ours() => Err(shown),
        table::Outcome::Once if peer.is_control(row) => {
            Err(format!("the attack has not worked: {shown}"))
        }
        _ => Ok(()),
    }
}
