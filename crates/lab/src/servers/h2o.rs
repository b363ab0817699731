use std::fs;
use std::process::Command;

use super::program::{find, library};
use super::{Capability, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup};
use crate::{CertificateKind, HttpVersion, LabError};

/// h2o with one thread and TCP Fast Open.
pub(super) struct H2o;

impl Server for H2o {
    fn find(&self) -> Option<InstalledProgram> {
        InstalledProgram::query("h2o", &["--version"], |about| {
            let version = about.split_whitespace().nth(2).unwrap_or("");
            match library(about) {
                Some(library) => format!("h2o/{version} ({library})"),
                None => format!("h2o/{version}"),
            }
        })
    }

    fn install_hint(&self) -> &'static str {
        "apt-get install h2o"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        vec![
            NO_PING_PONG,
            (Capability::Http3, "h2o supports HTTP/3 since 2.3"),
            (Capability::EarlyData, "h2o on OpenSSL issues tickets without early data"),
            (Capability::Certificate(CertificateKind::Ed25519), "h2o cannot read Ed25519 keys"),
        ]
    }

    fn supports_only(&self, http: HttpVersion) -> bool {
        http != HttpVersion::One
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let confined = is_confined();
        let user = if confined { "" } else { "user: root\n" };
        let config = setup.write("h2o.conf", &config(setup, user))?;
        // As root, h2o changes its user, which fails in a namespace without other users. In a
        // nested user namespace it starts as another user and does not try.
        let mut command = match find("unshare").filter(|_| confined) {
            Some(unshare) => {
                let mut command = setup.base_command(&unshare)?;
                command.args(["--user", "--map-user=1000", "--map-group=1000"]).arg(&found.program);
                command
            }
            None => setup.base_command(&found.program)?,
        };
        command.arg("-c").arg(config);
        Ok(command)
    }
}

/// Whether this process runs in a user namespace without other groups.
fn is_confined() -> bool {
    fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

fn config(setup: &ServerSetup<'_>, user: &str) -> String {
    format!(
        "{user}num-threads: 1\ntcp-fastopen: 1024\n\
         pid-file: {dir}/pid\nerror-log: {dir}/errors\naccess-log: {log}\n\
         listen:\n  host: 0.0.0.0\n  port: {port}\n  ssl:\n    \
         certificate-file: {cert}\n    key-file: {key}\n    \
         minimum-version: TLSv1\n    cipher-suite: \"ALL:@SECLEVEL=0\"\n    \
         ocsp-update-interval: 0\n\
         hosts:\n  default:\n    paths:\n      \"/\":\n        file.dir: {root}\n",
        dir = setup.directory.display(),
        log = setup.log.display(),
        port = setup.port,
        cert = setup.identity.cert.display(),
        key = setup.identity.key.display(),
        root = setup.site.root.display(),
    )
}
