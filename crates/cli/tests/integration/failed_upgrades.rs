//! Upgrades whose new process dies: the old process continues to serve, over HTTP/3, too.

use std::env;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use firstflight::lifecycle::HandoffChannel;
use firstflight_testkit::ServiceManager;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lifecycle::{certify, main_process};
use crate::support::program::{
    Ended, PAGE, PROGRAM, Serve, fetch, firstflight, run, site, text, until,
};

/// The steps at which the new process dies, in order.
const STEPS: [&str; 7] = [
    "started",
    "has read the sockets",
    "is ready",
    "has read a part of the register",
    "has read the register",
    "has the register",
    "has the register and the UDP sockets",
];

/// Environment variable with the step for [`simulated_successor_that_dies`].
const STEP: &str = "TEST_SUCCESSOR_DIES";

/// Not a test by itself: the server in the test below starts this instead of the program. It sends
/// what a new process sends up to a step, and kills itself there.
#[test]
fn simulated_successor_that_dies() {
    let Ok(step) = env::var(STEP) else { return };
    let dies_if = |now: &str| {
        if step == now {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
    };
    dies_if(STEPS[0]);
    let channel = HandoffChannel::from_stdin().unwrap();
    // Its sockets stay open until the end.
    let mut message = channel.receive().unwrap();
    let mut register = UnixStream::from(message.descriptors.pop().unwrap());
    dies_if(STEPS[1]);
    channel.send(b"ready", &[]).unwrap();
    dies_if(STEPS[2]);
    // The digest of the store's address, and the length.
    let (mut digest, mut length) = ([0; 32], [0; 8]);
    register.read_exact(&mut digest).unwrap();
    register.read_exact(&mut length).unwrap();
    dies_if(STEPS[3]);
    // The highest bit means that ticket keys follow, after their length.
    let mut bytes = vec![0; (u64::from_be_bytes(length) & !(1 << 63)) as usize];
    register.read_exact(&mut bytes).unwrap();
    register.read_exact(&mut length).unwrap();
    let mut keys = vec![0; u64::from_be_bytes(length) as usize];
    register.read_exact(&mut keys).unwrap();
    dies_if(STEPS[4]);
    register.write_all(&[1]).unwrap();
    let mut response = [0];
    register.read_exact(&mut response).unwrap();
    dies_if(STEPS[5]);
    assert_eq!(*channel.receive().unwrap().bytes, *b"go");
    dies_if(STEPS[6]);
    unreachable!("no such step: {step}");
}

/// Scripts that simulate a successor, one for each step. They are written before any process starts, as
/// a file cannot be executed while a process has it open for writing.
fn successor_scripts(dir: &Path) -> Vec<PathBuf> {
    let name = "failed_upgrades::simulated_successor_that_dies";
    let test = env::current_exe().unwrap();
    let write = |(number, step): (usize, &&str)| {
        let path = dir.join(format!("successor-{number}"));
        let script =
            format!("#!/bin/sh\n{STEP}='{step}' exec '{}' --exact {name}\n", test.display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    };
    STEPS.iter().enumerate().map(write).collect()
}

/// Fetches over a new HTTP/3 connection.
fn fetch_over_http3(home: &Path, serve: &Serve) -> Ended {
    let mut command = firstflight(home);
    command.args(["fetch", "--http3-only", "--connect-timeout", CONNECT_TIMEOUT, "--cacert"]);
    run(command.arg(&serve.cert).arg(format!("https://127.0.0.1:{}/", serve.port())))
}

fn is_page(ended: &Ended) -> bool {
    (ended.code, &*ended.out) == (Some(0), PAGE)
}

#[test]
fn http3_is_served_again_after_the_new_process_dies_at_any_step() {
    let (dir, home) = (site(), tempfile::tempdir().unwrap());
    let dir = dir.path();
    certify(dir);
    let manager = ServiceManager::new(dir);
    let scripts = successor_scripts(dir);
    let (program, next) = (dir.join("program"), dir.join("next"));
    let use_program = |file: &Path| {
        symlink(file, &next).unwrap();
        fs::rename(&next, &program).unwrap();
    };
    use_program(Path::new(PROGRAM));
    let [root, cert, key] = ["root", "cert.pem", "key.pem"].map(|name| dir.join(name));
    let [root, cert, key] = [&root, &cert, &key].map(|path| path.to_str().unwrap());
    let arguments = ["--root", root, "--cert", cert, "--key", key];
    let environment = [("NOTIFY_SOCKET", manager.path())];
    let mut serve = Serve::start_from(&program, dir, &arguments, &environment);
    let pid = Pid::from_raw(serve.pid() as i32);
    let url = format!("https://127.0.0.1:{}/", serve.port());
    for early in [&[][..], &["--tls-earlydata"]] {
        assert!(is_page(&fetch(dir, &serve.cert, &url, early).ended));
    }

    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut failed, mut slowest) = (Vec::new(), Duration::ZERO);
            while !done.load(Ordering::Relaxed) {
                let start = Instant::now();
                failed.extend(Some(fetch_over_http3(home.path(), &serve)).filter(|e| !is_page(e)));
                slowest = slowest.max(start.elapsed());
            }
            println!("the slowest connection took {} ms", slowest.as_millis());
            failed
        });
        let load_ends = EndsLoad(&done);
        for (number, (step, script)) in STEPS.iter().zip(&scripts).enumerate() {
            use_program(script);
            kill(pid, Signal::SIGUSR2).unwrap();
            let goes_on =
                || text(&serve.stderr).matches("; this process keeps serving").count() > number;
            assert!(until(goes_on), "{step}: {}", text(&serve.stderr));
            let fetched = fetch_over_http3(home.path(), &serve);
            assert!(is_page(&fetched), "{step}: {fetched:?} {}", text(&serve.stderr));
        }
        drop(load_ends);
        let failed = load.join().unwrap();
        assert!(failed.is_empty(), "{failed:?}");
    });
    // The processes that died may have executed copies of any flight up to then.
    let fetched = fetch(dir, &serve.cert, &url, &["--tls-earlydata"]);
    assert!(is_page(&fetched.ended), "{:?}", fetched.ended);
    assert_ne!(fetched.facts["early_data"], "accepted", "{:?}", fetched.ended);

    // A new process that already serves is ended if the service manager cannot be notified.
    use_program(Path::new(PROGRAM));
    fs::remove_file(manager.path()).unwrap();
    kill(pid, Signal::SIGUSR2).unwrap();
    let goes_on =
        || text(&serve.stderr).contains("cannot tell the service manager about the new process");
    assert!(until(goes_on), "{}", text(&serve.stderr));
    let fetched = fetch_over_http3(home.path(), &serve);
    assert!(is_page(&fetched), "{fetched:?} {}", text(&serve.stderr));
    assert!(!text(&serve.stderr).contains("has taken over"), "{}", text(&serve.stderr));

    let manager = ServiceManager::new(dir);
    kill(pid, Signal::SIGUSR2).unwrap();
    let successor = main_process(&manager.wait_for("MAINPID="));
    assert!(serve.ends_by_itself().success(), "{}", text(&serve.stderr));
    assert!(is_page(&fetch_over_http3(home.path(), &serve)));
    kill(successor.0, Signal::SIGTERM).unwrap();
    assert!(successor.ends());
    assert!(serve.log().iter().all(|line| line["status"] == 200));
}

/// Ends the load when dropped, also if an assertion fails.
struct EndsLoad<'a>(&'a AtomicBool);

impl Drop for EndsLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// In seconds: far more than a connection takes.
const CONNECT_TIMEOUT: &str = "60";
