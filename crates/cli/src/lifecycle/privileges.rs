//! Privileges and limits of the process.

use std::ffi::CString;
use std::io;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{self, Gid, Group, Uid};

/// Why privileges could not be dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// No such user.
    #[error("user {0:?} does not exist; create it, or set another in process.user")]
    NoUser(String),
    /// No such group.
    #[error("group {0:?} does not exist; create it, or set another in process.group")]
    NoGroup(String),
    /// A system call failed.
    #[error("cannot switch to user {user:?}: {reason}; start the program as root or as that user")]
    Refused {
        /// The user to switch to.
        user: String,
        /// The cause.
        reason: io::Error,
    },
}

/// A user to switch to.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl User {
    /// Looks up a user, and a group; `None` stands for the user's primary group.
    ///
    /// # Errors
    /// [`PrivilegeError::NoUser`] or [`PrivilegeError::NoGroup`].
    pub fn find(name: &str, group: Option<&str>) -> Result<Self, PrivilegeError> {
        let user = unistd::User::from_name(name).ok().flatten();
        let user = user.ok_or_else(|| PrivilegeError::NoUser(name.to_owned()))?;
        let gid = match group {
            None => user.gid,
            Some(group) => {
                let found = Group::from_name(group).ok().flatten();
                found.ok_or_else(|| PrivilegeError::NoGroup(group.to_owned()))?.gid
            }
        };
        Ok(Self { name: name.to_owned(), uid: user.uid, gid })
    }

    /// Switches all threads to that user irrevocably. Does nothing if the process runs as that user.
    ///
    /// # Errors
    /// [`PrivilegeError::Refused`].
    pub fn switch(&self) -> Result<(), PrivilegeError> {
        if unistd::getuid() == self.uid && unistd::getgid() == self.gid {
            return Ok(());
        }
        let refused = |reason: nix::Error| PrivilegeError::Refused {
            user: self.name.clone(),
            reason: reason.into(),
        };
        // The groups first: changing them needs the privileges of the previous user. They include
        // the user's supplementary groups, because a reload may read keys that only such a group
        // may read.
        let name = CString::new(self.name.as_str()).map_err(|_| refused(nix::Error::EINVAL))?;
        unistd::initgroups(&name, self.gid).map_err(refused)?;
        unistd::setresgid(self.gid, self.gid, self.gid).map_err(refused)?;
        unistd::setresuid(self.uid, self.uid, self.uid).map_err(refused)?;
        // Fails if root privileges could be regained.
        match !self.uid.is_root() && unistd::setuid(Uid::from_raw(0)).is_ok() {
            true => Err(refused(nix::Error::EPERM)),
            false => Ok(()),
        }
    }
}

/// [Forbids dumps](forbid_dumps). Returns whether other processes of the same user may have opened
/// this one's memory before the call; they can then still read it. They could not if the program's
/// file is not readable for its user (`PR_SET_DUMPABLE` in prctl(2)).
///
/// # Errors
/// If a system call fails.
pub fn protect_memory() -> io::Result<bool> {
    let was_dumpable = prctl::get_dumpable()?;
    forbid_dumps()?;
    Ok(was_dumpable && !unistd::geteuid().is_root())
}

/// Disables core dumps, and prevents other processes of the same user from tracing this one and
/// reading its memory.
///
/// # Errors
/// If a system call fails.
pub fn forbid_dumps() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    match getrlimit(Resource::RLIMIT_CORE)? {
        (0, 0) => Ok(()),
        _ => Ok(setrlimit(Resource::RLIMIT_CORE, 0, 0)?),
    }
}

/// Sets `no_new_privs`: set-user-ID bits and file capabilities give child processes no privileges.
///
/// # Errors
/// If the system call fails.
pub fn forbid_new_privileges() -> io::Result<()> {
    Ok(prctl::set_no_new_privs()?)
}

/// Raises the limit of open files to the hard limit, and returns it.
///
/// # Errors
/// If a system call fails.
pub fn raise_file_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_missing_user_or_group() {
        let error = User::find("no-such-user", None).unwrap_err().to_string();
        assert!(error.contains("no-such-user") && error.contains("process.user"), "{error}");
        let error = User::find("root", Some("no-such-group")).unwrap_err().to_string();
        assert!(error.contains("no-such-group"), "{error}");
    }

    #[test]
    fn switching_to_the_current_user_changes_nothing() {
        let user = unistd::User::from_uid(unistd::getuid()).unwrap();
        let Some(user) = user.filter(|user| user.gid == unistd::getgid()) else { return };
        User::find(&user.name, None).unwrap().switch().unwrap();
    }

    #[test]
    fn the_file_limit_becomes_the_hard_limit() {
        let max = raise_file_limit().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, max);
    }
}
