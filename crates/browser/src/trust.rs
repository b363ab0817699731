//! Whom a browser trusts: certificates put into its NSS database by `certutil`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::{BrowserError, Make, Settings};

/// Puts all certificates of the settings into the database in a directory, made if need be.
pub(crate) fn tell(make: Make, directory: &Path, settings: &Settings) -> Result<(), BrowserError> {
    if settings.trust.is_empty() {
        return Ok(());
    }
    let fail = |reason: String| BrowserError::Trust { browser: make, reason };
    fs::create_dir_all(directory).map_err(|error| fail(error.to_string()))?;
    let database = format!("sql:{}", directory.display());
    if !directory.join("cert9.db").exists() {
        certutil(&["-N", "--empty-password", "-d", &database]).map_err(fail)?;
    }
    for (file, path) in settings.trust.iter().enumerate() {
        let pem = fs::read_to_string(path)
            .map_err(|error| fail(format!("cannot read {}: {error}", path.display())))?;
        for (place, certificate) in certificates(&pem).iter().enumerate() {
            let name = format!("firstflight {file}.{place}");
            let single = directory.join("firstflight-trust.der");
            fs::write(&single, certificate).map_err(|error| fail(error.to_string()))?;
            let single = single.display().to_string();
            // P: a server's own certificate. C: an authority for servers.
            certutil(&["-A", "-d", &database, "-n", &name, "-t", "CP,,", "-i", &single])
                .map_err(fail)?;
        }
    }
    Ok(())
}

fn certutil(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("certutil");
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot start certutil: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("certutil says {:?}", said.trim()))
}

/// The certificates in a PEM file (RFC 7468), as DER.
pub(crate) fn certificates(pem: &str) -> Vec<Vec<u8>> {
    pem.split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split("-----END CERTIFICATE-----").next())
        .filter_map(|body| {
            let body: String = body.split_whitespace().collect();
            BASE64_STANDARD.decode(body).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_of_a_file_is_found() {
        let pem = "words\n-----BEGIN CERTIFICATE-----\nAAEC\nAwQ=\n-----END CERTIFICATE-----\n\
                   -----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n\
                   -----BEGIN CERTIFICATE-----\n/w==\n-----END CERTIFICATE-----\n";
        assert_eq!(certificates(pem), [vec![0, 1, 2, 3, 4], vec![255]]);
        assert!(
            certificates("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----").is_empty()
        );
    }
}
