//! Every fuzz target on its seeds and on random changes of them, in an ordinary build. What
//! coverage would lead to is for `make fuzz`; this finds what a change has broken.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::rngs::StdRng;
use rand::{Rng, RngExt as _, SeedableRng as _};

/// Changed inputs for each target.
const CHANGED: usize = 400;

/// As in `scripts/fuzz`.
const MAX_INPUT_BYTES: usize = 16_384;

macro_rules! targets {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name), env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
        }
    )*};
}

targets! {
    packets,
    connection,
    session,
    jar,
    ticket,
    ticket_file,
    config,
    policy,
    condition,
    response,
    cells,
    profiles,
    record,
    key_encryption,
    store,
    first_flight,
    flight_response,
    audit_http,
    quic_server,
    quic_client,
    proxy_header,
    traceparent,
    inheritance,
    puncture,
}

fn run(name: &str, program: &str) {
    let seeds = seeds(name);
    let changed = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut inputs = seeds.clone();
    for number in 0..CHANGED {
        let mut bytes = match seeds.len() {
            0 => Vec::new(),
            count => fs::read(&seeds[number % count]).unwrap(),
        };
        change(&mut bytes, &mut random);
        let path = changed.path().join(number.to_string());
        fs::write(&path, bytes).unwrap();
        inputs.push(path);
    }
    let mut command = Command::new(program);
    // What fails is left where `make fuzz` leaves it.
    let artifacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(name);
    fs::create_dir_all(&artifacts).unwrap();
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.args(["-timeout=60", "-rss_limit_mb=2048"]).args(&inputs);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{text}", output.status);
    assert_eq!(text.matches("Executed ").count(), inputs.len(), "{name}: {text}");
}

fn seeds(name: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    if !directory.exists() {
        return Vec::new();
    }
    let mut seeds: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    seeds
}

/// Changes a few bytes, lengths included.
fn change(bytes: &mut Vec<u8>, random: &mut impl Rng) {
    for _ in 0..random.random_range(1..8) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes.extend((0..random.random_range(0..64)).map(|_| random.random::<u8>())),
            2 => bytes.extend_from_within(at..),
            _ if at < bytes.len() => bytes[at] = random.random(),
            _ => bytes.push(random.random()),
        }
        bytes.truncate(MAX_INPUT_BYTES);
    }
}
