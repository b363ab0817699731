use std::fs;
use std::process::Command;

use super::program::{find, library};
use super::{Ability, Found, MissingAbility, NO_PING_PONG, Post, Server};
use crate::{Certificate, Http, LabError};

/// h2o, one thread, with TCP Fast Open.
pub(super) struct H2o;

impl Server for H2o {
    fn find(&self) -> Option<Found> {
        Found::ask("h2o", &["--version"], |about| {
            let version = about.split_whitespace().nth(2).unwrap_or("");
            match library(about) {
                Some(library) => format!("h2o/{version} ({library})"),
                None => format!("h2o/{version}"),
            }
        })
    }

    fn mend(&self) -> &'static str {
        "apt-get install h2o"
    }

    fn lacks(&self) -> Vec<MissingAbility> {
        vec![
            NO_PING_PONG,
            (Ability::Http3, "h2o speaks HTTP/3 since 2.3"),
            (Ability::EarlyData, "h2o on OpenSSL issues tickets without early data"),
            (Ability::Presents(Certificate::Ed25519), "h2o reads no Ed25519 keys"),
        ]
    }

    fn keeps_to(&self, http: Http) -> bool {
        http != Http::One
    }

    fn command(&self, found: &Found, post: &Post<'_>) -> Result<Command, LabError> {
        let confined = is_confined();
        let user = if confined { "" } else { "user: root\n" };
        let config = post.write("h2o.conf", &config(post, user))?;
        // Started as root it changes its user, even to the same one, and may not where no other
        // user exists. In a user namespace below ours it is somebody else from the start.
        let mut command = match find("unshare").filter(|_| confined) {
            Some(unshare) => {
                let mut command = post.start(&unshare)?;
                command.args(["--user", "--map-user=1000", "--map-group=1000"]).arg(&found.program);
                command
            }
            None => post.start(&found.program)?,
        };
        command.arg("-c").arg(config);
        Ok(command)
    }
}

/// Whether this process lives in a user namespace that knows no groups but its own.
fn is_confined() -> bool {
    fs::read_to_string("/proc/self/setgroups").is_ok_and(|word| word.trim() == "deny")
}

fn config(post: &Post<'_>, user: &str) -> String {
    format!(
        "{user}num-threads: 1\ntcp-fastopen: 1024\n\
         pid-file: {dir}/pid\nerror-log: {dir}/errors\naccess-log: {log}\n\
         listen:\n  host: 0.0.0.0\n  port: {port}\n  ssl:\n    \
         certificate-file: {cert}\n    key-file: {key}\n    \
         minimum-version: TLSv1\n    cipher-suite: \"ALL:@SECLEVEL=0\"\n    \
         ocsp-update-interval: 0\n\
         hosts:\n  default:\n    paths:\n      \"/\":\n        file.dir: {root}\n",
        dir = post.directory.display(),
        log = post.log.display(),
        port = post.port,
        cert = post.identity.cert.display(),
        key = post.identity.key.display(),
        root = post.site.root.display(),
    )
}
