use std::fs::{self, File};
use std::process::Command;

use super::program::library;
use super::{Capability, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup};
use crate::{HttpVersion, LabError};

/// HAProxy with `allow-0rtt`, TCP Fast Open and one thread. It responds directly, without an
/// upstream.
///
/// Version 2.6 on OpenSSL 3.0 accepts early data, but waits for the client's Finished before it
/// responds.
pub(super) struct Haproxy;

impl Server for Haproxy {
    fn find(&self) -> Option<InstalledProgram> {
        InstalledProgram::query("haproxy", &["-vv"], |about| {
            let version = about.split_whitespace().nth(2).unwrap_or("");
            let running = about
                .lines()
                .find(|line| line.starts_with("Running on") && line.contains("version :"));
            match running.and_then(library) {
                Some(library) => format!("HAProxy/{version} ({library})"),
                None => format!("HAProxy/{version}"),
            }
        })
    }

    fn install_hint(&self) -> &'static str {
        "apt-get install haproxy"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        vec![NO_PING_PONG, (Capability::Http3, "Debian builds HAProxy without QUIC")]
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let pem = write_identity(setup)?;
        let config = setup.write("haproxy.cfg", &config(found, setup, &pem))?;
        let log = File::create(&setup.log).map_err(|source| LabError::File {
            verb: "write",
            path: setup.log.clone(),
            source,
        })?;
        let mut command = setup.base_command(&found.program)?;
        command.arg("-db").arg("-f").arg(config).stdout(log);
        Ok(command)
    }
}

/// The largest response that fits into a buffer of the default size.
const DEFAULT_BUFFER_BYTES: usize = 15 << 10;

/// Writes certificate and key into one file.
fn write_identity(setup: &ServerSetup<'_>) -> Result<String, LabError> {
    let mut pem = String::new();
    for path in [&setup.identity.cert, &setup.identity.key] {
        let part = fs::read_to_string(path).map_err(|source| LabError::File {
            verb: "read",
            path: path.clone(),
            source,
        })?;
        pem.push_str(&part);
    }
    Ok(setup.write("identity.pem", &pem)?.display().to_string())
}

fn config(found: &InstalledProgram, setup: &ServerSetup<'_>, pem: &str) -> String {
    // A response must fit into a buffer. Buffers are enlarged only for pages that need it.
    let largest = setup.pages.iter().map(|page| page.bytes).max().unwrap_or_default();
    let buffers = match largest > DEFAULT_BUFFER_BYTES {
        true => format!("tune.bufsize {}\n", largest + (64 << 10)),
        false => String::new(),
    };
    let responses: String = setup
        .pages
        .iter()
        .map(|page| {
            format!(
                "http-request return status 200 content-type {kind} file {file} if {{ path {path} }}\n",
                kind = page.content_type,
                file = page.file.display(),
                path = page.path,
            )
        })
        .collect();
    let alpn = match setup.options.http {
        Some(HttpVersion::One) => "http/1.1",
        Some(HttpVersion::Two) => "h2",
        _ => "h2,http/1.1",
    };
    let close = if setup.options.keep_alive { "" } else { "option httpclose\n" };
    format!(
        "global\nlog stdout format raw local0\nnbthread 1\nmaxconn 4096\n{buffers}\
         ssl-default-bind-ciphers ALL:@SECLEVEL=0\n\
         defaults\nmode http\nlog global\nlog-format \"%r %ST\"\n\
         timeout client 30s\ntimeout server 30s\ntimeout connect 5s\n{close}\
         frontend lab\n\
         bind 0.0.0.0:{port} ssl crt {pem} ssl-min-ver TLSv1.0 alpn {alpn} \
         curves {groups} allow-0rtt tfo backlog 4096\n\
         {responses}\
         http-request return status 404\n",
        port = setup.port,
        groups = found.groups(),
    )
}
