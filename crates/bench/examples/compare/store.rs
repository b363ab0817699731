//! The store of the variant with a shared register: Redis, on the load's core.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failed;
use crate::servers::{find, free_port};

/// Longer than the recording window of a new store (52 s), in which early data is refused.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// A Redis server, which ends with this.
pub(crate) struct Store {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Store {
    pub(crate) fn start() -> Result<Self, Failed> {
        let program = find("redis-server").ok_or("--variants needs redis-server")?;
        let port = free_port()?;
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let process = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let store = Self { process, address };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("redis-server does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(store)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
