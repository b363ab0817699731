//! A door into a namespace, for people and their programs.
//!
//! A namespace has no name, so nobody can enter it who was not started inside. A door is a process
//! inside that does nothing: whoever may look at it may follow it in, by its files in `/proc`. It
//! has a view of the file system of its own, in which `/etc/hosts` has the network's names.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::geteuid;

use crate::{LinkError, Namespace, Process};

/// The process that others follow into a [`Namespace`]; dropped, nobody can enter any more. Who is
/// inside stays there until the network is dropped, which ends them.
#[derive(Debug)]
pub struct NamespaceHolder {
    process: Process,
}

impl NamespaceHolder {
    /// Its process id, as seen from this process: what [`enter`] is told.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Namespace {
    /// Opens a door into this namespace. Inside, `hosts` is `/etc/hosts`, and whoever enters is
    /// given the variables of `environment`.
    ///
    /// # Errors
    /// If the process cannot be started, or may not have a view of the file system of its own.
    pub fn open_door(
        &self,
        hosts: &Path,
        environment: &[(OsString, OsString)],
    ) -> Result<NamespaceHolder, LinkError> {
        let step = "open a door to the client's namespace";
        let hosts = CString::new(hosts.as_os_str().as_bytes())
            .map_err(|e| LinkError::system(step, io::Error::from(e)))?;
        let mut command = Command::new("/bin/sh");
        // Its standard input ends with the handle.
        command.args(["-c", "read end", MARK]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        // SAFETY: the child of a process with threads may only make async-signal-safe calls;
        // `furnish` makes system calls alone, on strings that were made before.
        unsafe { command.pre_exec(move || furnish(&hosts)) };
        self.spawn_child(command).map(|process| NamespaceHolder { process })
    }
}

/// Gives the calling process a view of the file system of its own.
fn furnish(hosts: &CString) -> io::Result<()> {
    let none = None::<&'static [u8]>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // What is mounted here is seen nowhere else; what the machine mounts later is seen here too.
    mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    mount(Some(hosts.as_c_str()), c"/etc/hosts", none, MsFlags::MS_BIND, none)?;
    // Its own processes by their own numbers. A container may refuse that, and the machine's
    // /proc does as well.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = mount(Some(c"proc"), c"/proc", Some(c"proc"), flags, none);
    Ok(())
}

/// The doors of this user on this machine, by process id.
pub fn doors() -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let files = entry.path();
        (is_own(&files) && is_door(&files)).then_some(id)
    });
    ids.collect()
}

/// `files`: the process's directory in `/proc`.
fn is_door(files: &Path) -> bool {
    let line = fs::read(files.join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(3) == Some(MARK.as_bytes())
}

/// Whether all user ids of a process are this one's. The owner of its files says less: a process
/// of anybody is root's there once it is not dumpable (proc(5)).
fn is_own(files: &Path) -> bool {
    let status = fs::read_to_string(files.join("status")).unwrap_or_default();
    let us = geteuid().to_string();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id == us))
}

/// Enters the namespaces of a door, and returns those of its `variables` that it has set. The
/// calling process itself keeps its number: its children are inside, and end with the network.
///
/// Any process can call itself a door, so one of another user is refused, also for root, and
/// nothing else of its environment is taken: a `PATH` would choose what is run.
///
/// To be called while the process has one thread.
///
/// # Errors
/// [`LinkError::NoDoor`] if the process is none, [`LinkError::NotYourDoor`] if it is another
/// user's, or the step that the kernel refused.
pub fn enter(door: u32, variables: &[&str]) -> Result<Vec<(OsString, OsString)>, LinkError> {
    // Opened once: later the number may be another process's.
    let process = File::open(format!("/proc/{door}"));
    let process = process.map_err(|_| LinkError::NoDoor { id: door })?;
    let files = Path::new("/proc/self/fd").join(process.as_raw_fd().to_string());
    if !is_door(&files) {
        return Err(LinkError::NoDoor { id: door });
    }
    if !is_own(&files) {
        return Err(LinkError::NotYourDoor { id: door });
    }
    let shut = |source| LinkError::DoorShut { id: door, source };
    let open = |kind: &str| File::open(files.join("ns").join(kind));
    let user = open("user").map_err(shut)?;
    let rooms = [
        (open("net").map_err(shut)?, CloneFlags::CLONE_NEWNET),
        (open("pid").map_err(shut)?, CloneFlags::CLONE_NEWPID),
        (open("mnt").map_err(shut)?, CloneFlags::CLONE_NEWNS),
    ];
    let environment = fs::read(files.join("environ")).map_err(shut)?;
    let step = |e: nix::Error| LinkError::system("enter the lab's namespaces", e);
    let here = std::env::current_dir();
    if !is_ours(&user).map_err(shut)? {
        setns(&user, CloneFlags::CLONE_NEWUSER).map_err(step)?;
    }
    for (room, kind) in &rooms {
        setns(room, *kind).map_err(step)?;
    }
    if let Ok(here) = here {
        // It may not be there any more; then `/` it is.
        let _ = std::env::set_current_dir(here);
    }
    Ok(chosen(&environment, variables))
}

/// Whether this process is in that user namespace already.
fn is_ours(user: &File) -> io::Result<bool> {
    let (theirs, ours) = (user.metadata()?, fs::metadata("/proc/self/ns/user")?);
    Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

/// The variables of these names in an environment as `/proc` has it (proc_pid_environ(5)).
fn chosen(environment: &[u8], names: &[&str]) -> Vec<(OsString, OsString)> {
    let lines = environment.split(|byte| *byte == 0);
    let pairs = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((part(&line[..at]), part(&line[at + 1..])))
    });
    pairs.filter(|(name, _)| names.iter().any(|wanted| name == wanted)).collect()
}

/// By which a door is known among all processes: its shell's `$0`.
const MARK: &str = "firstflight-lab-door";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_read_whatever_it_holds() {
        let read = |environment| chosen(environment, &["A", "B", "C", "no sign"]);
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let environment = b"A=1\0PATH=/evil\0B=x=y\0AB=1\0C=\0=nameless\0no sign\0\0";
        assert_eq!(read(environment), [pair("A", "1"), pair("B", "x=y"), pair("C", "")]);
        assert!(read(b"").is_empty());
    }

    #[test]
    fn a_process_that_is_no_door_is_not_entered() {
        for id in [std::process::id(), u32::MAX] {
            let refused = enter(id, &[]).unwrap_err();
            assert!(matches!(refused, LinkError::NoDoor { .. }), "{refused}");
        }
    }
}
