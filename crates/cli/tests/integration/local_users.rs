//! Attacks by another local user: files, links and processes prepared for the server. The tests need
//! root, and are skipped without it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use tempfile::TempDir;

use crate::lifecycle::{OtherProcess, certify, configure};
use crate::support::program::{
    PAGE, PROGRAM, Running, Serve, fetch, firstflight, run, site, text, until,
};

/// The user that the server switches to, if the tests run as root.
fn nobody() -> Option<u32> {
    let root = nix::unistd::geteuid().is_root();
    root.then(|| User::from_name("nobody").unwrap().unwrap().uid.as_raw())
}

/// A site in a directory of the user `nobody`; its server runs as that user.
struct UnprivilegedSite {
    dir: TempDir,
    arguments: [String; 6],
}

impl UnprivilegedSite {
    fn new(nobody: u32) -> Self {
        let dir = site();
        certify(dir.path());
        let config = configure(dir.path(), "[process]\nuser = \"nobody\"\nwatch = false");
        for name in ["cert.pem", "key.pem", "firstflight.toml", "."] {
            let path = dir.path().join(name);
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        chown(dir.path(), Some(nobody), None).unwrap();
        let file = |name| dir.path().join(name).to_str().unwrap().to_owned();
        let arguments = [
            "--config".into(),
            config,
            "--cert".into(),
            file("cert.pem"),
            "--key".into(),
            file("key.pem"),
        ];
        Self { dir, arguments }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the server.
    fn start(&self, program: &Path, environment: &[(&str, &str)]) -> Serve {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Serve::start_from(program, self.path(), &arguments, environment)
    }

    /// Starts the server, which must fail. Returns the error.
    fn start_error(&self, key_log: &Path) -> String {
        let mut command = firstflight(self.path());
        command.args(["serve", "--listen", "127.0.0.1:0", "--access-log"]).arg(self.file("log"));
        let ended = run(command.args(&self.arguments).env("SSLKEYLOGFILE", key_log));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        ended.err
    }
}

#[test]
fn logs_are_not_written_through_symbolic_links() {
    let Some(nobody) = nobody() else { return };
    let unprivileged = UnprivilegedSite::new(nobody);
    let [access, keys, precious] = ["log", "keys", "precious"].map(|name| unprivileged.file(name));
    fs::write(&precious, "").unwrap();

    symlink(&precious, &access).unwrap();
    let stderr = unprivileged.start_error(&keys);
    assert!(stderr.contains("access log") && stderr.contains("it is a symbolic link"), "{stderr}");
    fs::remove_file(&access).unwrap();
    symlink(&precious, &keys).unwrap();
    let stderr = unprivileged.start_error(&keys);
    assert!(stderr.contains("key log") && stderr.contains("it is a symbolic link"), "{stderr}");
    fs::remove_file(&keys).unwrap();
    // A link to a directory is followed, with the permissions of the user.
    let elsewhere = unprivileged.file("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, unprivileged.file("inner")).unwrap();
    let stderr = unprivileged.start_error(&unprivileged.file("inner/keys"));
    assert!(stderr.contains("key log") && stderr.contains("Permission denied"), "{stderr}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);

    let serve =
        unprivileged.start(Path::new(PROGRAM), &[("SSLKEYLOGFILE", keys.to_str().unwrap())]);
    let url = format!("https://{}/", serve.address);
    let get = || fetch(unprivileged.path(), &serve.cert, &url, &[]).ended;
    assert_eq!(get().out, PAGE);
    assert!(until(|| text(&access).lines().count() == 1), "{}", text(&serve.stderr));
    assert!(text(&keys).contains("CLIENT_TRAFFIC_SECRET_0 "));
    for (file, max_mode) in [(&access, 0o640), (&keys, 0o600)] {
        let found = fs::metadata(file).unwrap();
        let mode = found.mode() & 0o777;
        assert_eq!((found.uid(), mode & !max_mode), (nobody, 0), "{}: {mode:o}", file.display());
    }

    // After a rotation that leaves a link in the log's place, the open file stays in use.
    let moved = unprivileged.file("log.1");
    fs::rename(&access, &moved).unwrap();
    symlink(&precious, &access).unwrap();
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGUSR1).unwrap();
    assert!(until(|| text(&serve.stderr).contains("cannot open the access log again")));
    assert_eq!(get().out, PAGE);
    assert!(until(|| text(&moved).lines().count() == 2), "{}", text(&serve.stderr));
    serve.stop();
    assert_eq!(text(&precious), "");
}

#[test]
fn an_admin_socket_belongs_to_the_user_that_the_server_becomes() {
    let Some(nobody) = nobody() else { return };
    let unprivileged = UnprivilegedSite::new(nobody);
    let socket = unprivileged.file("admin.sock");
    let process = "[process]\nuser = \"nobody\"\nwatch = false";
    let admin = format!("[admin]\naddress = \"unix:{}\"", socket.display());
    configure(unprivileged.path(), &format!("{process}\n{admin}"));
    let serve = unprivileged.start(Path::new(PROGRAM), &[]);
    UnixStream::connect(&socket).unwrap();
    assert_eq!(fs::metadata(&socket).unwrap().uid(), nobody);
    serve.stop();
}

#[test]
fn a_check_finds_a_user_or_group_that_does_not_exist() {
    if nobody().is_none() {
        return;
    }
    let dir = site();
    certify(dir.path());
    for (names, wrong) in [
        ("user = \"no-such-user\"", "line 6: user \"no-such-user\" does not exist"),
        ("user = \"nobody\"\ngroup = \"none\"", "line 7: group \"none\" does not exist"),
    ] {
        let config = configure(dir.path(), &format!("[process]\n{names}"));
        let mut command = firstflight(dir.path());
        let ended = run(command.args(["serve", "--check", "--config", &config]));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.contains(wrong), "{ended:?}");
    }
}

/// A process that looks like a lab that can be entered, with a malicious `PATH`.
fn fake_lab_holder(dir: &Path, started_by: &[&str]) -> Running {
    let [program, arguments @ ..] = started_by else { unreachable!("nobody starts it") };
    let mut command = Command::new(program);
    let search = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    command.args(arguments).args(["-c", "read end", "firstflight-lab-holder"]);
    let holder = Running::start(command.env("PATH", search).stdin(Stdio::piped()));
    let line = PathBuf::from(format!("/proc/{}/cmdline", holder.0.id()));
    assert!(until(|| text(&line).starts_with("sh\0-c\0")), "{}", text(&line));
    holder
}

#[test]
fn enter_runs_nothing_in_a_process_that_pretends_to_be_a_lab() {
    if nobody().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let [trap, ran] = ["trap", "ran"].map(|name| dir.path().join(name));
    fs::write(&trap, format!("#!/bin/sh\nid -u >{}\n", ran.display())).unwrap();
    fs::set_permissions(&trap, Permissions::from_mode(0o755)).unwrap();
    let enter = |holder: &Running| {
        let mut command = firstflight(dir.path());
        run(command.args(["lab", "--enter", &holder.0.id().to_string(), "--", "trap"]))
    };

    let ended = enter(&fake_lab_holder(dir.path(), &[&RUN_AS_NOBODY[..], &["sh"]].concat()));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("belongs to another user"), "{ended:?}");
    // A process of the same user is entered, but its environment is not used.
    let ended = enter(&fake_lab_holder(dir.path(), &["sh"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("cannot start trap in the lab"), "{ended:?}");
    assert!(!ran.exists(), "as user {}", text(&ran));
}

#[test]
fn the_memory_of_a_new_process_is_protected_from_the_start() {
    let Some(nobody) = nobody() else { return };
    for (mode, warned) in [(0o711, false), (0o755, true)] {
        let unprivileged = UnprivilegedSite::new(nobody);
        let [program, tries] = ["program", "tries"].map(|name| unprivileged.file(name));
        fs::copy(PROGRAM, &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let mut serve = unprivileged.start(&program, &[]);
        let [run_as_nobody, arguments @ ..] = RUN_AS_NOBODY;
        let mut spy = Command::new(run_as_nobody);
        spy.args(arguments).args(["sh", "-c", SPY, "spy", &serve.pid().to_string()]);
        spy.current_dir(unprivileged.path()).stdout(File::create(&tries).unwrap());
        let mut spy = Running::start(&mut spy);
        assert!(until(|| text(&tries).starts_with("waits\n")));

        kill(Pid::from_raw(serve.pid() as i32), Signal::SIGUSR2).unwrap();
        let taken_over = || {
            let stderr = text(&serve.stderr);
            let (before, _) = stderr.split_once(" has taken over")?;
            before.rsplit_once("process ")?.1.parse().ok().map(|id| OtherProcess(Pid::from_raw(id)))
        };
        let mut successor = None;
        assert!(
            until(|| {
                successor = taken_over();
                successor.is_some()
            }),
            "{}",
            text(&serve.stderr)
        );
        fs::write(unprivileged.file("stop"), "").unwrap();
        assert!(serve.ends_by_itself().success());
        assert!(spy.wait().unwrap().success());
        let tries = text(&tries);
        assert!(tries.contains("refused\n") || warned, "the spy saw nothing: {tries}");
        assert!(!tries.contains("opened\n") || warned, "the spy has opened it");
        println!("mode {mode:o}: opened {}", tries.contains("opened\n"));
        let stderr = text(&serve.stderr).contains("could read the memory of this one");
        assert_eq!(stderr, warned, "{}", text(&serve.stderr));
        let successor = successor.unwrap();
        kill(successor.0, Signal::SIGTERM).unwrap();
        assert!(successor.ends());
    }
}

/// Tries to open the memory of the next child of process `$1` as soon as it exists. Uses only shell
/// builtins, which take microseconds.
const SPY: &str = r#"
echo waits
while [ -d /proc/$1 ]; do
    for children in /proc/$1/task/*/children; do
        child=
        read -r child rest <$children
        [ "$child" ] || continue
        while [ -d /proc/$child ] && [ ! -e stop ]; do
            if true </proc/$child/mem; then echo opened; exit 0; else echo refused; fi
        done
        exit 0
    done
done 2>/dev/null
"#;

/// The prefix that runs a command as the user `nobody`.
const RUN_AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"];
