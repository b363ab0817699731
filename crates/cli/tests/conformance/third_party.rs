//! Third-party servers as upstreams of the proxy: how many requests do they receive?

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use firstflight_testkit::{free_port, program_path};

use crate::running::{Running, text, until};

/// An nginx that responds with 200 to everything, and logs each request before it responds.
pub(crate) struct Nginx {
    pub(crate) url: String,
    log: PathBuf,
    _running: Running,
}

/// An HAProxy that does the same.
pub(crate) struct Haproxy {
    pub(crate) url: String,
    log: UnixDatagram,
    seen: AtomicUsize,
    _running: Running,
}

impl Nginx {
    pub(crate) fn start(dir: &Path) -> Self {
        let (port, log) = (free_port(), dir.join("nginx.log"));
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log nginx.err;\n\
             events {{}}\n\
             http {{\n\
               access_log nginx.log; client_body_temp_path body;\n\
               server {{ listen 127.0.0.1:{port}; location / {{ return 200 up; }} }}\n\
             }}\n"
        );
        fs::write(dir.join("nginx.conf"), config).unwrap();
        let mut command = Command::new(program_path("nginx"));
        command.args(["-p", dir.to_str().unwrap(), "-c", "nginx.conf", "-e", "nginx.err"]);
        let running = Running::start(quiet(&mut command, dir));
        wait_until_listening(port);
        Self { url: format!("http://127.0.0.1:{port}"), log, _running: running }
    }

    /// Requests so far.
    pub(crate) fn count(&self) -> usize {
        text(&self.log).lines().count()
    }
}

impl Haproxy {
    pub(crate) fn start(dir: &Path) -> Self {
        let (port, socket) = (free_port(), dir.join("haproxy.sock"));
        let log = UnixDatagram::bind(&socket).unwrap();
        log.set_nonblocking(true).unwrap();
        let config = format!(
            "global\n  log {} local0\n\
             defaults\n  mode http\n  log global\n  option httplog\n  timeout client 60s\n\
             frontend upstream\n  bind 127.0.0.1:{port}\n  http-request return status 200\n",
            socket.display()
        );
        fs::write(dir.join("haproxy.cfg"), config).unwrap();
        let mut command = Command::new(program_path("haproxy"));
        command.args(["-db", "-f", "haproxy.cfg"]);
        let running = Running::start(quiet(&mut command, dir));
        wait_until_listening(port);
        let url = format!("http://127.0.0.1:{port}");
        Self { url, log, seen: AtomicUsize::new(0), _running: running }
    }

    /// Requests so far.
    pub(crate) fn count(&self) -> usize {
        let mut line = [0; 8192];
        loop {
            match self.log.recv(&mut line) {
                // Other lines are about starts, or connections without a request.
                Ok(count) if String::from_utf8_lossy(&line[..count]).contains("HTTP/1.") => {
                    self.seen.fetch_add(1, Ordering::Relaxed);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.seen.load(Ordering::Relaxed)
    }
}

fn quiet<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    let stderr = File::create(dir.join("upstream.stderr")).unwrap();
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr)
}

fn wait_until_listening(port: u16) {
    let there = until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(there, "the upstream does not listen");
}
