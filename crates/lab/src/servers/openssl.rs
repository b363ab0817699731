use std::process::Command;

use super::program::library;
use super::{Capability, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup};
use crate::{CertificateKind, LabError};

/// `openssl s_server`, which serves the files of its working directory, one connection at a time.
pub(super) struct Openssl;

impl Server for Openssl {
    fn find(&self) -> Option<InstalledProgram> {
        let mut found = InstalledProgram::query("openssl", &["version"], |about| {
            format!("s_server ({})", library(about).unwrap_or_else(|| "OpenSSL".to_owned()))
        })?;
        if let Some(help) =
            InstalledProgram::query_at(found.program.clone(), &["s_server", "-help"], str::to_owned)
        {
            found.about.push_str(&help.about);
        }
        Some(found)
    }

    fn install_hint(&self) -> &'static str {
        "apt-get install openssl"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        vec![
            NO_PING_PONG,
            (
                Capability::EarlyData,
                "s_server does not support -early_data together with -WWW (files)",
            ),
            (Capability::FastOpen, "s_server supports TCP Fast Open (-tfo) since OpenSSL 3.2"),
            (Capability::Http2, "s_server supports HTTP/1.0 only"),
            (Capability::Http3, "s_server does not support HTTP/3"),
            (Capability::ConcurrentConnections, "s_server serves one connection at a time"),
            (
                Capability::Certificate(CertificateKind::Rsa4096Chain),
                "s_server takes its chain from another file (-cert_chain)",
            ),
            (Capability::RequestLog, "s_server logs file names without the query"),
        ]
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let mut command = setup.base_command(&found.program)?;
        command
            .current_dir(&setup.site.root)
            .args(["s_server", "-WWW", "-quiet", "-4", "-accept", &setup.port.to_string()])
            .arg("-cert")
            .arg(&setup.identity.cert)
            .arg("-key")
            .arg(&setup.identity.key)
            .args(["-cipher", "ALL:@SECLEVEL=0", "-groups", found.groups()]);
        if found.about.split_whitespace().any(|word| word == "-tfo") {
            command.arg("-tfo");
        }
        Ok(command)
    }
}
