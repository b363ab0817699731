//! Entering a namespace of a running network, for people and their programs.
//!
//! A namespace has no name, so a process that was not started inside cannot enter it. A holder is
//! an idle process inside: a process that may read its files in `/proc` can enter its namespaces. The
//! holder has its own mount namespace, in which `/etc/hosts` has the names of the network.

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

/// The process through which others enter a [`Namespace`]. When it is dropped, no process can enter
/// any more. Processes inside continue until the network is dropped, which ends them.
#[derive(Debug)]
pub struct NamespaceHolder {
    process: Process,
}

impl NamespaceHolder {
    /// Its process id in the namespace of this process, for [`enter`].
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Namespace {
    /// Starts a holder in this namespace. Inside, `hosts` is `/etc/hosts`, and processes that enter
    /// get the variables of `environment`.
    ///
    /// # Errors
    /// If the process cannot be started, or may not have its own mount namespace.
    pub fn start_holder(
        &self,
        hosts: &Path,
        environment: &[(OsString, OsString)],
    ) -> Result<NamespaceHolder, LinkError> {
        let step = "start a holder in the client's namespace";
        let hosts = CString::new(hosts.as_os_str().as_bytes())
            .map_err(|e| LinkError::system(step, io::Error::from(e)))?;
        let mut command = Command::new("/bin/sh");
        // The shell ends when its standard input is closed.
        command.args(["-c", "read end", HOLDER_NAME]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        // SAFETY: the child of a process with threads may only make async-signal-safe calls;
        // `set_up_mounts` only makes system calls, on strings that exist already.
        unsafe { command.pre_exec(move || set_up_mounts(&hosts)) };
        self.spawn_child(command).map(|process| NamespaceHolder { process })
    }
}

/// Gives the calling process its own mount namespace.
fn set_up_mounts(hosts: &CString) -> io::Result<()> {
    let none = None::<&'static [u8]>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Mounts made here stay private; later mounts of the machine propagate here.
    mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    mount(Some(hosts.as_c_str()), c"/etc/hosts", none, MsFlags::MS_BIND, none)?;
    // This /proc shows the process ids of the holder's namespace. A container may refuse the mount;
    // the machine's /proc works as well.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = mount(Some(c"proc"), c"/proc", Some(c"proc"), flags, none);
    Ok(())
}

/// The holders of this user on this machine, by process id.
pub fn holders() -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let files = entry.path();
        (is_own(&files) && is_holder(&files)).then_some(id)
    });
    ids.collect()
}

/// Whether a process is a holder. `files` is its directory in `/proc`.
fn is_holder(files: &Path) -> bool {
    let line = fs::read(files.join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(3) == Some(HOLDER_NAME.as_bytes())
}

/// Whether all user ids of a process equal that of this process. The owner of its files is not
/// enough: the files of any process belong to root once it is not dumpable (proc(5)).
fn is_own(files: &Path) -> bool {
    let status = fs::read_to_string(files.join("status")).unwrap_or_default();
    let own_id = geteuid().to_string();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id == own_id))
}

/// Enters the namespaces of a holder, and returns those of its `variables` that are set. The
/// calling process keeps its process id: its children are inside, and end with the network.
///
/// Any process can look like a holder. So a holder of another user is refused, even for root, and no
/// other variables of its environment are used: its `PATH` would decide which programs run.
///
/// The calling process must have only one thread.
///
/// # Errors
/// [`LinkError::NotAHolder`] if the process is not a holder, [`LinkError::HolderOfOtherUser`] if it
/// belongs to another user, or the step that the kernel refused.
pub fn enter(holder: u32, variables: &[&str]) -> Result<Vec<(OsString, OsString)>, LinkError> {
    // Opened once: later the id may belong to another process.
    let process = File::open(format!("/proc/{holder}"));
    let process = process.map_err(|_| LinkError::NotAHolder { id: holder })?;
    let files = Path::new("/proc/self/fd").join(process.as_raw_fd().to_string());
    if !is_holder(&files) {
        return Err(LinkError::NotAHolder { id: holder });
    }
    if !is_own(&files) {
        return Err(LinkError::HolderOfOtherUser { id: holder });
    }
    let cannot_enter = |source| LinkError::CannotEnter { id: holder, source };
    let open = |kind: &str| File::open(files.join("ns").join(kind));
    let user = open("user").map_err(cannot_enter)?;
    let namespaces = [
        (open("net").map_err(cannot_enter)?, CloneFlags::CLONE_NEWNET),
        (open("pid").map_err(cannot_enter)?, CloneFlags::CLONE_NEWPID),
        (open("mnt").map_err(cannot_enter)?, CloneFlags::CLONE_NEWNS),
    ];
    let environment = fs::read(files.join("environ")).map_err(cannot_enter)?;
    let step = |e: nix::Error| LinkError::system("enter the lab's namespaces", e);
    let here = std::env::current_dir();
    if !is_own_namespace(&user).map_err(cannot_enter)? {
        setns(&user, CloneFlags::CLONE_NEWUSER).map_err(step)?;
    }
    for (namespace, kind) in &namespaces {
        setns(namespace, *kind).map_err(step)?;
    }
    if let Ok(here) = here {
        // If the directory does not exist inside, `/` is used.
        let _ = std::env::set_current_dir(here);
    }
    Ok(selected_variables(&environment, variables))
}

/// Whether this process is already in that user namespace.
fn is_own_namespace(user: &File) -> io::Result<bool> {
    let (theirs, ours) = (user.metadata()?, fs::metadata("/proc/self/ns/user")?);
    Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

/// The variables of these names in an environment as in `/proc` (proc_pid_environ(5)).
fn selected_variables(environment: &[u8], names: &[&str]) -> Vec<(OsString, OsString)> {
    let lines = environment.split(|byte| *byte == 0);
    let pairs = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((part(&line[..at]), part(&line[at + 1..])))
    });
    pairs.filter(|(name, _)| names.iter().any(|selected| name == selected)).collect()
}

/// Identifies holders: the `$0` of their shell.
const HOLDER_NAME: &str = "firstflight-lab-holder";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_variables_are_read_from_any_environment() {
        let read = |environment| selected_variables(environment, &["A", "B", "C", "no sign"]);
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let environment = b"A=1\0PATH=/evil\0B=x=y\0AB=1\0C=\0=nameless\0no sign\0\0";
        assert_eq!(read(environment), [pair("A", "1"), pair("B", "x=y"), pair("C", "")]);
        assert!(read(b"").is_empty());
    }

    #[test]
    fn a_process_that_is_not_a_holder_is_refused() {
        for id in [std::process::id(), u32::MAX] {
            let refused = enter(id, &[]).unwrap_err();
            assert!(matches!(refused, LinkError::NotAHolder { .. }), "{refused}");
        }
    }
}
