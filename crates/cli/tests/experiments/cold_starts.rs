//! The experiment `cold-start`: restarts of the server, for each way of keeping its ticket keys.

use crate::lab;

const RESTARTS: usize = 2;

/// A process forgets its keys; a file keeps them, but not which flights were executed; a store keeps
/// both, and so does one with the sessions in it.
pub(super) fn every_way_of_keeping_keys() {
    let record = lab(|config| {
        config.costs = false;
        config.restarts = RESTARTS;
    });
    let expected = [
        ("punctured", "full, early data refused", 2),
        ("process", "full, early data refused", 2),
        ("file", "resumed, early data refused", 2),
        ("store", "early data accepted", 1),
        ("single-use", "early data accepted", 1),
    ];
    assert_eq!(record.left_out, Vec::<String>::new());
    let found: Vec<_> = record.cold_starts.iter().map(|start| &*start.keys).collect();
    assert_eq!(found, expected.map(|(keys, ..)| keys));
    for (start, (_, first, connections)) in record.cold_starts.iter().zip(expected) {
        // On a busy machine the first connections may come before the server has reached its store.
        let before_the_store =
            matches!(&*start.keys, "store" | "single-use") && start.connections > 1;
        if before_the_store {
            assert!(start.first.iter().any(|(label, _)| label != first), "{start:?}");
            continue;
        }
        assert_eq!(start.first, [(first.to_owned(), RESTARTS)], "{start:?}");
        assert_eq!((start.restarts, start.connections), (RESTARTS, connections), "{start:?}");
        let least =
            |figures: &Option<firstflight_report::Figures>| figures.as_ref().unwrap().min_ms;
        assert!(least(&start.server_cpu) > 0.0, "{start:?}");
        let later = least(&start.early) > least(&start.response);
        assert_eq!(later, connections > 1, "{start:?}");
    }
}
