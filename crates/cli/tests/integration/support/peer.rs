//! Other servers, as packaged by Debian, with early data enabled where supported.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::{Serving, free_port, program_path};
use nix::sys::signal::Signal;

use super::program::{PAGE, Running, text};

/// A running server.
pub(crate) struct Peer {
    running: Running,
    pub(crate) cert: PathBuf,
    pub(crate) port: u16,
}

/// Stops it with SIGTERM, which also stops its workers.
impl Drop for Peer {
    fn drop(&mut self) {
        if let Ok(None) = self.running.0.try_wait() {
            self.running.signal(Signal::SIGTERM);
            self.running.wait();
        }
    }
}

impl Peer {
    /// nginx. Its header `x-early` is 1 for a request executed before the handshake is complete.
    pub(crate) fn nginx(dir: &Path) -> Self {
        Self::start(dir, "nginx", &["-e", "stderr", "-p", "."], |port| {
            let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|name| format!("{name}_temp_path {name};\n"))
                .concat();
            format!(
                "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{ }}\nhttp {{\n\
                 access_log off;\n{temporary}server {{\nlisten 127.0.0.1:{port} ssl http2;\n\
                 ssl_certificate cert.pem;\nssl_certificate_key key.pem;\n\
                 ssl_protocols TLSv1.2 TLSv1.3;\nssl_early_data on;\nroot root;\n\
                 add_header x-early early=$ssl_early_data;\n}}\n}}\n"
            )
        })
    }

    /// HAProxy, which responds without a backend.
    pub(crate) fn haproxy(dir: &Path) -> Self {
        Self::start(dir, "haproxy", &["-db"], |port| {
            format!(
                "global\n  noreuseport\ndefaults\n  mode http\n  timeout client 30s\n  \
                 timeout server 30s\n  timeout \
                 connect 5s\nfrontend test\n  bind 127.0.0.1:{port} ssl crt both.pem allow-0rtt \
                 alpn h2,http/1.1\n  http-request return status 200 content-type text/plain \
                 string \"{}\\n\"\n",
                PAGE.trim_end()
            )
        })
    }

    /// h2o, which does not support early data in this version.
    pub(crate) fn h2o(dir: &Path) -> Self {
        Self::start(dir, "h2o", &[], |port| {
            let user = if nix::unistd::geteuid().is_root() { "user: root\n" } else { "" };
            format!(
                "{user}listen:\n  host: 127.0.0.1\n  port: {port}\n  ssl:\n    \
                 certificate-file: cert.pem\n    key-file: key.pem\n    ocsp-update-interval: 0\n\
                 hosts:\n  \"localhost\":\n    paths:\n      /:\n        file.dir: root\n"
            )
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}/index.html", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Starts a program with its configuration in a file. Its certificate is cert.pem in `dir`, which is
    /// created if it is missing. Retries with another port, as a free one may be taken meanwhile.
    pub(crate) fn start(
        dir: &Path,
        program: &str,
        arguments: &[&str],
        config: impl Fn(u16) -> String,
    ) -> Self {
        let cert = dir.join("cert.pem");
        if !cert.exists() {
            certificate(dir);
        }
        let stderr = dir.join("peer.stderr");
        for _ in 0..5 {
            let port = free_port();
            fs::write(dir.join("peer.conf"), config(port)).unwrap();
            let log = File::create(&stderr).unwrap();
            let mut command = Command::new(program_path(program));
            command
                .current_dir(dir)
                .args(arguments)
                .arg(match program {
                    "haproxy" => "-f",
                    "caddy" => "--config",
                    _ => "-c",
                })
                .arg(dir.join("peer.conf"))
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log);
            if let Some((running, _)) = Running::serve(&mut command, Serving::Tcp(port)) {
                return Self { running, cert, port };
            }
        }
        panic!("{program} does not start: {}", text(&stderr));
    }
}

/// Writes cert.pem, key.pem and both.pem for localhost.
pub(crate) fn certificate(dir: &Path) -> PathBuf {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    fs::write(dir.join("cert.pem"), &cert).unwrap();
    fs::write(dir.join("key.pem"), &key).unwrap();
    fs::write(dir.join("both.pem"), cert + &key).unwrap();
    dir.join("cert.pem")
}
