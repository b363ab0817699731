//! Ports that nobody uses.

use std::net::TcpListener;

/// A port of the loopback that nobody listened on a moment ago, chosen by the system. It may be
/// gone again when it is used: [`crate::Process::start`] then takes another.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port on the loopback");
    listener.local_addr().expect("the port that was bound").port()
}
