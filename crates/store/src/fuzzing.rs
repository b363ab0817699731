//! Entry point of the fuzz targets: parsing replies of an untrusted store.

use firstflight_replay::Epoch;

use crate::Address;
use crate::connection::{epoch_age, error_of, integer, text, time};
use crate::master::ServerInfo;
use crate::topology::{SLOTS, SlotMap};

/// Parses `bytes` as every kind of reply, and checks the invariants of the results.
///
/// # Panics
/// If an invariant does not hold.
pub fn check_reply(bytes: &[u8]) {
    if let Ok(info) = std::str::from_utf8(bytes) {
        check_info(info);
    }
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    if let Some(error) = error_of(&value) {
        assert!(error.to_string().len() < 1024, "a long error");
    }
    if let Some(time) = time(&value) {
        // Sums with it must not overflow.
        let _ = time + Epoch::LIFETIME;
    }
    assert!(epoch_age(&value) <= Epoch::LIFETIME);
    let _ = integer(&value);
    text(&value).into_iter().for_each(check_info);
    let responder = Address::Tcp("responder".to_owned(), 1);
    if let Some(map) = SlotMap::parse(&value, &responder) {
        let owned = (0..SLOTS).filter_map(|slot| map.owner(slot)).count();
        assert!(owned > 0 && !map.masters().is_empty());
        assert!(map.masters().iter().all(|range| map.owner(range.first) == Some(&range.node)));
    }
}

fn check_info(info: &str) {
    if let Some(info) = ServerInfo::parse(info) {
        assert!(info.run_id.len() <= 64 && info.replication_id.len() <= 64);
    }
    if let Some(epoch) = Epoch::parse(info.as_bytes()) {
        assert_eq!(Epoch::parse(epoch.to_string().as_bytes()), Some(epoch));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::check_reply;

    /// The seeds of the fuzz target.
    #[test]
    fn seeds_do_not_panic() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/store");
        let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
        assert!(!seeds.is_empty());
        for seed in seeds {
            check_reply(&std::fs::read(seed.unwrap().path()).unwrap());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            check_reply(&bytes);
        }

        #[test]
        fn arbitrary_replies_do_not_panic(
            text in prop::collection::vec("[*$:+%~>_#,(=!|-](-?[0-9]{0,20}|[a-z]{0,3})", 0..40),
        ) {
            check_reply(text.join("\r\n").as_bytes());
        }
    }
}
