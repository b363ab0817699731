//! A server as a process among others: which of its files have changed, what the service manager
//! is told and has to give, privileges, and the way to a successor.
//!
//! It knows nothing of servers: signals, configuration and connections are left to `serve`.

mod activation;
mod files;
mod notify;
mod privileges;
mod way;

pub use activation::{Activated, activated};
pub use files::Files;
pub use notify::{Notice, Notifier};
pub use privileges::{
    PrivilegeError, User, close_memory, forbid_dumps, forbid_new_privileges, raise_file_limit,
};
pub use way::{HandoffChannel, Message};
