//! Private keys that others than the server may read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use firstflight_config::{CertificateSource, Content, ServerConfig};

/// A warning for each private key's file that others may read or write, with the fix. Not an error:
/// a server that ran yesterday is to run today.
pub fn exposed_keys(config: &ServerConfig) -> Vec<String> {
    let sites = match &config.content {
        Content::Sites(content) => &*content.sites,
        Content::PingPong => &[],
    };
    let own = sites.iter().filter_map(|site| site.certificate.as_ref());
    let mut keys: Vec<&Path> = std::iter::once(&config.certificate)
        .chain(own)
        .filter_map(|source| match source {
            CertificateSource::Files { key, .. } => Some(key.as_path()),
            _ => None,
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().filter_map(exposed).collect()
}

fn exposed(key: &Path) -> Option<String> {
    let metadata = fs::metadata(key).ok()?;
    let mode = metadata.mode() & 0o777;
    is_exposed(mode, metadata.uid()).then(|| {
        let key = key.display();
        format!("others may read the private key {key} (mode {mode:04o}); run `chmod 600 {key}`")
    })
}

/// A group may read what is root's: so the server is given its keys by packages.
fn is_exposed(mode: u32, owner: u32) -> bool {
    mode & if owner == 0 { 0o037 } else { 0o077 } != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_read_what_is_roots() {
        for (mode, owner) in [(0o600, 0), (0o640, 0), (0o400, 1000), (0o600, 1000)] {
            assert!(!is_exposed(mode, owner), "{mode:o} of {owner}");
        }
        for (mode, owner) in [(0o644, 0), (0o660, 0), (0o604, 0), (0o640, 1000), (0o602, 1000)] {
            assert!(is_exposed(mode, owner), "{mode:o} of {owner}");
        }
    }
}
