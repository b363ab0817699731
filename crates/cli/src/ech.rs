//! `firstflight ech`: keys for Encrypted ClientHello, and the DNS records that publish them.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use firstflight_tls::EchKey;

/// Create a key for Encrypted ClientHello (RFC 9849), and print the DNS record to publish.
///
/// Clients that know the record encrypt the server's name and all else in the ClientHello.
#[derive(Args)]
pub(crate) struct EchArgs {
    #[command(subcommand)]
    command: EchCommand,
}

#[derive(Subcommand)]
enum EchCommand {
    /// Create a file with a key, for `ech` in [tls] (RFC 9934; only its owner can read it).
    New {
        /// The file; it must not exist yet.
        file: PathBuf,
        /// The name that clients send in the clear; the server needs a certificate for it.
        #[arg(long, value_name = "NAME")]
        public_name: String,
    },
    /// Print a DNS record (HTTPS, RFC 9460) for each name that is served with this key.
    Record {
        /// A file of RFC 9934.
        file: PathBuf,
        /// Names of sites; with a port other than 443 as NAME:PORT.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Application protocols (ALPN) that the server has.
        #[arg(long, value_name = "LIST", default_value = "h3,h2")]
        alpn: String,
        /// Seconds for which resolvers may keep the record. Keep a replaced key in the server's list for
        /// as long.
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        ttl: u32,
    },
}

pub(crate) fn run(args: EchArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        EchCommand::New { file, public_name } => {
            let key = EchKey::generate(&public_name)?;
            let name = file.display();
            let mut options = OpenOptions::new();
            let mut created = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&file)
                .with_context(|| format!("cannot create {name}"))?;
            created
                .write_all(key.to_pem()?.as_bytes())
                .and_then(|()| created.sync_all())
                .with_context(|| format!("cannot write {name}"))?;
            outln!(
                "created {name}; name it in `ech` of [tls] on each server, then publish what \
                 `firstflight ech record {name} NAME` prints"
            );
        }
        EchCommand::Record { file, names, alpn, ttl } => {
            let list = EchKey::from_file(&file)?.config_list();
            for name in names {
                let owner = owner(&name)?;
                outln!("{owner} {ttl} IN HTTPS 1 . alpn=\"{alpn}\" ech=\"{list}\"");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of the record for a host and port (RFC 9460 section 9.1).
fn owner(name: &str) -> anyhow::Result<String> {
    let (host, port) = name.split_once(':').unwrap_or((name, "443"));
    let host = host.trim_end_matches('.');
    let good = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_*".contains(&b))
    };
    if !host.split('.').all(good) {
        bail!("{name:?} is not a name; write NAME or NAME:PORT");
    }
    match port.parse::<u16>().with_context(|| format!("{port:?} is not a port"))? {
        443 => Ok(format!("{host}.")),
        port => Ok(format!("_{port}._https.{host}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9460_9_1_other_ports_have_names_of_their_own() {
        assert_eq!(owner("www.example.org").unwrap(), "www.example.org.");
        assert_eq!(owner("example.org:443").unwrap(), "example.org.");
        assert_eq!(owner("example.org:8443").unwrap(), "_8443._https.example.org.");
        for bad in ["", "a b", "example.org:http", "https://example.org"] {
            assert!(owner(bad).is_err(), "{bad}");
        }
    }
}
