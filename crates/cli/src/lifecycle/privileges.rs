//! Giving up what a process does not need once it listens.

use std::io;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{self, Gid, Group, Uid};

/// Why privileges were not given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// No such user.
    #[error("there is no user {0:?}; create it, or name another in process.user")]
    NoUser(String),
    /// No such group.
    #[error("there is no group {0:?}; create it, or name another in process.group")]
    NoGroup(String),
    /// The system refuses.
    #[error("cannot become user {user:?}: {reason}; start the program as root or as that user")]
    Refused {
        /// Who it was to be.
        user: String,
        /// Why not.
        reason: io::Error,
    },
}

/// A user to become.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl User {
    /// Looks a user up, and a group; `None`: the user's own.
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

    /// Becomes that user, in all threads and for good. Does nothing where the process is that user
    /// already.
    ///
    /// # Errors
    /// [`PrivilegeError::Refused`].
    pub fn become_it(&self) -> Result<(), PrivilegeError> {
        if unistd::getuid() == self.uid && unistd::getgid() == self.gid {
            return Ok(());
        }
        let refused = |reason: nix::Error| PrivilegeError::Refused {
            user: self.name.clone(),
            reason: reason.into(),
        };
        // In this order: without the user, nobody may change groups.
        unistd::setgroups(&[self.gid]).map_err(refused)?;
        unistd::setresgid(self.gid, self.gid, self.gid).map_err(refused)?;
        unistd::setresuid(self.uid, self.uid, self.uid).map_err(refused)?;
        // A way back would make all of it worthless.
        match !self.uid.is_root() && unistd::setuid(Uid::from_raw(0)).is_ok() {
            true => Err(refused(nix::Error::EPERM)),
            false => Ok(()),
        }
    }
}

/// [Forbids dumps](forbid_dumps), and returns whether other processes of the same user could have
/// opened this one's memory before: whoever has it open keeps it. They could not if the program's
/// file is one that its user cannot read (`PR_SET_DUMPABLE` in prctl(2)).
///
/// # Errors
/// The system's.
pub fn close_memory() -> io::Result<bool> {
    let open = prctl::get_dumpable()?;
    forbid_dumps()?;
    Ok(open && !unistd::geteuid().is_root())
}

/// Keeps keys out of core dumps, and out of other processes of the same user: they can neither
/// trace this one nor read its memory.
///
/// # Errors
/// The system's.
pub fn forbid_dumps() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    match getrlimit(Resource::RLIMIT_CORE)? {
        (0, 0) => Ok(()),
        _ => Ok(setrlimit(Resource::RLIMIT_CORE, 0, 0)?),
    }
}

/// No program that this one starts gets more rights by its file.
///
/// # Errors
/// The system's.
pub fn forbid_new_privileges() -> io::Result<()> {
    Ok(prctl::set_no_new_privs()?)
}

/// As many descriptors as the system allows; the number. A connection to an upstream costs two.
///
/// # Errors
/// The system's.
pub fn raise_file_limit() -> io::Result<u64> {
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if now < most {
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_exist_is_named() {
        let error = User::find("no-such-user", None).unwrap_err().to_string();
        assert!(error.contains("no-such-user") && error.contains("process.user"), "{error}");
        let error = User::find("root", Some("no-such-group")).unwrap_err().to_string();
        assert!(error.contains("no-such-group"), "{error}");
    }

    #[test]
    fn who_one_is_already_is_no_change() {
        let own = unistd::User::from_uid(unistd::getuid()).unwrap();
        let Some(own) = own.filter(|own| own.gid == unistd::getgid()) else { return };
        User::find(&own.name, None).unwrap().become_it().unwrap();
    }

    #[test]
    fn the_limit_of_files_is_the_highest() {
        let most = raise_file_limit().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, most);
    }
}
