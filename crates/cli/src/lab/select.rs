//! The experiments, networks and servers that the flags select.

use std::path::Path;

use firstflight_emulator::{Profile, ProfileKind};
use firstflight_lab::{
    Axes, BuiltInExperiment, CertificateKind, CipherSuite, ClientKind, ConnectionAxes, Experiment,
    Group, HandshakeKind, HttpVersion, MiddleboxConfig, ResponseSize, ServerKind, StallConfig,
    Transport, Workload,
};
use firstflight_tls::Version;

use super::LabArgs;
use crate::axes::default_http;

/// The parts of a run.
pub(super) struct Selection {
    pub(super) experiments: Vec<Experiment>,
    pub(super) middleboxes: Option<MiddleboxConfig>,
    pub(super) stalls: Option<StallConfig>,
    pub(super) restarts: usize,
}

/// Selects experiments, with their servers and networks.
///
/// # Errors
/// If a name is unknown, or flags contradict each other.
pub(super) fn select(args: &LabArgs) -> anyhow::Result<Selection> {
    let servers = servers(&args.server, &args.server_cmd)?;
    let samples = args.samples.map(|samples| samples as usize);
    let custom_matrix = args.has_matrix_flags();
    let names = match (&args.experiment, custom_matrix) {
        (Some(_), true) => anyhow::bail!(
            "--experiment defines axes and networks; leave it out, or the flags for them"
        ),
        (Some(names), false) => names.clone(),
        (None, true) => Vec::new(),
        (None, false) => BuiltInExperiment::DEFAULT
            .iter()
            .map(|experiment| experiment.name().to_owned())
            .collect(),
    };
    let mut selection =
        Selection { experiments: Vec::new(), middleboxes: None, stalls: None, restarts: 0 };
    for name in names {
        if name == MIDDLEBOX {
            selection.middleboxes = Some(MiddleboxConfig::new(servers.clone()));
        } else if name == STALL {
            selection.stalls = Some(StallConfig::new(samples.unwrap_or(STALL_ATTEMPTS)));
        } else if name == COLD_START {
            selection.restarts = samples.unwrap_or(RESTARTS);
        } else {
            let built_in: BuiltInExperiment = name
                .parse()
                .map_err(|error| anyhow::anyhow!("{error}, {MIDDLEBOX}, {STALL}, {COLD_START}"))?;
            selection.experiments.push(built_in.experiment(&servers, samples)?);
        }
    }
    if custom_matrix {
        selection.experiments.push(matrix(args, servers, samples)?);
    }
    Ok(selection)
}

/// The experiments without cells.
const MIDDLEBOX: &str = "middlebox";
const STALL: &str = "stall";
const COLD_START: &str = "cold-start";

/// Fetches for each row of the experiment `stall`. Some of them wait for seconds.
const STALL_ATTEMPTS: usize = 5;

/// Restarts for each way of keeping ticket keys.
const RESTARTS: usize = 10;

/// Every combination of the axes on the command line.
fn matrix(
    args: &LabArgs,
    servers: Vec<ServerKind>,
    samples: Option<usize>,
) -> anyhow::Result<Experiment> {
    let axes = &args.axes;
    let (transports, http) = transports_and_http(args);
    Ok(Experiment {
        name: "matrix".to_owned(),
        title: "axes from flags".to_owned(),
        profiles: profiles(args, &DEFAULT_RTTS)?,
        axes: Axes {
            servers,
            clients: args.client.clone().unwrap_or_else(|| vec![ClientKind::Firstflight]),
            connections: ConnectionAxes {
                transports,
                workloads: axes.workload.clone().unwrap_or_else(|| Workload::ALL.to_vec()),
                versions: axes.tls.clone().unwrap_or_else(|| Version::ALL.to_vec()),
                kinds: axes.kind.clone().unwrap_or_else(|| {
                    vec![HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt]
                }),
                tfo: axes.tfo.clone().unwrap_or_else(|| vec![false, true]),
                tokens: axes.token.clone().unwrap_or_else(|| vec![false]),
                http,
                groups: axes.group.clone().unwrap_or_else(|| vec![Group::X25519]),
                ciphers: args.cipher.clone().unwrap_or_else(|| vec![CipherSuite::Negotiated]),
                certificates: args
                    .certificate
                    .clone()
                    .unwrap_or_else(|| vec![CertificateKind::EcdsaP256]),
                compressions: args.certificate_compression.clone().unwrap_or_else(|| vec![false]),
                sizes: args.size.clone().unwrap_or_else(|| vec![ResponseSize::OneKib]),
            },
        },
        samples: samples.unwrap_or(100),
        control: true,
    })
}

/// The transports and the HTTP versions. If one flag is missing, it follows from the other.
fn transports_and_http(args: &LabArgs) -> (Vec<Transport>, Vec<HttpVersion>) {
    match (&args.axes.transport, &args.axes.http) {
        (Some(transports), Some(http)) => (transports.clone(), http.clone()),
        (Some(transports), None) => (transports.clone(), default_http(transports)),
        (None, Some(http)) => {
            let is_used =
                |transport: &Transport| http.iter().any(|http| http.transport() == *transport);
            (Transport::ALL.into_iter().filter(is_used).collect(), http.clone())
        }
        (None, None) => {
            let tls_13 = |tls: &Vec<Version>| tls.contains(&Version::Tls13);
            // Third-party clients support one transport only, and QUIC requires TLS 1.3.
            let is_used = |transport: &Transport| {
                let supports =
                    |client: &ClientKind| client.transport().is_none_or(|only| only == *transport);
                args.client.as_ref().is_none_or(|clients| clients.iter().any(supports))
                    && (*transport == Transport::Tcp || args.axes.tls.as_ref().is_none_or(tls_13))
            };
            let transports: Vec<Transport> = Transport::ALL.into_iter().filter(is_used).collect();
            let http = default_http(&transports);
            (transports, http)
        }
    }
}

/// The networks, by name, by round-trip time or from a file; `default` if none is given.
pub(super) fn profiles(args: &LabArgs, default: &[&str]) -> anyhow::Result<Vec<Profile>> {
    let mut profiles: Vec<Profile> =
        args.rtt.iter().flatten().map(|rtt| Profile::plain(*rtt)).collect();
    let named = args.profile.as_deref().unwrap_or_default();
    let read = |name: &String| match name.ends_with(".toml") {
        true => Profile::read(Path::new(name)),
        false => Ok(Vec::new()),
    };
    let files = named.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let from_files = distinct(files.concat())?;
    for (name, file) in named.iter().zip(files) {
        match name.as_str() {
            "all" => profiles.extend(Profile::networks()),
            name if name.ends_with(".toml") => {
                profiles.extend(default_networks(name, file, named)?);
            }
            name => profiles.push(Profile::find(name, &from_files)?),
        }
    }
    if profiles.is_empty() {
        profiles = default.iter().map(|rtt| Profile::parse(rtt)).collect::<Result<_, _>>()?;
    }
    distinct(profiles)
}

/// Removes duplicate profiles.
///
/// # Errors
/// If two different profiles have the same name: figures are recorded by the name of their network.
fn distinct(profiles: Vec<Profile>) -> anyhow::Result<Vec<Profile>> {
    let mut distinct: Vec<Profile> = Vec::new();
    for profile in profiles {
        match distinct.iter().find(|other| other.name == profile.name) {
            None => distinct.push(profile),
            Some(other) if *other == profile => {}
            Some(_) => anyhow::bail!(
                "two different profiles have the name {:?}; rename one of them",
                profile.name
            ),
        }
    }
    Ok(distinct)
}

/// The networks that a file adds by default: all of them, or none if the list names one of the
/// file's profiles.
fn default_networks(
    file: &str,
    profiles: Vec<Profile>,
    listed: &[String],
) -> anyhow::Result<Vec<Profile>> {
    let names = listed.iter().filter(|name| !name.ends_with(".toml"));
    let mut parts = names.flat_map(|name| name.split('+').map(str::trim));
    if parts.any(|part| profiles.iter().any(|profile| profile.name == part)) {
        return Ok(Vec::new());
    }
    let is_addition = |profile: &Profile| profile.kind == ProfileKind::Addition;
    let (additions, networks): (Vec<_>, Vec<_>) = profiles.into_iter().partition(is_addition);
    match (networks.is_empty(), additions.first()) {
        (false, _) => Ok(networks),
        (true, None) => anyhow::bail!("{file} has no profile; add a table [profile.NAME]"),
        (true, Some(Profile { name, .. })) => anyhow::bail!(
            "{file} has only additions, no network; say what to add them to, as in \
             --profile {file},cable+{name}"
        ),
    }
}

const DEFAULT_RTTS: [&str; 4] = ["200", "20", "2", "0.2"];

/// The servers by name, including those of --server-cmd.
pub(super) fn servers(
    names: &Option<Vec<String>>,
    commands: &[String],
) -> anyhow::Result<Vec<ServerKind>> {
    let commands = ServerKind::commands(commands)?;
    let Some(names) = names else {
        let nginx = ServerKind::Nginx;
        let others = nginx.installed().then_some(nginx);
        let default_servers = std::iter::once(ServerKind::Firstflight).chain(commands.clone());
        return Ok(default_servers.chain(others.filter(|_| commands.is_empty())).collect());
    };
    let mut servers = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => servers.extend(ServerKind::all_installed()),
            name => match commands.iter().find(|command| command.name() == name) {
                Some(command) => servers.push(*command),
                None => servers.push(name.parse()?),
            },
        }
    }
    let mut unique = Vec::new();
    for server in servers.into_iter().chain(commands) {
        if !unique.contains(&server) {
            unique.push(server);
        }
    }
    Ok(unique)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tests::parse;

    /// The names of the networks that a list selects, in a directory with these profile files.
    fn selected(list: &str) -> anyhow::Result<Vec<String>> {
        let dir = tempfile::tempdir()?;
        for (file, text) in [
            ("office.toml", "[profile.office]\nrtt_ms = 12\n[profile.annex]\nrtt_ms = 14\n"),
            (
                "home.toml",
                "[profile.home]\nrtt_ms = 9\n[profile.vpn]\nrtt_ms = 0\nkind = \"addition\"\n",
            ),
            ("copy.toml", "[profile.annex]\nrtt_ms = 14\n"),
            ("old.toml", "[profile.office]\nrtt_ms = 50\n"),
            ("addition.toml", "[profile.proxy]\nrtt_ms = 1\nkind = \"addition\"\n"),
            ("empty.toml", ""),
        ] {
            std::fs::write(dir.path().join(file), text)?;
        }
        let path = |name: &str| match name.ends_with(".toml") {
            true => dir.path().join(name).display().to_string(),
            false => name.to_owned(),
        };
        let list: Vec<String> = list.split(',').map(path).collect();
        let profiles = profiles(&parse(&["--profile", &list.join(",")])?, &["2"])?;
        Ok(profiles.into_iter().map(|profile| profile.name).collect())
    }

    #[test]
    fn a_file_is_measured_with_all_its_networks_unless_some_of_its_profiles_are_named() {
        for (list, expected) in [
            ("office.toml", &["office", "annex"][..]),
            ("office.toml,home.toml", &["office", "annex", "home"]),
            ("office.toml,20", &["office", "annex", "20 ms"]),
            ("20,office.toml,lan", &["20 ms", "office", "annex", "lan"]),
            ("office.toml,annex", &["annex"]),
            ("home.toml", &["home"]),
            ("home.toml,cable+vpn", &["cable+vpn"]),
            ("home.toml,office.toml,home+vpn", &["office", "annex", "home+vpn"]),
            ("addition.toml,20+proxy", &["20 ms+proxy"]),
        ] {
            assert_eq!(selected(list).unwrap(), expected, "{list}");
        }
    }

    #[test]
    fn a_network_is_measured_once_and_names_are_unique() {
        assert_eq!(selected("20,office.toml,copy.toml,20").unwrap(), ["20 ms", "office", "annex"]);
        let profiles = profiles(&parse(&["--rtt", "20", "--profile", "20"]).unwrap(), &[]).unwrap();
        assert_eq!(profiles.len(), 1);
        for list in ["office.toml,old.toml", "office.toml,old.toml,office"] {
            let refusal = selected(list).unwrap_err().to_string();
            assert!(refusal.contains("the name \"office\""), "{refusal}");
        }
    }

    #[test]
    fn a_file_without_a_network_is_not_silently_left_out() {
        for list in ["addition.toml", "addition.toml,20", "home.toml,addition.toml"] {
            let refusal = selected(list).unwrap_err().to_string();
            assert!(refusal.contains("addition.toml,cable+proxy"), "{refusal}");
        }
        let refusal = selected("empty.toml").unwrap_err().to_string();
        assert!(refusal.contains("empty.toml has no profile"), "{refusal}");
    }
}
