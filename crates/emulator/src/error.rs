//! What can go wrong while a network is built or used, each with its fix.

use std::io;

/// Why the emulated network could not be built or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A user namespace can only be entered by a process of one thread.
    #[error(
        "a user namespace needs a process of one thread and this one has {threads}: enter it \
         first thing in main"
    )]
    NotSingleThreaded {
        /// Threads that the process has now.
        threads: usize,
    },
    /// The kernel (Debian, some hardened ones) refuses user namespaces to users.
    #[error(
        "this machine refuses user namespaces to ordinary users: run as root, or \
         `sysctl kernel.unprivileged_userns_clone=1`"
    )]
    UserNamespacesOff,
    /// AppArmor (Ubuntu since 23.10) takes all capabilities away inside a user namespace.
    #[error(
        "AppArmor takes the capabilities away inside user namespaces: run as root, or \
         `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    )]
    UserNamespacesConfined,
    /// The limit on user namespaces is used up, or zero.
    #[error(
        "no further user namespace is allowed (user.max_user_namespaces is {limit}): run as \
         root, or raise it by `sysctl user.max_user_namespaces=10000`"
    )]
    UserNamespacesExhausted {
        /// The present limit as the kernel prints it.
        limit: String,
    },
    /// The kernel was built without what is needed.
    #[error("this kernel has no user namespaces (CONFIG_USER_NS): run as root")]
    UserNamespacesMissing,
    /// Namespaces are refused for a reason outside the kernel's own switches.
    #[error(
        "namespaces are refused here ({source}), as containers do by default: run outside the \
         container, or start it with CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW"
    )]
    NamespacesRefused {
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process may not open packet sockets.
    #[error(
        "this process may not capture packets ({source}): run it as root, or give the program the \
         right by `setcap cap_net_raw+ep FILE`"
    )]
    CaptureRefused {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The configuration asks for something that cannot be built.
    #[error("{0}")]
    Config(String),
    /// A file of profiles that cannot be read as one.
    #[error("{file}, line {line}: {reason}")]
    ProfileFile {
        /// Its name.
        file: String,
        /// Where, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// No profile has this name.
    #[error(
        "there is no profile {name:?}: name a round-trip time in milliseconds (as 20 or 20ms), \
         one of {known}, or two of them joined by + ({additions} may be added)"
    )]
    NoSuchProfile {
        /// What was requested.
        name: String,
        /// The names that there are.
        known: String,
        /// Those that may stand behind a +.
        additions: String,
    },
    /// A path index that the network does not have.
    #[error("there is no path {index}: this network has {paths}")]
    NoSuchPath {
        /// What was requested.
        index: usize,
        /// How many paths there are.
        paths: usize,
    },
    /// There is no TUN device to be had, and the TUN backend was requested.
    #[error("/dev/net/tun cannot be opened ({source}): {mend}, or use packet rings")]
    Tun {
        /// The kernel's answer.
        source: io::Error,
        /// What to do about it.
        mend: &'static str,
    },
    /// A setting without which the figures would be wrong could not be written.
    #[error(
        "{key} could not be set to {value} in a network namespace ({source}): /proc/sys must be \
         mounted writable"
    )]
    Setting {
        /// Path below /proc/sys.
        key: &'static str,
        /// The value wanted.
        value: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A step of building or using the network failed.
    #[error("the emulated network could not {step}: {source}")]
    System {
        /// What was being done, as the end of "could not ...".
        step: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused an interface, address, route or neighbour.
    #[error("the emulated network could not {step}: {source}")]
    Netlink {
        /// What was being done, as the end of "could not ...".
        step: String,
        /// The kernel's answer.
        source: rtnetlink::Error,
    },
    /// There is nothing to enter by this process.
    #[error("process {id} is no door into a lab: start one by `firstflight lab --serve`")]
    NoDoor {
        /// The process.
        id: u32,
    },
    /// The process is another user's, who may be no friend.
    #[error("process {id} is another user's: enter a lab as the user who started it")]
    NotYourDoor {
        /// The process.
        id: u32,
    },
    /// This process may not follow the door's.
    #[error("the lab behind process {id} cannot be entered ({source}): start another one")]
    DoorShut {
        /// The process.
        id: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread of the network is gone.
    #[error("the {0} thread of the emulated network has ended: build the network anew")]
    ThreadGone(&'static str),
}

impl LinkError {
    /// Wraps an operating-system error with the step that met it.
    pub(crate) fn system(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { step: step.into(), source: source.into() }
    }
}
