//! Conformance and attacks: runs the program against test tools and malicious clients, while honest
//! clients are served.
//!
//! `cargo test` runs a short form; `make conformance` runs everything, and writes a table.

mod corpus;
mod files;
mod honest_client;
mod http2;
mod http2_floods;
mod http3;
mod http3_floods;
mod idle;
#[path = "../integration/support/program.rs"]
#[allow(dead_code)]
mod running;
mod secrets;
mod slow;
mod smuggling;
mod strict_upstream;
mod table;
mod third_party;
mod tools;
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let all: [(&str, fn()); 19] = [
        ("core_dumps", secrets::core_dumps),
        ("files_methods", files::methods),
        ("files_ranges", files::ranges),
        ("files_traversal", files::traversal),
        ("floods_http2", http2_floods::http2),
        ("floods_http3", http3_floods::http3),
        ("h2load", tools::h2load),
        ("h2spec", tools::h2spec),
        ("idle_connections", idle::connections),
        ("idle_buffers", idle::buffers),
        ("open_files", idle::open_files),
        ("secrets_in_logs", secrets::logs),
        ("slow_clients", slow::all),
        ("slow_is_not_dead", slow::slow_is_not_dead),
        ("smuggling_files", smuggling::files),
        ("smuggling_http1", smuggling::http1),
        ("smuggling_http2", smuggling::http2),
        ("smuggling_http3", smuggling::http3),
        ("smuggling_real_upstreams", smuggling::real_upstreams),
    ];
    let trials = all.into_iter().map(|(name, run)| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !arguments.list {
        table::publish();
    }
    conclusion.exit_code()
}
