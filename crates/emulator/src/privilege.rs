//! User namespaces, with which an ordinary user may build networks.

use std::fs;
use std::io;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{getegid, geteuid};

use crate::LinkError;

/// The privilege with which this process builds networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// It already had the capabilities (root, or a container with them).
    Held,
    /// It is now root inside its own user namespace, and an ordinary user outside.
    UserNamespace,
}

/// Makes sure that this process may create network namespaces.
///
/// Commands that build networks call it first in main, while the process has one thread. If the
/// capabilities are present, it does nothing. Otherwise the process enters a user namespace in
/// which it is root, with only its own user and group mapped. The process stays in its network
/// namespace; only what [`crate::Namespace`] starts leaves it.
///
/// # Errors
/// One error for each reason that a machine can have to refuse, with the fix.
pub fn enter_user_namespace() -> Result<Privilege, LinkError> {
    if holds_capabilities()? {
        return Ok(Privilege::Held);
    }
    let threads = fs::read_dir("/proc/self/task")
        .map_err(|e| LinkError::system("count its threads in /proc/self/task", e))?
        .count();
    if threads != 1 {
        return Err(LinkError::NotSingleThreaded { threads });
    }
    let (user, group) = (geteuid(), getegid());
    // If this user cannot read the program file, the files of the process in /proc belong to root
    // (proc(5)) unless it is dumpable. A lab has no secrets to protect from its user.
    prctl::set_dumpable(true).map_err(|e| LinkError::system("make itself dumpable", e))?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| KernelSettings::read().explain(errno))?;
    // Otherwise the kernel refuses the group map of an unprivileged process (CVE-2014-8989).
    write_map("setgroups", "deny")?;
    write_map("uid_map", &format!("0 {user} 1"))?;
    write_map("gid_map", &format!("0 {group} 1"))?;
    // AppArmor permits the user namespace, and only then refuses its use.
    thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET))
        .join()
        .unwrap_or(Err(Errno::EIO))
        .map_err(|errno| KernelSettings::read().explain(errno))?;
    Ok(Privilege::UserNamespace)
}

fn write_map(file: &str, content: &str) -> Result<(), LinkError> {
    fs::write(format!("/proc/self/{file}"), content).map_err(|e| match e.raw_os_error() {
        Some(code) => KernelSettings::read().explain(Errno::from_raw(code)),
        None => LinkError::system(format!("write /proc/self/{file}"), e),
    })
}

fn holds_capabilities() -> Result<bool, LinkError> {
    let status = fs::read_to_string("/proc/thread-self/status")
        .map_err(|e| LinkError::system("read its capabilities from /proc", e))?;
    Ok(effective_capabilities(&status) & REQUIRED_CAPABILITIES == REQUIRED_CAPABILITIES)
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// The kernel settings for user namespaces; absent ones are `None`.
struct KernelSettings {
    clone_allowed: Option<String>,
    apparmor_restricts: Option<String>,
    limit: Option<String>,
}

impl KernelSettings {
    fn read() -> Self {
        let read = |name: &str| {
            fs::read_to_string(format!("/proc/sys/{name}")).ok().map(|s| s.trim().to_owned())
        };
        Self {
            clone_allowed: read("kernel/unprivileged_userns_clone"),
            apparmor_restricts: read("kernel/apparmor_restrict_unprivileged_userns"),
            limit: read("user/max_user_namespaces"),
        }
    }

    fn explain(&self, errno: Errno) -> LinkError {
        let refused = matches!(errno, Errno::EPERM | Errno::EACCES);
        if errno == Errno::ENOSPC || self.limit.as_deref() == Some("0") {
            let limit = self.limit.clone().unwrap_or_else(|| "unknown".to_owned());
            LinkError::UserNamespacesExhausted { limit }
        } else if errno == Errno::EINVAL || errno == Errno::ENOSYS {
            LinkError::UserNamespacesMissing
        } else if refused && self.clone_allowed.as_deref() == Some("0") {
            LinkError::UserNamespacesOff
        } else if refused && self.apparmor_restricts.as_deref() == Some("1") {
            LinkError::UserNamespacesConfined
        } else {
            LinkError::NamespacesRefused { source: io::Error::from(errno) }
        }
    }
}

/// CAP_NET_ADMIN (12), CAP_NET_RAW (13) and CAP_SYS_ADMIN (21), see capabilities(7).
const REQUIRED_CAPABILITIES: u64 = 1 << 12 | 1 << 13 | 1 << 21;

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(clone: Option<&str>, apparmor: Option<&str>, limit: &str) -> KernelSettings {
        KernelSettings {
            clone_allowed: clone.map(str::to_owned),
            apparmor_restricts: apparmor.map(str::to_owned),
            limit: Some(limit.to_owned()),
        }
    }

    #[test]
    fn each_reason_names_its_fix() {
        let cases = [
            (machine(Some("0"), None, "100"), Errno::EPERM, "unprivileged_userns_clone"),
            (machine(Some("1"), Some("1"), "100"), Errno::EPERM, "apparmor_restrict"),
            (machine(None, Some("1"), "100"), Errno::EACCES, "apparmor_restrict"),
            (machine(None, None, "0"), Errno::ENOSPC, "max_user_namespaces"),
            (machine(None, None, "0"), Errno::EPERM, "max_user_namespaces"),
            (machine(None, None, "100"), Errno::ENOSPC, "max_user_namespaces"),
            (machine(None, None, "100"), Errno::EINVAL, "CONFIG_USER_NS"),
            (machine(None, Some("0"), "100"), Errno::EPERM, "CAP_SYS_ADMIN"),
        ];
        for (machine, errno, fix) in cases {
            let sentence = machine.explain(errno).to_string();
            assert!(sentence.contains(fix), "{errno}: {sentence}");
        }
    }

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        assert_eq!(
            effective_capabilities("CapPrm:\tff\nCapEff:\t0000000000203000\n"),
            REQUIRED_CAPABILITIES
        );
        assert_eq!(effective_capabilities("Name:\tx\n"), 0);
        assert_eq!(effective_capabilities("CapEff:\tzz\n"), 0);
    }

    #[test]
    fn a_process_of_several_threads_is_refused() {
        // The test harness has several threads; as root nothing needs to be entered.
        match enter_user_namespace() {
            Ok(privilege) => assert_eq!(privilege, Privilege::Held),
            Err(error) => assert!(matches!(error, LinkError::NotSingleThreaded { .. }), "{error}"),
        }
    }
}
