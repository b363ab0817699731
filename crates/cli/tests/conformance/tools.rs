//! Third-party test tools: h2spec and h2load.

use std::process::Command;
use std::time::Duration;

use firstflight_testkit::program_path;

use crate::running::{Serve, run, site};
use crate::strict_upstream::StrictUpstream;
use crate::table;

/// Runs all of h2spec against files and the proxy.
pub(crate) fn h2spec() {
    // h2spec sends on a closed stream before the response arrives.
    let (site, upstream) = (site(), StrictUpstream::slow(Duration::from_millis(50)));
    let root = site.path().join("root");
    let mut wrong = Vec::new();
    for (what, content) in
        [("files", ["--root", root.to_str().unwrap()]), ("proxy", ["--upstream", &upstream.url])]
    {
        let server = Serve::start(site.path(), &content);
        let mut command = Command::new(program_path("h2spec"));
        command.args(["--host", "127.0.0.1", "--port", &server.port(), "--tls", "--insecure"]);
        let ended = run(command.args(["--timeout", "10"]));
        // 145 tests, 145 passed, 0 skipped, 0 failed
        let last = ended.out.lines().rev().find(|line| line.contains(" tests, "));
        let last = last.unwrap_or_else(|| panic!("{ended:?}"));
        let numbers: Vec<usize> =
            last.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let [tests, passed, skipped, failed] = numbers[..] else { panic!("{last}") };
        table::cases(&format!("h2spec 2.2.1, {what}"), tests, skipped, failed);
        assert_eq!((ended.code, passed + skipped + failed), (Some(i32::from(failed > 0)), tests));
        if failed > 0 {
            let failures = ended.out.split_once("Failures:").map_or("", |(_, failures)| failures);
            wrong.push(format!("{what}: {failures}"));
        }
        assert!(tests > 140, "the whole suite has to run: {last}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// h2load: requests by many clients at once, none of which may fail.
pub(crate) fn h2load() {
    let site = site();
    let (clients, requests) = match (table::is_long(), cfg!(debug_assertions)) {
        (false, _) => (10, 1_000),
        (true, true) => (100, 20_000),
        (true, false) => (100, 100_000),
    };
    for (protocol, flags) in
        [("h2", &["--alpn-list=h2", "-m10"][..]), ("http/1.1", &["--alpn-list=http/1.1"])]
    {
        let server = Serve::files(site.path(), &[]);
        let mut command = Command::new("h2load");
        command.args([format!("-c{clients}"), format!("-n{requests}"), "-t1".to_owned()]);
        // Debian 12's h2load has the flag under its older name.
        command.args(flags.iter().map(|flag| flag.replace("--alpn-list", "--npn-list")));
        let ended = run(command.arg(format!("https://127.0.0.1:{}/index.html", server.port())));
        let line = |start: &str| {
            ended.out.lines().find(|line| line.starts_with(start)).unwrap_or_default()
        };
        let all = format!(
            "requests: {requests} total, {requests} started, {requests} done, {requests} succeeded, \
             0 failed, 0 errored, 0 timeout"
        );
        assert_eq!(line("requests:"), all, "{ended:?}");
        let rate = line("finished in").split(", ").nth(1).unwrap_or_default();
        table::figure(
            &format!("h2load, {protocol}, {clients} clients"),
            format!("{requests} requests, 0 failed, {rate}"),
        );
    }
}
