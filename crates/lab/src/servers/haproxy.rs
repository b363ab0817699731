use std::fs::{self, File};
use std::process::Command;

use super::program::library;
use super::{Ability, Found, MissingAbility, NO_PING_PONG, Post, Server};
use crate::{Http, LabError};

/// HAProxy with `allow-0rtt` and TCP Fast Open, one thread. It answers by itself, without an
/// origin behind it.
///
/// 2.6 on OpenSSL 3.0 accepts early data and waits for the client's Finished before it answers.
pub(super) struct Haproxy;

impl Server for Haproxy {
    fn find(&self) -> Option<Found> {
        Found::ask("haproxy", &["-vv"], |about| {
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

    fn mend(&self) -> &'static str {
        "apt-get install haproxy"
    }

    fn lacks(&self) -> Vec<MissingAbility> {
        vec![NO_PING_PONG, (Ability::Http3, "Debian builds HAProxy without QUIC")]
    }

    fn command(&self, found: &Found, post: &Post<'_>) -> Result<Command, LabError> {
        let pem = join(post)?;
        let config = post.write("haproxy.cfg", &config(found, post, &pem))?;
        let log = File::create(&post.log).map_err(|source| LabError::File {
            verb: "write",
            path: post.log.clone(),
            source,
        })?;
        let mut command = post.start(&found.program)?;
        command.arg("-db").arg("-f").arg(config).stdout(log);
        Ok(command)
    }
}

/// What a response may be long without being told so.
const USUAL_BUFFER: usize = 15 << 10;

/// Certificate and key in one file, as it wants them.
fn join(post: &Post<'_>) -> Result<String, LabError> {
    let mut pem = String::new();
    for path in [&post.identity.cert, &post.identity.key] {
        let part = fs::read_to_string(path).map_err(|source| LabError::File {
            verb: "read",
            path: path.clone(),
            source,
        })?;
        pem.push_str(&part);
    }
    Ok(post.write("identity.pem", &pem)?.display().to_string())
}

fn config(found: &Found, post: &Post<'_>, pem: &str) -> String {
    // A response has to fit into a buffer; only where one is wanted that large are buffers changed.
    let largest = post.pages.iter().map(|page| page.bytes).max().unwrap_or_default();
    let buffers = match largest > USUAL_BUFFER {
        true => format!("tune.bufsize {}\n", largest + (64 << 10)),
        false => String::new(),
    };
    let responses: String = post
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
    let alpn = match post.manner.http {
        Some(Http::One) => "http/1.1",
        Some(Http::Two) => "h2",
        _ => "h2,http/1.1",
    };
    let close = if post.manner.keep_alive { "" } else { "option httpclose\n" };
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
        port = post.port,
        groups = found.groups(),
    )
}
