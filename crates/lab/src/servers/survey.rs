//! What the servers on this machine can do, without measuring anything.

use std::path::Path;
use std::time::Duration;

use firstflight_emulator::{Network, NetworkConfig, PathConfig};

use super::{Abilities, Running, ServerKind, Site, Wanted};
use crate::{Certificate, LabError, Size, Workload};

/// A server as a trial has found it.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// Which one.
    pub server: ServerKind,
    /// What it calls itself, with its version and its TLS library.
    pub version: String,
    /// What it can do.
    pub abilities: Abilities,
}

/// Starts a server with every certificate and every size, tries what it can do, and ends it.
///
/// `directory` is an empty one that the caller removes, `program` this program, which is our own
/// server. The calling process needs the privilege that
/// `firstflight_emulator::enter_user_namespace` gives.
///
/// # Errors
/// [`LabError`] if the server is not installed or does not start, or the network cannot be built.
pub fn survey(server: ServerKind, directory: &Path, program: &Path) -> Result<Surveyed, LabError> {
    let site = Site::make(directory, program, &Certificate::ALL)?;
    let path = PathConfig::symmetric("beside", Duration::ZERO);
    let network = Network::build(NetworkConfig::new(vec![path]))?;
    let wanted =
        Wanted { workloads: &[Workload::Get], certificates: &Certificate::ALL, sizes: &Size::ALL };
    let running = Running::start(server, &wanted, &network, &site)?;
    running.stop();
    Ok(Surveyed { server, version: running.version.clone(), abilities: running.abilities.clone() })
}
