//! `firstflight ech`: keys for Encrypted ClientHello, and the DNS records that publish them.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
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
        #[arg(required = true, value_name = "NAME", value_parser = owner)]
        names: Vec<String>,
        /// Application protocols (ALPN) that the server supports.
        #[arg(long, value_name = "LIST", default_value = "h3,h2", value_parser = protocols)]
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
            write_new(&file, EchKey::generate(&public_name)?.to_pem()?.as_bytes())?;
            let name = file.display();
            outln!(
                "created {name}; name it in `ech` of [tls] on each server, then publish what \
                 `firstflight ech record {name} NAME` prints"
            );
        }
        EchCommand::Record { file, names, alpn, ttl } => {
            let list = EchKey::from_file(&file)?.config_list();
            for owner in names {
                let target = target(&owner);
                outln!("{owner} {ttl} IN HTTPS 1 {target} alpn=\"{alpn}\" ech=\"{list}\"");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file with mode 0600, as a whole or not at all.
fn write_new(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let name = path.display();
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist_noclobber(path)?;
        Ok(())
    };
    match write() {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{name} exists already; choose another name")
        }
        Err(error) => Err(error).with_context(|| format!("cannot write {name}")),
    }
}

/// The name of the record for a host and port (RFC 9460 section 9.1).
fn owner(name: &str) -> Result<String, String> {
    let (host, port) = name.split_once(':').unwrap_or((name, "443"));
    let host = host.trim_end_matches('.');
    let good = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_*".contains(&b))
    };
    if name.contains('/') || !host.split('.').all(good) {
        return Err("it is not a name; write NAME or NAME:PORT".to_owned());
    }
    match port.parse::<u16>() {
        Ok(443) => Ok(format!("{host}.")),
        Ok(port @ 1..=u16::MAX) => Ok(format!("_{port}._https.{host}.")),
        _ => Err(format!("{port:?} is not a port; write a number from 1 to 65535")),
    }
}

/// The target name of a record: `.` means the record's own name (RFC 9460 section 2.5.2), which has
/// no addresses if it begins with a port.
fn target(owner: &str) -> &str {
    owner.split_once("._https.").map_or(".", |(_, host)| host)
}

/// A list of protocols that needs no escaping in a record (RFC 9460 section 7.1.1).
fn protocols(list: &str) -> Result<String, String> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"./-".contains(&b);
    match list.split(',').all(|name| !name.is_empty() && name.bytes().all(good)) {
        true => Ok(list.to_owned()),
        false => Err("write protocols with commas, such as h3,h2,http/1.1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9460_9_1_names_of_other_ports_have_a_prefix() {
        assert_eq!(owner("www.example.org").unwrap(), "www.example.org.");
        assert_eq!(owner("example.org:443").unwrap(), "example.org.");
        assert_eq!(owner("example.org:8443").unwrap(), "_8443._https.example.org.");
        for bad in ["", "a b", "https://example.org", "::1"] {
            assert!(owner(bad).unwrap_err().contains("not a name"), "{bad}");
        }
        for bad in ["example.org:http", "example.org:0", "example.org:65536", "example.org:"] {
            assert!(owner(bad).unwrap_err().contains("not a port"), "{bad}");
        }
    }

    #[test]
    fn rfc9460_2_5_2_the_record_of_another_port_names_the_host() {
        assert_eq!(target(&owner("example.org").unwrap()), ".");
        assert_eq!(target(&owner("example.org:8443").unwrap()), "example.org.");
    }

    #[test]
    fn rfc9460_7_1_1_protocols_need_no_escaping() {
        for good in ["h2", "h3,h2,http/1.1"] {
            assert_eq!(protocols(good).unwrap(), good);
        }
        for bad in ["", "h2,", "h2 h3", "h2\" x=\"", "h2\n", "H2"] {
            assert!(protocols(bad).is_err(), "{bad:?}");
        }
    }
}
