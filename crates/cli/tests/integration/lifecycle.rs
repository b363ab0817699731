//! The server process: reloads, systemd, upgrades, privileges.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use firstflight_testkit::{ServiceManager, Serving, free_port, skipped_without};

use crate::support::program::{
    PAGE, PROGRAM, Running, Serve, fetch, firstflight, run, site, text, until,
};

/// Writes a certificate for localhost to the directory.
pub(crate) fn certify(dir: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    for (name, text) in [("key.pem", key.serialize_pem()), ("cert.pem", cert.pem())] {
        // Renamed into place, so that the server never reads half a file.
        let new = dir.join(format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, dir.join(name)).unwrap();
    }
}

/// Writes a configuration that serves a page, with these further lines. Returns its path.
pub(crate) fn configure(dir: &Path, more: &str) -> String {
    let path = dir.join("firstflight.toml");
    let root = dir.join("root");
    fs::write(&path, format!("[[site]]\n[[site.route]]\npath = \"/\"\nroot = {root:?}\n{more}\n"))
        .unwrap();
    path.to_str().unwrap().to_owned()
}

fn serves_page(dir: &TempDir, serve: &Serve) -> bool {
    let url = format!("https://127.0.0.1:{}/", serve.port());
    let fetched = fetch(dir.path(), &serve.cert, &url, &[]);
    fetched.ended.code == Some(0) && fetched.ended.out == PAGE
}

fn start(dir: &TempDir, manager: &ServiceManager, config: &str) -> Serve {
    let environment = [("NOTIFY_SOCKET", manager.path()), ("WATCHDOG_USEC", "2000000")];
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let arguments = ["--config", config, "--cert", cert, "--key", key];
    Serve::start_in(dir.path(), &arguments, &environment)
}

#[test]
fn reloads_report_their_outcome() {
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let config = configure(dir.path(), "");
    let serve = start(&dir, &manager, &config);
    assert!(manager.wait_for("READY=1").contains("STATUS=serving on 127.0.0.1:"));
    assert!(manager.wait_for("WATCHDOG=1").contains("WATCHDOG=1"));
    assert!(serves_page(&dir, &serve));

    // A reload by signal, which states its time to the service manager.
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGHUP).unwrap();
    assert!(manager.wait_for("RELOADING=1").contains("\nMONOTONIC_USEC="));
    assert!(manager.wait_for("READY=1").contains("with configuration 2"));

    // A new certificate is loaded without a signal, and clients see it.
    certify(dir.path());
    assert!(manager.wait_for("READY=1").contains("with configuration 3"));
    assert!(serves_page(&dir, &serve), "{}", text(&serve.stderr));

    // A broken file names its line, and changes nothing.
    configure(dir.path(), "[limits]\nconections = 5");
    let stderr = manager.wait_for("not reloaded");
    assert!(stderr.contains("READY=1") && stderr.contains("conections"), "{stderr}");
    assert!(serves_page(&dir, &serve));
    configure(dir.path(), "[store]\nurl = \"redis://127.0.0.1:1\"");
    assert!(manager.wait_for("not reloaded").contains("[store] cannot change"));
    assert!(serves_page(&dir, &serve));
    configure(dir.path(), "");
    assert!(manager.wait_for("READY=1").contains("with configuration 4"));

    // Flags that no site needs any more are an error at the start, but not in a reload.
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    let own = format!("[[site]]\ncertificate = {cert:?}\nkey = {key:?}\n");
    let content = fs::read_to_string(&config).unwrap().replacen("[[site]]\n", &own, 1);
    fs::write(&config, content).unwrap();
    assert!(manager.wait_for("READY=1").contains("with configuration 5"));
    assert!(serves_page(&dir, &serve), "{}", text(&serve.stderr));
    let stderr_path = serve.stderr.clone();
    serve.stop();
    manager.wait_for("STOPPING=1");
    assert!(text(&stderr_path).contains("keeping the current configuration"));
}

#[test]
fn sockets_of_the_service_manager_are_used() {
    let dir = site();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (stderr, cert) = (dir.path().join("stderr"), dir.path().join("cert.pem"));
    // The shell moves the socket from its standard input to descriptor 3, as systemd passes it.
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("sh");
    command
        .env("HOME", dir.path())
        .args(["-c", script, PROGRAM, "serve", "--listen", &address.to_string()])
        .args(["--root", dir.path().join("root").to_str().unwrap()])
        .args(["--save-cert", cert.to_str().unwrap()])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(File::create(&stderr).unwrap());
    let mut running = Running::start(&mut command);
    assert!(until(|| text(&stderr).contains("serving on")), "{}", text(&stderr));
    let url = format!("https://{address}/");
    let fetched = fetch(dir.path(), &cert, &url, &[]);
    assert_eq!(fetched.ended.out, PAGE);
    running.signal(Signal::SIGTERM);
    assert!(running.wait().unwrap().success());
}

/// Messages that cannot be written are lost.
#[test]
fn signals_work_after_the_reader_of_stderr_has_ended() {
    let dir = site();
    let log = dir.path().join("log");
    let (reader, writer) = std::io::pipe().unwrap();
    let port = free_port();
    let mut command = firstflight(dir.path());
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--access-log"]).arg(&log);
    command.arg("--root").arg(dir.path().join("root"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let (mut running, _) = Running::serve(&mut command, Serving::Tcp(port)).expect("it serves");
    assert!(until(|| log.exists()));
    drop(reader);
    fs::remove_file(&log).unwrap();
    running.signal(Signal::SIGUSR1);
    assert!(until(|| log.exists()));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().and_then(|status| status.code()), Some(0));
}

#[test]
fn a_stop_does_not_wait_for_an_access_log_that_nobody_reads() {
    let dir = site();
    let (reader, writer) = std::io::pipe().unwrap();
    let port = free_port();
    let mut command = firstflight(dir.path());
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--access-log", "-"]);
    command.arg("--root").arg(dir.path().join("root"));
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let (mut running, _) = Running::serve(&mut command, Serving::Tcp(port)).expect("it serves");
    // The lines fill the pipe, which holds 64 KiB.
    let url = format!("https://127.0.0.1:{port}/{}", "x".repeat(6000));
    for _ in 0..16 {
        assert_eq!(run(firstflight(dir.path()).args(["fetch", "-k", &url])).code, Some(0));
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().and_then(|status| status.code()), Some(0));
    drop(reader);
}

/// The process that `MAINPID=` names. It is not a child of the test, and is killed at the end.
pub(crate) struct OtherProcess(pub(crate) Pid);

impl OtherProcess {
    pub(crate) fn ends(&self) -> bool {
        until(|| kill(self.0, None).is_err() || is_zombie(self.0))
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

pub(crate) fn main_process(stderr: &str) -> OtherProcess {
    let pid = stderr.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap();
    OtherProcess(Pid::from_raw(pid.parse().unwrap()))
}

#[test]
fn an_upgrade_keeps_tickets_and_claims() {
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let config = configure(dir.path(), "");
    let mut serve = start(&dir, &manager, &config);
    manager.wait_for("READY=1");
    assert!(serves_page(&dir, &serve));
    let url = format!("https://127.0.0.1:{}/", serve.port());

    // A program that cannot start changes nothing.
    fs::write(&config, "listener = 5").unwrap();
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGUSR2).unwrap();
    let stderr = manager.wait_for("not upgraded");
    assert!(stderr.contains("the new process cannot start"), "{stderr}");
    assert!(serves_page(&dir, &serve));
    configure(dir.path(), "");

    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGUSR2).unwrap();
    let successor = main_process(&manager.wait_for("MAINPID="));
    manager.wait_for("READY=1");
    // The old process has no connections to wait for.
    assert!(serve.ends_by_itself().success(), "{}", text(&serve.stderr));
    // The new process accepts early data with a ticket of the old one, at once.
    let fetched = fetch(dir.path(), &serve.cert, &url, &["--tls-earlydata"]);
    assert_eq!(fetched.facts["early_data"], "accepted", "{:?}", fetched.ended);
    for http in ["--http1.1", "--http3"] {
        let fetched = fetch(dir.path(), &serve.cert, &url, &[http]);
        assert_eq!((fetched.ended.code, &*fetched.ended.out), (Some(0), PAGE), "{http}");
    }
    kill(successor.0, Signal::SIGTERM).unwrap();
    assert!(successor.ends());
    assert!(serve.log().iter().all(|line| line["status"] == 200));
}

#[test]
fn an_admin_listener_that_an_upgrade_could_not_open_is_opened_by_a_reload() {
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let directory = dir.path().join("directory");
    let socket = directory.join("admin.sock");
    fs::create_dir(&directory).unwrap();
    let admin = format!("[admin]\naddress = \"unix:{}\"", socket.display());
    let config = configure(dir.path(), &format!("{admin}\n[process]\nwatch = false"));
    let mut serve = start(&dir, &manager, &config);
    manager.wait_for("READY=1");
    UnixStream::connect(&socket).unwrap();

    fs::rename(&directory, dir.path().join("elsewhere")).unwrap();
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGUSR2).unwrap();
    let successor = main_process(&manager.wait_for("MAINPID="));
    manager.wait_for("READY=1");
    assert!(serve.ends_by_itself().success(), "{}", text(&serve.stderr));

    // The socket's directory is still missing, but the reload succeeds.
    kill(successor.0, Signal::SIGHUP).unwrap();
    assert!(manager.wait_for("READY=1").contains("with configuration 2"));
    fs::create_dir(&directory).unwrap();
    kill(successor.0, Signal::SIGHUP).unwrap();
    assert!(manager.wait_for("READY=1").contains("with configuration 3"));
    UnixStream::connect(&socket).unwrap();
    kill(successor.0, Signal::SIGTERM).unwrap();
    assert!(successor.ends());
}

/// The child of a process.
fn child(pid: u32) -> Option<Pid> {
    // The kernel lists children per thread.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let text = fs::read_to_string(thread.path().join("children")).ok()?;
        Some(Pid::from_raw(text.split_whitespace().next()?.parse().ok()?))
    })
}

#[test]
fn sigterm_aborts_a_slow_upgrade() {
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let config = configure(dir.path(), "[process]\nwatch = false");
    let mut serve = start(&dir, &manager, &config);
    manager.wait_for("READY=1");
    // The new process blocks while it reads its configuration from a FIFO.
    fs::remove_file(&config).unwrap();
    nix::unistd::mkfifo(&*config, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pid = Pid::from_raw(serve.pid() as i32);
    kill(pid, Signal::SIGUSR2).unwrap();
    manager.wait_for("starting a new process");
    assert!(until(|| child(serve.pid()).is_some()));
    let successor = OtherProcess(child(serve.pid()).unwrap());
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    assert!(kill(successor.0, None).is_ok());
    kill(pid, Signal::SIGTERM).unwrap();
    manager.wait_for("STOPPING=1");
    assert!(serve.ends_by_itself().success(), "{}", text(&serve.stderr));
    assert!(successor.ends());
}

#[test]
fn the_old_process_fails_when_the_new_one_is_killed() {
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let config = configure(dir.path(), "[limits]\nheader_timeout = \"30s\"");
    let mut serve = start(&dir, &manager, &config);
    manager.wait_for("READY=1");
    // The old process waits for this connection, whose handshake is incomplete.
    let _waiting = TcpStream::connect(format!("127.0.0.1:{}", serve.port())).unwrap();
    assert!(serves_page(&dir, &serve));
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGUSR2).unwrap();
    let successor = main_process(&manager.wait_for("MAINPID="));
    manager.wait_for("READY=1");
    assert!(until(|| text(&serve.stderr).contains("has taken over")));
    kill(successor.0, Signal::SIGKILL).unwrap();
    assert_eq!(serve.ends_by_itself().code(), Some(1), "{}", text(&serve.stderr));
    assert!(text(&serve.stderr).contains("nothing is served"));
}

/// A field of `/proc/PID/status`, such as `Uid` or `NoNewPrivs`.
fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().trim().to_owned()
}

/// Needs root, to switch users.
#[test]
fn privileges_are_dropped_before_serving() {
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let config = configure(dir.path(), "");
    let serve = start(&dir, &manager, &config);
    manager.wait_for("READY=1");
    // Also without root: children gain no privileges, and there are no core dumps.
    assert_eq!(status(serve.pid(), "NoNewPrivs"), "1");
    let limits = fs::read_to_string(format!("/proc/{}/limits", serve.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    serve.stop();
    if !nix::unistd::getuid().is_root() {
        return;
    }

    let config = configure(dir.path(), "[process]\nuser = \"nobody\"");
    for name in ["cert.pem", "key.pem", "firstflight.toml", "notify", "."] {
        let mode = if name == "notify" { 0o777 } else { 0o755 };
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    // The server opens its log as that user.
    std::os::unix::fs::chown(dir.path().join("log"), Some(nobody.uid.as_raw()), None).unwrap();
    let serve = start(&dir, &manager, &config);
    manager.wait_for("READY=1");
    let everywhere = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
    assert_eq!(status(serve.pid(), "Uid"), everywhere(nobody.uid.as_raw()));
    assert_eq!(status(serve.pid(), "Gid"), everywhere(nobody.gid.as_raw()));
    assert_eq!(status(serve.pid(), "CapEff"), "0000000000000000");
    assert!(serves_page(&dir, &serve));
    // Reloads read files as that user.
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGHUP).unwrap();
    assert!(manager.wait_for("READY=1").contains("with configuration 2"));
    fs::set_permissions(dir.path().join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGHUP).unwrap();
    assert!(manager.wait_for("not reloaded").contains("key.pem"));
    assert!(serves_page(&dir, &serve));
    serve.stop();
}

/// With these groups, a reload can read keys that only a group of the user may read. Needs root, to
/// mount another group file.
#[test]
fn the_server_has_the_supplementary_groups_of_its_user() {
    if !nix::unistd::getuid().is_root() {
        return;
    }
    let dir = site();
    certify(dir.path());
    let manager = ServiceManager::new(dir.path());
    let config = configure(dir.path(), "[process]\nuser = \"nobody\"");
    for (name, mode) in [("notify", 0o777), (".", 0o755)] {
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let group = fs::read_to_string("/etc/group").unwrap() + "keyreaders:x:12345:nobody\n";
    fs::write(dir.path().join("group"), group).unwrap();
    let script = "mount --bind group /etc/group && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.current_dir(dir.path()).env("NOTIFY_SOCKET", manager.path());
    command.args(["--mount", "sh", "-c", script, "sh", PROGRAM, "serve", "--config", &config]);
    command.args(["--listen", "127.0.0.1:0", "--cert", "cert.pem", "--key", "key.pem"]);
    let server = Running::start(&mut command);
    manager.wait_for("READY=1");
    let groups = status(server.0.id(), "Groups");
    assert!(groups.split(' ').any(|group| group == "12345"), "{groups}");
}

/// systemd accepts the units, and they are sandboxed.
#[test]
fn the_packaged_units_are_valid_and_sandboxed() {
    if skipped_without(&["systemd-analyze"]) {
        return;
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let dir = tempfile::tempdir().unwrap();
    for name in ["firstflight.service", "firstflight.socket"] {
        let text = fs::read_to_string(units.join(name)).unwrap();
        // The program is not installed yet.
        fs::write(dir.path().join(name), text.replace("/usr/bin/firstflight", PROGRAM)).unwrap();
    }
    let analyze = |arguments: &[&str]| {
        let mut command = std::process::Command::new("systemd-analyze");
        command.args(arguments).current_dir(dir.path());
        run(command.env("LC_ALL", "C").arg("./firstflight.service"))
    };
    let verified = analyze(&["verify", "./firstflight.socket"]);
    assert_eq!((verified.code, &*verified.err), (Some(0), ""), "{verified:?}");
    // The threshold is in tenths of the exposure level, which is from 0 to 10.
    let secure = analyze(&["security", "--offline=true", "--threshold=20"]);
    assert_eq!(secure.code, Some(0), "{secure:?}");
}
