//! The server as a process: changed files, messages to and sockets from the service manager,
//! privileges, and the channel to a successor.
//!
//! Nothing here depends on the server itself: signals, configuration and connections belong to
//! `serve`.

mod file_watcher;
mod handoff;
mod privileges;
mod service_manager;

pub use file_watcher::{FileWatcher, WatchedFiles};
pub use handoff::{HandoffChannel, Message};
pub use privileges::{
    PrivilegeError, User, forbid_dumps, forbid_new_privileges, protect_memory, raise_file_limit,
};
pub use service_manager::{Activated, Notice, Notifier, activated};
