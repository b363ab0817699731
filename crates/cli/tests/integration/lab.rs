//! `firstflight lab`, small: by root and by a user who is nobody.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use crate::running::{PROGRAM, run};

/// The lab measures time, so there is one at a time.
pub(crate) static LAB: Mutex<()> = Mutex::new(());

const ARGUMENTS: [&str; 12] = [
    "lab",
    "--no-costs",
    "--rtt",
    "20,5",
    "--samples",
    "3",
    "--flights",
    "1",
    "--replays",
    "20",
    "--server",
    "firstflight,nginx",
];

/// Runs it by a command that ends where the program's name belongs; its record.
fn record(command: &mut Command, program: &Path, dir: &Path) -> Value {
    let _one_at_a_time = LAB.lock().unwrap_or_else(|error| error.into_inner());
    let results = dir.join("results");
    let search = std::env::var("PATH").unwrap_or_default();
    command
        .env("HOME", dir)
        .env("PATH", format!("{search}:/usr/sbin:/sbin"))
        .arg(program)
        .args(ARGUMENTS)
        .arg("-o")
        .arg(&results);
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fs::read_to_string(results.join("lab.txt")).unwrap(), ended.out);
    // Lines are broken where they are full.
    let words = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("firstflight executed none of 20"), "{}", ended.out);
    serde_json::from_slice(&fs::read(results.join("lab.json")).unwrap()).unwrap()
}

/// Round trips as the protocols need them, connection set-up included.
fn expected(cell: &Value) -> u64 {
    if cell["transport"] == "quic" {
        return if cell["kind"] == "0-RTT" { 1 } else { 2 };
    }
    let trips = match (cell["tls"].as_str().unwrap(), cell["kind"].as_str().unwrap()) {
        ("1.3", "0-RTT") => 2,
        (_, "resumed") | ("1.3", "full") => 3,
        (_, "full") => 4,
        other => panic!("no such cell: {other:?}"),
    };
    trips - u64::from(cell["tfo"] == true)
}

fn check(record: &Value) {
    let cells = record["cells"].as_array().unwrap();
    let samples = record["samples"].as_array().unwrap();
    // 2 RTTs x (3 versions x 2 kinds + 3 kinds) x TFO off and on, for each of our two workloads
    // and for nginx; 3 kinds over QUIC for both of ours; three samples in each.
    let count = 2 * 9 * 2 * 3 + 2 * 3 * 2;
    assert_eq!((cells.len(), samples.len()), (count, count * 3));
    let mut minimum = vec![None; cells.len()];
    for sample in samples {
        let number = sample["cell"].as_u64().unwrap() as usize;
        let cell = &cells[number];
        match sample["fault"]["kind"].as_str() {
            None => {
                // On a busy machine a side may send a round trip late, and the packets show it.
                let round_trips = sample["round_trips"].as_u64().unwrap();
                assert!(round_trips >= expected(cell), "{sample} in {cell}");
                minimum[number] = minimum[number].min(Some(round_trips)).or(Some(round_trips));
                let rtt = cell["rtt_ms"].as_f64().unwrap();
                let least = expected(cell) as f64 * rtt;
                assert!(sample["time_ms"].as_f64().unwrap() >= least, "{sample} in {cell}");
            }
            Some("spoiled") => {}
            Some(_) => panic!("{sample} in {cell}"),
        }
    }
    assert!(minimum.iter().any(Option::is_some), "all {} samples are spoiled", samples.len());
    for (cell, minimum) in cells.iter().zip(minimum) {
        assert_eq!(minimum.unwrap_or(expected(cell)), expected(cell), "{cell}");
    }
    for (replay, transport) in [(0, "tcp"), (1, "quic")] {
        let ours = &record["replays"][replay];
        assert_eq!(
            (&ours["server"], &ours["transport"]),
            (&"firstflight".into(), &transport.into())
        );
        assert_eq!(
            (&ours["tries"], &ours["executed"], &ours["originals"]),
            (&20.into(), &0.into(), &1.into())
        );
    }
}

#[test]
fn round_trips_are_those_of_the_protocols() {
    let dir = tempfile::tempdir().unwrap();
    check(&record(&mut Command::new("env"), Path::new(PROGRAM), dir.path()));
}

/// Where the tests run as a user anyway, the test above has said it already.
#[test]
fn needs_no_root() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = dir.path().join("firstflight");
    fs::copy(PROGRAM, &program).unwrap();
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
    } else {
        Command::new("env")
    };
    check(&record(command.current_dir(dir.path()), &program, dir.path()));
}
