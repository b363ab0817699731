//! The emulated network with real packets, as root and as an ordinary user.
//!
//! Has no standard harness: an ordinary user must enter a user namespace before any thread starts.

#![allow(unsafe_code)]

mod attack;
mod cells;
mod fast_open;
mod lifetime;
mod packets;
mod tcp;
mod tun;

use std::process::{Command, ExitCode};
use std::time::Duration;

use firstflight_emulator::{Network, NetworkConfig, PathConfig, Privilege, enter_user_namespace};
use libtest_mimic::{Arguments, Failed, Trial};

/// The environment variable that selects what a copy of this program does.
const ROLE: &str = "FIRSTFLIGHT_LINK_TEST_ROLE";
const HOLD: &str = "hold-a-network";

fn main() -> ExitCode {
    let privilege = match enter_user_namespace() {
        Ok(privilege) => privilege,
        Err(error) => {
            eprintln!("the network tests cannot run here: {error}");
            return ExitCode::FAILURE;
        }
    };
    if std::env::var(ROLE).is_ok_and(|role| role == HOLD) {
        lifetime::hold();
    }
    let mut arguments = Arguments::from_args();
    // The tests measure time: in parallel they would disturb each other.
    arguments.test_threads.get_or_insert(1);
    let mut trials = Vec::new();
    trials.extend(packets::trials());
    trials.extend(tcp::trials());
    trials.extend(cells::trials());
    trials.extend(tun::trials());
    trials.extend(attack::trials());
    trials.extend(lifetime::trials());
    if privilege == Privilege::Held {
        trials.push(trial("all_of_this_as_an_ordinary_user", as_an_ordinary_user));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial that fails by panic or by error, as usual tests do.
fn trial(name: &str, test: fn() -> Outcome) -> Trial {
    Trial::test(name, move || test().map_err(|error| Failed::from(error.to_string())))
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A network with a path for each round-trip time, given in microseconds.
fn network<const N: usize>(rtts_us: [u64; N]) -> Network {
    let path = |us| PathConfig::symmetric(format!("{us} us"), Duration::from_micros(us));
    Network::build(NetworkConfig::new(rtts_us.map(path).to_vec())).expect("builds")
}

fn as_an_ordinary_user() -> Outcome {
    use std::os::unix::process::CommandExt;
    // By descriptor, since the directories above may be closed to that user.
    let output = Command::new("/proc/self/exe").uid(NOBODY).gid(NOBODY).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "as user {NOBODY}:\n{stdout}\n{stderr}");
    assert!(stdout.contains("kill_9_leaves_nothing"), "all trials run:\n{stdout}");
    Ok(())
}

const NOBODY: u32 = 65_534;
