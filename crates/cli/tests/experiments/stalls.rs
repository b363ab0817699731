//! The experiment `stall`: early data behind a box that drops it, and behind proxies that terminate
//! TLS, with and without the second connection of `fetch`.

use std::path::PathBuf;

use firstflight_lab::{LabConfig, StallConfig};
use firstflight_report::{Record, Stall};

fn record() -> Record {
    let dir = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_firstflight"));
    let config = LabConfig {
        stalls: Some(StallConfig::new(1)),
        keep_awake: Some(false),
        ..LabConfig::new(Vec::new(), 5, dir.path().to_owned(), program)
    };
    firstflight_lab::run(&config, &|_| ()).unwrap()
}

pub(super) fn every_obstacle() {
    let record = record();
    let stall = |on_the_way: &str, tickets_of: &str, second_connection: bool| -> &Stall {
        let is_stall = |stall: &&Stall| {
            (&*stall.on_the_way, &*stall.tickets_of, stall.second_connection)
                == (on_the_way, tickets_of, second_connection)
        };
        record.stalls.iter().find(is_stall).unwrap_or_else(|| panic!("{:?}", record.stalls))
    };
    // Without a second connection, `fetch` waits for the response however long it takes.
    for (on_the_way, tickets_of, happened) in [
        ("nothing", "server", "early data accepted"),
        ("TLS proxy", "server", "early data refused"),
        ("TLS proxy", "proxy", "resumed"),
        ("TLS proxy with early data", "server", "early data refused"),
        ("TLS proxy with early data", "proxy", "early data accepted"),
    ] {
        let alone = stall(on_the_way, tickets_of, false);
        assert_eq!(alone.happened, [(happened.to_owned(), 1)], "{on_the_way}, {tickets_of}");
        // On a busy machine the response may be so late that there is a second connection.
        let raced = stall(on_the_way, tickets_of, true);
        assert!(raced.happened[0].0.starts_with(happened), "{raced:?}");
        for stall in [alone, raced] {
            assert_eq!(stall.failed, 0, "{stall:?}");
        }
    }
    let alone = stall("drop-early-data", "server", false);
    assert_eq!(alone.happened, [("early data dropped".to_owned(), 1)]);
    assert_eq!((alone.failed, alone.tries), (1, 1), "{alone:?}");
    let raced = stall("drop-early-data", "server", true);
    assert_eq!(raced.happened, [("early data dropped, then full".to_owned(), 1)]);
    let first_byte = raced.first_byte.as_ref().unwrap().min_ms;
    // 200 ms of silence, and three round trips of the second connection.
    assert!(first_byte >= 260.0, "{raced:?}");
    assert_eq!(record.stalls.len(), 12);
}
