use std::collections::BTreeMap;

/// Number of system calls by name, from the log that `strace -f` writes.
pub fn system_calls(log: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in log.lines() {
        // Lines start with the thread id. An interrupted call continues as `<... name resumed>`.
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let Some((name, _)) = call.split_once('(') else { continue };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !name.is_empty() && name.chars().all(is_name) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
4711  epoll_wait(3,  <unfinished ...>
4712  accept4(9, NULL, NULL, SOCK_CLOEXEC|SOCK_NONBLOCK) = 12
4711  <... epoll_wait resumed>[], 1024, 5) = 0
4711  recvfrom(12, 0x7f, 16384, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
4712  accept4(9, NULL, NULL, SOCK_CLOEXEC|SOCK_NONBLOCK) = -1 EAGAIN (...)
4712  --- SIGTERM {si_signo=SIGTERM} ---
4712  +++ exited with 0 +++
";

    #[test]
    fn a_call_that_is_split_into_two_lines_counts_once() {
        let expected = [("accept4", 2), ("epoll_wait", 1), ("recvfrom", 1)];
        assert_eq!(
            system_calls(LOG),
            expected.map(|(name, count)| (name.to_owned(), count)).into()
        );
    }
}
