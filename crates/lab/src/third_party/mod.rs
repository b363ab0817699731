//! Clients of other makes, as processes of their own. They say nothing of themselves that counts:
//! what a connection was and how long it took is for its packets to say.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use firstflight_emulator::{Namespace, Process};
use firstflight_tls::{KeyLog, KeyLogLines};

use firstflight_samples::RequestedConnection;

use crate::servers::{HOST, find};
use crate::{Client, Http, Kind, Workload};

/// The clients of a run, and what they keep from one connection for the next.
pub(crate) struct ThirdParty<'a> {
    /// Where they run.
    pub namespace: &'a Namespace,
    /// Whom they trust, as PEM.
    pub trust: PathBuf,
    /// A directory for what they keep.
    pub directory: PathBuf,
    /// Where their secrets go, for the packets to be read.
    pub key_log: &'a KeyLogLines,
    /// So that each connection's secrets have a file of their own.
    pub connections: RefCell<usize>,
}

/// What a connection brings, and whether it stays until it has something for the next one.
struct Call<'a> {
    client: Client,
    address: SocketAddr,
    asked: &'a RequestedConnection,
    state: &'a Path,
    keys: &'a Path,
    /// Only to fetch a session and a token.
    fetches: bool,
}

/// Why a client cannot connect so; `None`: it can.
pub(crate) fn cannot(client: Client, asked: &RequestedConnection) -> Option<&'static str> {
    if client == Client::Firstflight {
        return None;
    }
    if asked.http != Http::Three || asked.workload != Workload::Get {
        return Some("without anything but HTTP/3: it is a client of HTTP/3 alone");
    }
    if asked.kind == Kind::Refused {
        return Some("without refused: its sessions cannot be made to claim another age");
    }
    if asked.group != crate::Group::X25519 {
        return Some("with X25519 alone: its list of groups stays as it is");
    }
    match client {
        Client::Ngtcp2 if find("gtlsclient").is_none() => {
            Some("not at all: install it (apt-get install ngtcp2-client)")
        }
        Client::Ngtcp2 if asked.token => {
            Some("without address tokens: version 0.12 takes its token file for empty")
        }
        Client::Aioquic if aioquic().is_none() => {
            Some("not at all: install it (scripts/install-deps test)")
        }
        _ => None,
    }
}

impl ThirdParty<'_> {
    /// Makes one connection, and before it one more if it needs what is not there. Gives the client
    /// random, by which its packets are known, and when it was started.
    ///
    /// # Errors
    /// A sentence: the client did not run, failed or hung.
    pub(crate) async fn connect(
        &self,
        client: Client,
        asked: &RequestedConnection,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<Vec<u8>, String> {
        let state = self.directory.join(format!("{client}-{}", address.ip()));
        fs::create_dir_all(&state).map_err(|error| error.to_string())?;
        if asked.kind != Kind::Full && !has_what_it_needs(client, &state, asked) {
            let first = RequestedConnection { kind: Kind::Full, token: false, ..*asked };
            self.run(client, &first, address, &state, (limit, true)).await?;
        }
        self.run(client, asked, address, &state, (limit, false)).await
    }

    async fn run(
        &self,
        client: Client,
        asked: &RequestedConnection,
        address: SocketAddr,
        state: &Path,
        (limit, fetches): (Duration, bool),
    ) -> Result<Vec<u8>, String> {
        let words = |error: &dyn std::fmt::Display| format!("{client} failed: {error}");
        let number = self.connections.replace_with(|number| *number + 1);
        let keys = self.directory.join(format!("keys-{number}"));
        let call = Call { client, address, asked, state, keys: &keys, fetches };
        let command = self.command(&call).map_err(|error| words(&error))?;
        let process = self.namespace.spawn_child(command).map_err(|error| words(&error))?;
        let ended = wait(&process, &call, limit).await.map_err(|error| words(&error));
        let secrets = fs::read_to_string(&keys).unwrap_or_default();
        let _ = fs::remove_file(&keys);
        secrets.lines().for_each(|line| self.key_log.line(line));
        ended?;
        client_random(&secrets).ok_or_else(|| words(&"it logged no secrets"))
    }

    fn command(&self, call: &Call<'_>) -> io::Result<Command> {
        let Call { client, address, asked, state, keys, fetches } = call;
        let mut command = match client {
            Client::Aioquic => {
                let script = self.directory.join("get_by_aioquic.py");
                fs::write(&script, include_str!("get_by_aioquic.py"))?;
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", aioquic().unwrap_or_default()).arg(script);
                command.args([address.ip().to_string(), address.port().to_string()]);
                command.args([HOST, asked.size.path()]).arg(&self.trust).arg(state).arg(keys);
                command.args((asked.kind != Kind::Full).then_some("resume"));
                command.args(asked.kind.is_early().then_some("early"));
                command.args(asked.token.then_some("token"));
                command
            }
            _ => {
                let mut command = Command::new("gtlsclient");
                command.env("SSLKEYLOGFILE", keys).current_dir(state);
                command.args(["--quiet", "--no-quic-dump", "--no-http-dump"]);
                if *fetches || asked.kind != Kind::Full {
                    command.args(["--session-file=session", "--tp-file=parameters"]);
                }
                command.args((!asked.kind.is_early()).then_some("--disable-early-data"));
                command.args((!fetches).then_some("--exit-on-all-streams-close"));
                command.args([address.ip().to_string(), address.port().to_string()]);
                command.arg(format!("https://{HOST}{}", asked.size.path()));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// Waits for the end of a client; one that only fetches is ended when it has what it was for.
async fn wait(process: &Process, call: &Call<'_>, limit: Duration) -> Result<(), String> {
    let until = Instant::now() + limit;
    loop {
        match process.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it ended with {status}")),
            Ok(None) => {}
            Err(error) => return Err(error.to_string()),
        }
        let fetched = call.client == Client::Ngtcp2
            && call.fetches
            && has_what_it_needs(
                call.client,
                call.state,
                &RequestedConnection { kind: Kind::ZeroRtt, ..*call.asked },
            );
        if fetched || Instant::now() > until {
            // It stays until its idle timeout otherwise.
            let _ = process.kill();
            return if fetched { Ok(()) } else { Err(format!("it took longer than {limit:?}")) };
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether its files have what a connection of this kind brings.
fn has_what_it_needs(client: Client, state: &Path, asked: &RequestedConnection) -> bool {
    let there = |name: &str| fs::metadata(state.join(name)).is_ok_and(|file| file.len() > 0);
    there("session")
        && (client != Client::Ngtcp2 || there("parameters"))
        && (!asked.token || there("token"))
}

/// The client random in a key log of one connection.
fn client_random(secrets: &str) -> Option<Vec<u8>> {
    let line = secrets.lines().find(|line| !line.starts_with('#'))?;
    let digits = line.split(' ').nth(1)?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Where aioquic is, as `scripts/install-deps` puts it.
fn aioquic() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    let tools = cache.join("firstflight/tools").read_dir().ok()?.flatten();
    let named = tools.filter(|entry| entry.file_name().to_string_lossy().starts_with("aioquic-"));
    named.map(|entry| entry.path()).filter(|path| path.join("aioquic").is_dir()).max()
}

/// How often to look whether a client has ended.
const LOOK: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_the_client_random_of_its_key_log() {
        let log = "# a comment\nCLIENT_HANDSHAKE_TRAFFIC_SECRET 00ff10 abcd\nEXPORTER_SECRET x y\n";
        assert_eq!(client_random(log), Some(vec![0x00, 0xff, 0x10]));
        assert_eq!(client_random(""), None);
        assert_eq!(client_random("CLIENT_RANDOM 0g"), None);
    }
}
