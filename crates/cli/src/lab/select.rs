//! Which experiments the flags ask for.

use std::path::Path;

use firstflight_emulator::Profile;
use firstflight_lab::{
    Axes, BuiltInExperiment, CertificateKind, ClientKind, ConnectionAxes, Experiment, Group,
    HandshakeKind, HttpVersion, MiddleboxConfig, ResponseSize, ServerKind, Transport, Workload,
};
use firstflight_tls::Version;

use super::LabArgs;

/// What a run consists of.
pub(super) struct Selection {
    pub(super) experiments: Vec<Experiment>,
    pub(super) middleboxes: Option<MiddleboxConfig>,
}

/// Reads servers and profiles, and draws up the experiments.
///
/// # Errors
/// A sentence with what is allowed where a name is unknown or flags contradict each other.
pub(super) fn select(args: &LabArgs) -> anyhow::Result<Selection> {
    let servers = servers(&args.server, &args.server_cmd)?;
    let samples = args.samples.map(|samples| samples as usize);
    let by_hand = args.chooses_axes();
    let names = match (&args.experiment, by_hand) {
        (Some(_), true) => anyhow::bail!(
            "--experiment brings its own axes and networks; leave it out to choose them by hand"
        ),
        (Some(names), false) => names.clone(),
        (None, true) => Vec::new(),
        (None, false) => {
            BuiltInExperiment::DEFAULT.iter().map(|one| one.name().to_owned()).collect()
        }
    };
    let mut selection = Selection { experiments: Vec::new(), middleboxes: None };
    for name in names {
        if name == MIDDLEBOX {
            selection.middleboxes = Some(MiddleboxConfig::new(servers.clone()));
        } else {
            let built_in: BuiltInExperiment =
                name.parse().map_err(|error| anyhow::anyhow!("{error}, {MIDDLEBOX}"))?;
            selection.experiments.push(built_in.experiment(&servers, samples)?);
        }
    }
    if by_hand {
        selection.experiments.push(matrix(args, servers, samples)?);
    }
    Ok(selection)
}

/// The experiment that enters no cell.
const MIDDLEBOX: &str = "middlebox";

/// Every combination of the axes on the command line.
fn matrix(
    args: &LabArgs,
    servers: Vec<ServerKind>,
    samples: Option<usize>,
) -> anyhow::Result<Experiment> {
    let axes = &args.axes;
    let (transports, http) = carriers(args);
    Ok(Experiment {
        name: "matrix".to_owned(),
        title: "axes chosen by hand".to_owned(),
        profiles: profiles(args, &DEFAULT_RTTS)?,
        axes: Axes {
            servers,
            clients: args.client.clone().unwrap_or_else(|| vec![ClientKind::Firstflight]),
            connections: ConnectionAxes {
                transports,
                workloads: args.workload.clone().unwrap_or_else(|| Workload::ALL.to_vec()),
                versions: axes.tls.clone().unwrap_or_else(|| Version::ALL.to_vec()),
                kinds: axes.kind.clone().unwrap_or_else(|| {
                    vec![HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt]
                }),
                tfo: axes.tfo.clone().unwrap_or_else(|| vec![false, true]),
                tokens: axes.token.clone().unwrap_or_else(|| vec![false]),
                http,
                groups: axes.group.clone().unwrap_or_else(|| vec![Group::X25519]),
                certificates: args
                    .certificate
                    .clone()
                    .unwrap_or_else(|| vec![CertificateKind::EcdsaP256]),
                sizes: args.size.clone().unwrap_or_else(|| vec![ResponseSize::OneKib]),
            },
        },
        samples: samples.unwrap_or(100),
        control: true,
    })
}

/// What TLS runs over, and the HTTP versions: what one flag leaves open follows from the other.
fn carriers(args: &LabArgs) -> (Vec<Transport>, Vec<HttpVersion>) {
    let http = |transports: &[Transport]| {
        let usual = |transport: &Transport| match transport {
            Transport::Tcp => HttpVersion::One,
            Transport::Quic => HttpVersion::Three,
        };
        transports.iter().map(usual).collect()
    };
    match (&args.transport, &args.axes.http) {
        (Some(transports), Some(http)) => (transports.clone(), http.clone()),
        (Some(transports), None) => (transports.clone(), http(transports)),
        (None, Some(http)) => {
            let used = |one: &Transport| http.iter().any(|http| http.transport() == *one);
            (Transport::ALL.into_iter().filter(used).collect(), http.clone())
        }
        (None, None) => {
            let tls_13 = |tls: &Vec<Version>| tls.contains(&Version::Tls13);
            // Somebody else's client speaks HTTP/3 alone, and QUIC has TLS 1.3 inside.
            let ours =
                args.client.as_ref().is_none_or(|all| all.contains(&ClientKind::Firstflight));
            let used = |one: &Transport| match one {
                Transport::Tcp => ours,
                Transport::Quic => args.axes.tls.as_ref().is_none_or(tls_13),
            };
            let transports: Vec<Transport> = Transport::ALL.into_iter().filter(used).collect();
            let http = http(&transports);
            (transports, http)
        }
    }
}

/// The networks: by name, by round-trip time, or from a file; where none is named, these.
pub(super) fn profiles(args: &LabArgs, default: &[&str]) -> anyhow::Result<Vec<Profile>> {
    let mut own = Vec::new();
    let mut profiles: Vec<Profile> =
        args.rtt.iter().flatten().map(|r| Profile::plain(*r)).collect();
    let named = args.profile.as_deref().unwrap_or_default();
    for name in named.iter().filter(|name| name.ends_with(".toml")) {
        own.extend(Profile::read(Path::new(name))?);
    }
    for name in named {
        match name.as_str() {
            "all" => profiles.extend(Profile::networks()),
            file if file.ends_with(".toml") && named.len() == 1 => profiles.extend(own.clone()),
            file if file.ends_with(".toml") => {}
            name => profiles.push(Profile::find(name, &own)?),
        }
    }
    if profiles.is_empty() {
        profiles = default.iter().map(|rtt| Profile::parse(rtt)).collect::<Result<_, _>>()?;
    }
    Ok(profiles)
}

const DEFAULT_RTTS: [&str; 4] = ["200", "20", "2", "0.2"];

/// The servers by name, commands among them.
pub(super) fn servers(
    names: &Option<Vec<String>>,
    commands: &[String],
) -> anyhow::Result<Vec<ServerKind>> {
    let commands = ServerKind::commands(commands)?;
    let Some(names) = names else {
        let nginx = ServerKind::Nginx;
        let others = nginx.installed().then_some(nginx);
        let given = std::iter::once(ServerKind::Firstflight).chain(commands.clone());
        return Ok(given.chain(others.filter(|_| commands.is_empty())).collect());
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
    let mut once = Vec::new();
    for server in servers.into_iter().chain(commands) {
        if !once.contains(&server) {
            once.push(server);
        }
    }
    Ok(once)
}
