//! Fresh machines: a minimal Debian server with systemd, booted by
//! `scripts/fresh-root` without a container engine.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use tempfile::TempDir;

use crate::child::announce_skip;
use crate::child::{Running, SupervisedChild, spawn};
use crate::limited::{Watchdog, output_within};

const FRESH_ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/fresh-root");

/// Boots a machine whose changes to ROOT stay in memory. Its arguments are ROOT STATE NAME SCRIPT.
/// It runs in its own mount namespace, so that no mount is left behind.
const BOOT: &str = r#"set -eu
mkdir "$2/memory" "$2/root"
mount -t tmpfs -o mode=0755 tmpfs "$2/memory"
mkdir "$2/memory/changes" "$2/memory/work"
mount -t overlay -o "lowerdir=$1,upperdir=$2/memory/changes,workdir=$2/memory/work" overlay "$2/root"
echo "$3" >"$2/root/etc/hostname"
exec "$4" boot "$2/root"
"#;

/// How long a step of the boot may take on a busy machine.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(180);

/// How long commands in a machine may take: guides install packages, and wait for things to happen.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(900);

/// Whether the calling test must be skipped because machines cannot be booted here. It is skipped also
/// where `CI` is set: `make test` installs programs that are missing, but works without root.
pub fn skipped_without_root() -> bool {
    can_boot().inspect_err(|reason| announce_skip(reason)).is_err()
}

/// Whether machines can be booted here, which takes root.
///
/// # Errors
/// The reason why not, as a sentence for the person who runs the tests.
pub fn can_boot() -> Result<(), String> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err("booting a fresh machine takes root: run the tests as root too".to_owned())
    }
}

/// An unpacked system that machines start with.
pub struct Root(Arc<TempDir>);

impl Root {
    /// Makes a system with these packages in addition to a minimal server's. Packages with a `+`
    /// before their name are not installed, but can be installed without a network.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn make(packages: &[&str]) -> Self {
        // Ten thousand small files take a second in memory, and twenty on a disk.
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let directory = tempfile::tempdir_in(directory).expect("a directory");
        let mut command = Command::new(FRESH_ROOT);
        command.arg("make").arg(directory.path()).args(packages).stdin(Stdio::null());
        let status = command.status().expect("scripts/fresh-root");
        assert!(status.success(), "scripts/fresh-root make: {status}");
        Self(Arc::new(directory))
    }

    /// Boots one machine, with loopback only.
    ///
    /// # Panics
    /// If it doesn't boot.
    pub fn boot(&self, name: &str) -> Machine {
        let machine = Machine::start(&self.0, name, None);
        machine.write("/etc/hosts", &format!("127.0.0.1 localhost {name}\n::1 localhost\n"));
        machine
    }

    /// Boots machines on one network, which resolve each other's names.
    ///
    /// # Panics
    /// If they don't boot.
    pub fn boot_several(&self, names: &[&str]) -> Vec<Machine> {
        let network = Arc::new(switch());
        let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        let mut machines = Vec::new();
        for (name, last) in names.iter().zip(1..) {
            let machine = Machine::start(&self.0, name, Some(network.clone()));
            let address = Ipv4Addr::new(10, 77, 0, last);
            hosts += &format!("{address} {name}\n");
            machine.output(&format!("ip address add {address}/24 dev host0; ip link set host0 up"));
            machines.push(machine);
        }
        for machine in &machines {
            machine.write("/etc/hosts", &hosts);
        }
        machines
    }
}

/// A running machine. Nothing of it is left when it is dropped, or when its owner dies.
///
/// It has its own systemd, processes, users, loopback and, if booted with others, an address. It
/// reaches no other network.
pub struct Machine {
    name: String,
    init: u32,
    supervisor: Running,
    // The switch has to live as long as the machines that are connected to it.
    _network: Option<Arc<SupervisedChild>>,
    _state: TempDir,
    _root: Arc<TempDir>,
}

impl Machine {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of a file of the machine on the host.
    ///
    /// # Panics
    /// For a path that doesn't start with a slash.
    pub fn path(&self, path: &str) -> PathBuf {
        let path = path.strip_prefix('/').expect("an absolute path");
        PathBuf::from(format!("/proc/{}/root", self.init)).join(path)
    }

    /// Writes a file, as root.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Copies a file into the machine, with its mode.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn copy(&self, from: &Path, to: &str) {
        fs::copy(from, self.path(to))
            .unwrap_or_else(|error| panic!("{} to {to}: {error}", from.display()));
    }

    /// Runs a bash script in root's home directory, and waits for its end.
    ///
    /// # Panics
    /// If the machine cannot be entered, or the script does not end in 15 minutes.
    pub fn run(&self, script: &str) -> Output {
        output_within(self.enter().args(["-c", script]), COMMAND_TIMEOUT)
    }

    /// Runs a script that must succeed, and returns its output.
    ///
    /// # Panics
    /// If the script fails, with its output.
    pub fn output(&self, script: &str) -> String {
        let output = self.run(script);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {}\n{text}{errors}", output.status);
        text
    }

    /// Starts a shell that keeps its state between commands.
    pub fn shell(&self) -> Shell {
        Shell::start(self.enter())
    }

    /// A command that runs bash in the machine, with the environment of a root login. The caller
    /// adds the arguments.
    pub fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init))
            .args(["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--"])
            .args(["/usr/bin/env", "--chdir=/root", "/bin/bash"])
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs([("HOME", "/root"), ("USER", "root"), ("LOGNAME", "root")])
            .envs([("LANG", "C.UTF-8"), ("TERM", "dumb"), ("SHELL", "/bin/bash")])
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn start(root: &Arc<TempDir>, name: &str, network: Option<Arc<SupervisedChild>>) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let mut command = match &network {
            None => Command::new("unshare"),
            Some(switch) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{}/ns/net", switch.pid())).arg("unshare");
                command.env("FRESH_ROOT_BRIDGE", "bridge");
                command
            }
        };
        command.args(["--mount", "--propagation=private", "/bin/sh", "-c", BOOT, "boot"]);
        command.arg(root.path()).arg(state.path()).args([name, FRESH_ROOT]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut supervisor = spawn(&mut command);
        // The script has a shorter limit, and a better message.
        let _watchdog = Watchdog::start(&supervisor, MACHINE_TIMEOUT);
        let mut line = String::new();
        let output = supervisor.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("a word");
        assert_eq!(line, "booted\n", "{name} doesn't boot");
        let leader = fs::read_to_string(state.path().join("root.leader")).expect("its leader");
        let init = leader.trim().parse().expect("a process id");
        Self {
            name: name.to_owned(),
            init,
            supervisor: Running(supervisor),
            _network: network,
            _state: state,
            _root: root.clone(),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.supervisor.0.stdin.take());
        // The supervisor is killed only if that takes too long, because the machine would keep
        // running.
        self.supervisor.wait();
    }
}

/// Creates a network namespace with a bridge, and a process that keeps it alive.
fn switch() -> SupervisedChild {
    let script = "ip link add bridge type bridge && ip link set bridge up && exec sleep infinity";
    let command = ["unshare", "--net", "/bin/sh", "-c", script];
    let keeper = SupervisedChild::start(&command.map(str::to_owned));
    let end = Instant::now() + MACHINE_TIMEOUT;
    let comm = format!("/proc/{}/comm", keeper.pid());
    while fs::read_to_string(&comm).is_ok_and(|name| name.trim() != "sleep") {
        assert!(Instant::now() < end, "a bridge could not be made");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(keeper.runs(), "a bridge could not be made: is iproute2 installed?");
    keeper
}

/// Printed after the output of each script. No program of a guide prints it.
const END_MARKER: &str = "\u{1}end of script";

/// A bash that keeps its variables, directory and jobs between scripts, until it is dropped.
/// Standard error goes to standard output, as in a terminal.
pub struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    pub(super) fn start(mut command: Command) -> Self {
        let mut child = command
            .args(["-c", "exec /bin/bash 2>&1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("nsenter, of util-linux");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, stdin, stdout }
    }

    /// Runs commands as if they had been typed, up to the first that fails. They have no input.
    ///
    /// # Errors
    /// The output, if a command failed or they did not end in 15 minutes. The shell has ended then.
    pub fn run(&mut self, script: &str) -> Result<String, String> {
        let quoted = script.replace('\'', r"'\''");
        let line = format!("set -e; eval '{quoted}' </dev/null; printf '%s\\n' '{END_MARKER}'\n");
        let written = self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush());
        let mut output = String::new();
        if written.is_err() {
            return Err(output);
        }
        let watchdog = Watchdog::start(&self.child, COMMAND_TIMEOUT);
        loop {
            let mut line = Vec::new();
            let length = self.stdout.read_until(b'\n', &mut line).unwrap_or(0);
            let line = String::from_utf8_lossy(&line);
            if length == 0 {
                if watchdog.stop() {
                    output += &format!("\nThe commands do not end within {COMMAND_TIMEOUT:?}.\n");
                }
                return Err(output);
            }
            // The last line of the output may lack a line feed.
            if let Some(rest) = line.strip_suffix(&format!("{END_MARKER}\n")) {
                output += rest;
                return Ok(output);
            }
            output += &line;
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
