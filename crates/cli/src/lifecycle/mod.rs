//! A server as a process among others: which of its files have changed, what the service manager
//! is told and has to give, privileges, and the way to a successor.
//!
//! It knows nothing of servers: signals, configuration and connections are left to `serve`.

mod file_watcher;
mod handoff;
mod privileges;
mod service_manager;

pub use file_watcher::{FileWatcher, Files};
pub use handoff::{HandoffChannel, Message};
pub use privileges::{
    PrivilegeError, User, close_memory, forbid_dumps, forbid_new_privileges, raise_file_limit,
};
pub use service_manager::{Activated, Notice, Notifier, activated};
