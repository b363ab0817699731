use std::fs::{self, File};
use std::process::{Command, Stdio};

use firstflight_link::Network;

use super::{Running, ServerKind, Site};
use crate::{BenchError, Workload};

/// nginx as Debian or anybody else has built it, with 0-RTT and TCP Fast Open on. One process and
/// no other user than root, because an unprivileged namespace has no other.
pub(super) fn start(network: &Network, site: &Site) -> Result<Running, BenchError> {
    let version = version()?;
    let directory = &site.directory;
    let log = directory.join("nginx.log");
    let config = format!(
        "daemon off;\nmaster_process off;\nuser root root;\n\
         error_log stderr warn;\npid {dir}/nginx.pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         access_log {log} combined;\n\
         client_body_temp_path {dir}/nginx-body;\nproxy_temp_path {dir}/nginx-proxy;\n\
         fastcgi_temp_path {dir}/nginx-fastcgi;\nuwsgi_temp_path {dir}/nginx-uwsgi;\n\
         scgi_temp_path {dir}/nginx-scgi;\n\
         server {{\n\
         listen 0.0.0.0:{port} ssl backlog=4096 fastopen=1024;\n\
         ssl_certificate {cert};\nssl_certificate_key {key};\n\
         ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3;\n\
         ssl_ciphers ALL:@SECLEVEL=0;\nssl_ecdh_curve X25519:P-256;\n\
         ssl_session_tickets on;\nssl_early_data on;\n\
         root {root};\n\
         }}\n}}\n",
        dir = directory.display(),
        log = log.display(),
        port = ServerKind::Nginx.port(Workload::Get),
        cert = site.cert.display(),
        key = site.key.display(),
        root = site.root.display(),
    );
    let path = directory.join("nginx.conf");
    let said = directory.join("nginx.stderr");
    let stderr = fs::write(&path, config)
        .and_then(|()| File::create(&said))
        .map_err(|source| BenchError::File { verb: "write", path: path.clone(), source })?;
    let mut command = Command::new(PROGRAM);
    command
        .env("PATH", search_path())
        .arg("-p")
        .arg(directory)
        .arg("-c")
        .arg(&path)
        .args(["-e", "stderr"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let process = network.server().spawn_child(command)?;
    Ok(Running { kind: ServerKind::Nginx, version, processes: vec![process], log })
}

/// What `nginx -v` says, which is also how we learn whether there is one.
fn version() -> Result<String, BenchError> {
    let said = Command::new(PROGRAM).env("PATH", search_path()).arg("-v").output();
    match said {
        Ok(said) => {
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            let version = said.trim().rsplit("version: ").next().unwrap_or("nginx");
            Ok(version.to_owned())
        }
        Err(_) => Err(BenchError::NotInstalled { server: "nginx", mend: "apt-get install nginx" }),
    }
}

/// Debian puts servers where ordinary users do not look.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin")
}

const PROGRAM: &str = "nginx";
