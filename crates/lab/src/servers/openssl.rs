use std::process::Command;

use super::program::library;
use super::{Ability, Found, MissingAbility, NO_PING_PONG, Post, Server};
use crate::LabError;

/// `openssl s_server`, which serves files from where it stands, one connection at a time.
pub(super) struct Openssl;

impl Server for Openssl {
    fn find(&self) -> Option<Found> {
        let mut found = Found::ask("openssl", &["version"], |about| {
            format!("s_server ({})", library(about).unwrap_or_else(|| "OpenSSL".to_owned()))
        })?;
        if let Some(help) = Found::at(found.program.clone(), &["s_server", "-help"], str::to_owned)
        {
            found.about.push_str(&help.about);
        }
        Some(found)
    }

    fn mend(&self) -> &'static str {
        "apt-get install openssl"
    }

    fn lacks(&self) -> Vec<MissingAbility> {
        vec![
            NO_PING_PONG,
            (Ability::EarlyData, "s_server refuses -early_data together with -WWW (files)"),
            (Ability::FastOpen, "s_server has TCP Fast Open (-tfo) since OpenSSL 3.2 only"),
            (Ability::Http2, "s_server speaks HTTP/1.0 alone"),
            (Ability::Http3, "s_server speaks no HTTP/3"),
            (Ability::SideBySide, "s_server serves one connection at a time"),
            (Ability::Counts, "s_server logs files without the rest of the request"),
        ]
    }

    fn command(&self, found: &Found, post: &Post<'_>) -> Result<Command, LabError> {
        let mut command = post.start(&found.program)?;
        command
            .current_dir(&post.site.root)
            .args(["s_server", "-WWW", "-quiet", "-4", "-accept", &post.port.to_string()])
            .arg("-cert")
            .arg(&post.identity.cert)
            .arg("-key")
            .arg(&post.identity.key)
            .args(["-cipher", "ALL:@SECLEVEL=0", "-groups", found.groups()]);
        if found.about.split_whitespace().any(|word| word == "-tfo") {
            command.arg("-tfo");
        }
        Ok(command)
    }
}
