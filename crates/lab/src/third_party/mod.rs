//! Third-party clients, which run as processes. Their connections are classified and timed by
//! packets, never by what the clients report.

mod tcp;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use firstflight_emulator::{Namespace, Process};
use firstflight_tls::{KeyLog, KeyLogLines};
use futures_util::future::{OptionFuture, join};

use firstflight_samples::RequestedConnection;

use crate::servers::{HOST, find};
use crate::{CipherSuite, ClientKind, HandshakeKind, HttpVersion, Transport, Workload};

/// The third-party clients of a run, and the state that they keep between connections.
pub(crate) struct ThirdPartyClients<'a> {
    /// The namespace in which they run.
    pub namespace: &'a Namespace,
    /// The trusted certificates, as PEM.
    pub trust: PathBuf,
    /// The directory of their state.
    pub directory: PathBuf,
    /// Receives their TLS secrets, which decrypt their packets.
    pub key_log: &'a KeyLogLines,
    /// The number of connections so far. Each logs its secrets to a separate file.
    pub connections: RefCell<usize>,
}

/// One run of a client.
struct Invocation<'a> {
    client: ClientKind,
    address: SocketAddr,
    requested: &'a RequestedConnection,
    state: &'a Path,
    keys: &'a Path,
    /// Whether it only fetches a session and a token for later connections.
    fetch_only: bool,
}

/// Says why a client cannot make a connection. Returns `None` if it can.
pub(crate) fn unsupported_reason(
    client: ClientKind,
    requested: &RequestedConnection,
) -> Option<&'static str> {
    if client == ClientKind::Firstflight {
        return None;
    }
    if requested.kind == HandshakeKind::Refused {
        return Some("without refused: its sessions cannot be made to claim another age");
    }
    if requested.group != crate::Group::X25519 {
        return Some("with X25519 only: its list of groups is not configurable here");
    }
    if requested.cipher != CipherSuite::Negotiated {
        return Some("with any cipher only: its list of ciphers is not configurable here");
    }
    if requested.compression {
        return Some("without certificate compression: the lab does not make it offer any");
    }
    if client.transport() == Some(Transport::Tcp) {
        return tcp::unsupported_reason(client, requested);
    }
    if requested.http != HttpVersion::Three || requested.workload != Workload::Get {
        return Some("without anything but HTTP/3: it is a client for HTTP/3 only");
    }
    match client {
        ClientKind::Ngtcp2 if find("gtlsclient").is_none() => {
            Some("not at all: install it (apt-get install ngtcp2-client)")
        }
        ClientKind::Ngtcp2 if requested.token => {
            Some("without address tokens: version 0.12 takes its token file for empty")
        }
        ClientKind::Aioquic if aioquic().is_none() => {
            Some("not at all: install it (scripts/install-deps test)")
        }
        _ => None,
    }
}

impl ThirdPartyClients<'_> {
    /// Makes a connection, after fetching the session and token that it needs. Returns the client
    /// random, by which its packets are found.
    ///
    /// # Errors
    /// A sentence, if the client could not be started, failed or timed out.
    pub(crate) async fn connect(
        &self,
        client: ClientKind,
        requested: &RequestedConnection,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<Vec<u8>, String> {
        // A session belongs to its server and version.
        let (ip, port) = (address.ip(), address.port());
        let state =
            self.directory.join(format!("{client}-{ip}-{port}-{}", requested.version.name()));
        fs::create_dir_all(&state).map_err(|error| error.to_string())?;
        if requested.kind != HandshakeKind::Full && !has_saved_state(client, &state, requested) {
            let first =
                RequestedConnection { kind: HandshakeKind::Full, token: false, ..*requested };
            self.run(client, &first, address, &state, (limit, true)).await?;
        }
        self.run(client, requested, address, &state, (limit, false)).await
    }

    async fn run(
        &self,
        client: ClientKind,
        requested: &RequestedConnection,
        address: SocketAddr,
        state: &Path,
        (limit, fetch_only): (Duration, bool),
    ) -> Result<Vec<u8>, String> {
        let describe = |error: &dyn std::fmt::Display| format!("{client} failed: {error}");
        let number = self.connections.replace_with(|number| *number + 1);
        let keys = self.directory.join(format!("keys-{number}"));
        let invocation = Invocation { client, address, requested, state, keys: &keys, fetch_only };
        let (command, console) = self.command(&invocation).map_err(|error| describe(&error))?;
        let process = self.namespace.spawn_child(command).map_err(|error| describe(&error))?;
        let console = OptionFuture::from(console.map(tcp::Console::run));
        let (ended, _) = join(wait(&process, &invocation, limit), console).await;
        let ended = ended.map_err(|error| describe(&error));
        let secrets = fs::read_to_string(&keys).unwrap_or_default();
        let _ = fs::remove_file(&keys);
        secrets.lines().for_each(|line| self.key_log.line(line));
        ended?;
        client_random(&secrets).ok_or_else(|| describe(&"it logged no secrets"))
    }

    fn command(&self, invocation: &Invocation<'_>) -> io::Result<(Command, Option<tcp::Console>)> {
        let Invocation { client, address, requested, state, keys, fetch_only } = invocation;
        if client.transport() == Some(Transport::Tcp) {
            return tcp::command(invocation, &self.trust);
        }
        let mut command = match client {
            ClientKind::Aioquic => {
                let script = self.directory.join("get_by_aioquic.py");
                fs::write(&script, include_str!("get_by_aioquic.py"))?;
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", aioquic().unwrap_or_default()).arg(script);
                command.args([address.ip().to_string(), address.port().to_string()]);
                command.args([HOST, requested.size.path()]).arg(&self.trust).arg(state).arg(keys);
                command.args((requested.kind != HandshakeKind::Full).then_some("resume"));
                command.args(requested.kind.is_early().then_some("early"));
                command.args(requested.token.then_some("token"));
                command
            }
            _ => {
                let mut command = Command::new("gtlsclient");
                command.env("SSLKEYLOGFILE", keys).current_dir(state);
                command.args(["--quiet", "--no-quic-dump", "--no-http-dump"]);
                if *fetch_only || requested.kind != HandshakeKind::Full {
                    command.args(["--session-file=session", "--tp-file=parameters"]);
                }
                command.args((!requested.kind.is_early()).then_some("--disable-early-data"));
                command.args((!fetch_only).then_some("--exit-on-all-streams-close"));
                command.args([address.ip().to_string(), address.port().to_string()]);
                command.arg(format!("https://{HOST}{}", requested.size.path()));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok((command, None))
    }
}

/// Waits until a client ends. Kills a client that only fetches state once it has saved the state.
async fn wait(
    process: &Process,
    invocation: &Invocation<'_>,
    limit: Duration,
) -> Result<(), String> {
    let until = Instant::now() + limit;
    loop {
        match process.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it ended with {status}")),
            Ok(None) => {}
            Err(error) => return Err(error.to_string()),
        }
        let fetched = invocation.client == ClientKind::Ngtcp2
            && invocation.fetch_only
            && has_saved_state(
                invocation.client,
                invocation.state,
                &RequestedConnection { kind: HandshakeKind::ZeroRtt, ..*invocation.requested },
            );
        if fetched || Instant::now() > until {
            // Otherwise it runs until its idle timeout.
            let _ = process.kill();
            return if fetched { Ok(()) } else { Err(format!("it took longer than {limit:?}")) };
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether its files hold the state that a connection needs.
fn has_saved_state(client: ClientKind, state: &Path, requested: &RequestedConnection) -> bool {
    let saved = |name: &str| fs::metadata(state.join(name)).is_ok_and(|file| file.len() > 0);
    matches!(client, ClientKind::Curl | ClientKind::GnuTls)
        || saved("session")
            && (client != ClientKind::Ngtcp2 || saved("parameters"))
            && (!requested.token || saved("token"))
}

/// The client random of the last connection in a key log.
fn client_random(secrets: &str) -> Option<Vec<u8>> {
    let line = secrets.lines().rfind(|line| !line.starts_with('#'))?;
    let digits = line.split(' ').nth(1)?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The directory in which `scripts/install-deps` has installed aioquic.
fn aioquic() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    let tools = cache.join("firstflight/tools").read_dir().ok()?.flatten();
    let named = tools.filter(|entry| entry.file_name().to_string_lossy().starts_with("aioquic-"));
    named.map(|entry| entry.path()).filter(|path| path.join("aioquic").is_dir()).max()
}

/// How often to check whether a client has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_client_random_is_read_from_the_key_log() {
        let log = "# a comment\nCLIENT_RANDOM 01 ab\nCLIENT_HANDSHAKE_TRAFFIC_SECRET 00ff10 abcd\n";
        assert_eq!(client_random(log), Some(vec![0x00, 0xff, 0x10]));
        assert_eq!(client_random(""), None);
        assert_eq!(client_random("CLIENT_RANDOM 0g"), None);
    }
}
