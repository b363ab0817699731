//! `INFO`: what a store says of itself. Foreign text: fields may be missing, doubled or nonsense.

use std::time::Duration;

/// The longest text taken as an id; Redis' are 40 characters.
const MAX_ID: usize = 64;

/// What a heartbeat wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// The process's own id.
    pub run_id: String,
    /// Its replication id.
    pub replication_id: String,
    /// Whether it is a master.
    pub is_master: bool,
    /// Its replication offset.
    pub replication_offset: u64,
    /// How much memory it may use, in bytes; 0: all there is.
    pub maxmemory: u64,
    /// What it does when that is used up.
    pub maxmemory_policy: String,
    /// How many records it has dropped for that since it started.
    pub evicted_keys: u64,
}

impl Report {
    /// Reads `INFO`'s sections server, replication, memory and stats, together in one text. `None`
    /// if something of it is missing or no such thing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = |name| field(text, name).filter(|id| is_id(id)).map(ToOwned::to_owned);
        let number = |name| field(text, name).and_then(|value| value.parse().ok());
        Some(Self {
            run_id: id("run_id")?,
            replication_id: id("master_replid")?,
            is_master: field(text, "role")? == "master",
            replication_offset: number("master_repl_offset")?,
            maxmemory: number("maxmemory")?,
            maxmemory_policy: id("maxmemory_policy")?,
            evicted_keys: number("evicted_keys")?,
        })
    }
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The first line `name:value`.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The store's clock less the node's, in milliseconds, for people.
pub(super) fn ahead(store: Duration, node: Duration) -> i64 {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    millis(store).saturating_sub(millis(node))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REDIS: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:0123456789abcdef\r\n\
        # Replication\r\nrole:master\r\nmaster_replid:fedcba\r\nmaster_replid2:0000\r\n\
        master_repl_offset:17\r\n# Memory\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\n\
        maxmemory_policy:noeviction\r\n# Stats\r\nevicted_keys:0\r\n";

    #[test]
    fn a_real_answer_is_read() {
        let report = Report::parse(REDIS).unwrap();
        assert_eq!(report.run_id, "0123456789abcdef");
        assert_eq!(report.replication_id, "fedcba");
        assert!(report.is_master);
        assert_eq!((report.replication_offset, report.maxmemory), (17, 0));
    }

    #[test]
    fn a_replica_is_no_master() {
        assert!(!Report::parse(&REDIS.replace("role:master", "role:slave")).unwrap().is_master);
    }

    #[test]
    fn what_is_missing_or_nonsense_makes_no_report() {
        for (from, to) in [
            ("run_id:", "run:"),
            ("maxmemory:0", "maxmemory:-1"),
            ("master_replid:fedcba", "master_replid:a b"),
            ("master_repl_offset:17", "master_repl_offset:"),
        ] {
            assert_eq!(Report::parse(&REDIS.replacen(from, to, 1)), None, "{to}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = Report::parse(&text);
        }
    }
}
