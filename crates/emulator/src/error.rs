//! Why a network cannot be built or used: each error names the fix.

use std::io;

use crate::profile::{MAX_RTT_MS, MIN_RTT_MS};

/// Why the emulated network cannot be built or used.
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
    /// The kernel (Debian, some hardened ones) refuses user namespaces to ordinary users.
    #[error(
        "this machine refuses user namespaces to ordinary users: run as root, or \
         `sysctl kernel.unprivileged_userns_clone=1`"
    )]
    UserNamespacesOff,
    /// AppArmor (Ubuntu since 23.10) removes all capabilities inside a user namespace.
    #[error(
        "AppArmor removes capabilities inside user namespaces: run as root, or \
         `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    )]
    UserNamespacesConfined,
    /// The limit of user namespaces is reached, or zero.
    #[error(
        "no further user namespace is allowed (user.max_user_namespaces is {limit}): run as \
         root, or raise it by `sysctl user.max_user_namespaces=10000`"
    )]
    UserNamespacesExhausted {
        /// The current limit as the kernel prints it.
        limit: String,
    },
    /// The kernel was built without user namespaces.
    #[error("this kernel has no user namespaces (CONFIG_USER_NS): run as root")]
    UserNamespacesMissing,
    /// Namespaces are refused for a reason outside of the kernel's own settings.
    #[error(
        "namespaces are refused here ({source}), as containers do by default: run outside the \
         container, or start it with CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW"
    )]
    NamespacesRefused {
        /// The error of the kernel.
        source: io::Error,
    },
    /// This process may not open packet sockets.
    #[error(
        "this process may not capture packets ({source}): run it as root, or give the program the \
         right by `setcap cap_net_raw+ep FILE`"
    )]
    CaptureRefused {
        /// The error of the kernel.
        source: io::Error,
    },
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// A profile file has an error.
    #[error("{file}, line {line}: {reason}")]
    ProfileFile {
        /// The name of the file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// No profile has this name.
    #[error(
        "there is no profile {name:?}: name a round-trip time of {min} to {max} \
         milliseconds (as 20 or 20ms), one of {known}, or two of them joined by + ({additions} may \
         be added)",
        min = MIN_RTT_MS,
        max = MAX_RTT_MS
    )]
    NoSuchProfile {
        /// The requested name.
        name: String,
        /// The names of the profiles.
        known: String,
        /// The names of the additions.
        additions: String,
    },
    /// The network has no path with this index.
    #[error("there is no path {index}: this network has {paths}")]
    NoSuchPath {
        /// The requested index.
        index: usize,
        /// The number of paths.
        paths: usize,
    },
    /// The TUN backend was requested, but no TUN device can be opened.
    #[error("/dev/net/tun cannot be opened ({source}): {fix}, or use packet rings")]
    Tun {
        /// The error of the kernel.
        source: io::Error,
        /// The fix.
        fix: &'static str,
    },
    /// A setting that measurements depend on could not be written.
    #[error(
        "{key} could not be set to {value} in a network namespace ({source}): /proc/sys must be \
         mounted writable"
    )]
    Setting {
        /// Path below /proc/sys.
        key: &'static str,
        /// The value.
        value: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A step of building or using the network failed.
    #[error("the emulated network could not {step}: {source}")]
    System {
        /// What failed, as the end of "could not ...".
        step: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel refused an interface, address, route or neighbour.
    #[error("the emulated network could not {step}: {source}")]
    Netlink {
        /// What failed, as the end of "could not ...".
        step: String,
        /// The error of the kernel.
        source: rtnetlink::Error,
    },
    /// The process is not a namespace holder.
    #[error("process {id} is not a lab: start one with `firstflight lab --serve`")]
    NotAHolder {
        /// The process id.
        id: u32,
    },
    /// The holder belongs to another user, who may be malicious.
    #[error("process {id} belongs to another user: enter a lab as the user who started it")]
    HolderOfOtherUser {
        /// The process id.
        id: u32,
    },
    /// The namespaces of the holder cannot be entered.
    #[error("the lab of process {id} cannot be entered ({source}): start another one")]
    CannotEnter {
        /// The process id.
        id: u32,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A thread of the network has ended.
    #[error("the {0} thread of the emulated network has ended: build the network again")]
    ThreadGone(&'static str),
}

impl LinkError {
    /// Wraps an error of the operating system with the failed step.
    pub(crate) fn system(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { step: step.into(), source: source.into() }
    }
}
