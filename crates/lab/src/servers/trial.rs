//! What a server can do, found by doing it: a few connections before the measuring, without delay.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_client::{Answer, ClientError, Request, Target, connect_tls, http_get};
use firstflight_tls::{
    CipherPolicy, ConnectOptions, Connector, ConnectorConfig, EarlyData, Session, Trust, Version,
};
use tokio::net::TcpStream;

use super::trial_quic::{self, TRIAL_TIMEOUT};
use super::{Ability, HOST};
use crate::{Group, Http, LabError, Size};

/// A listener under trial. Its functions block, and are to be called in a namespace from which the
/// listener is reached.
pub(super) struct Trial {
    address: SocketAddr,
    trust: PathBuf,
}

/// What a connection of the trial brings along.
#[derive(Clone, Copy)]
struct Try<'a> {
    version: Version,
    http: Http,
    groups: &'a str,
    size: Size,
    session: Option<&'a Session>,
    early_data: bool,
    fast_open: bool,
}

impl Try<'_> {
    const fn new(version: Version) -> Self {
        Self {
            version,
            http: Http::One,
            groups: CLASSIC,
            size: Size::OneKib,
            session: None,
            early_data: false,
            fast_open: false,
        }
    }
}

/// What every server is thought to have; TLS 1.0 and 1.1 need P-256 for the certificate.
const CLASSIC: &str = "X25519:P-256";

impl Trial {
    pub(super) fn new(address: SocketAddr, trust: &Path) -> Self {
        Self { address, trust: trust.to_owned() }
    }

    /// Whether a plain GET is answered under the certificate of this listener; if not, why not.
    pub(super) fn presents(&self) -> Result<Result<(), String>, LabError> {
        runtime()?.block_on(async {
            let mut why = String::new();
            for version in [Version::Tls13, Version::Tls12] {
                match self.get(Try::new(version)).await {
                    Ok(_) => return Ok(Ok(())),
                    Err(error) => why = error.to_string(),
                }
            }
            Ok(Err(format!("it does not answer a GET of {}: {why}", Size::OneKib.path())))
        })
    }

    /// Tries everything else, with these sizes.
    pub(super) fn all(&self, sizes: &[Size]) -> Result<Vec<(Ability, bool)>, LabError> {
        runtime()?.block_on(async {
            let mut found = Vec::new();
            for version in Version::ALL {
                self.version(version, &mut found).await;
            }
            let newest = match found.contains(&(Ability::Speaks(Version::Tls13), true)) {
                true => Try::new(Version::Tls13),
                false => Try::new(Version::Tls12),
            };
            for group in Group::ALL {
                let can = self.get(Try { groups: group.name(), ..newest }).await.is_ok();
                found.push((Ability::Exchanges(group), can));
            }
            for &size in sizes {
                let response = self.get(Try { size, ..newest }).await;
                let can = response.is_ok_and(|response| response.body.len() == size.bytes());
                found.push((Ability::Serves(size), can));
            }
            let second = self.get(Try { http: Http::Two, ..newest }).await;
            let chosen = second.ok().and_then(|response| response.facts?.alpn);
            found.push((Ability::Http2, chosen.as_deref() == Some(Http::Two.alpn())));
            found.push((Ability::FastOpen, self.fast_open(newest).await));
            found.push((Ability::SideBySide, self.side_by_side(newest).await));
            found.extend(trial_quic::all(self.address, &self.trust).await);
            Ok(found)
        })
    }

    /// Full, resumed and, in TLS 1.3, with early data.
    async fn version(&self, version: Version, found: &mut Vec<(Ability, bool)>) {
        let sessions = match self.get(Try::new(version)).await {
            Ok(response) => Some(sessions(response).await),
            Err(_) => None,
        };
        found.push((Ability::Speaks(version), sessions.is_some()));
        let Some(mut sessions) = sessions else { return };
        let mut resumed = false;
        if let Some(session) = sessions.pop() {
            let response = self.get(Try { session: Some(&session), ..Try::new(version) }).await;
            resumed =
                response.is_ok_and(|response| response.facts.is_some_and(|facts| facts.resumed));
        }
        found.push((Ability::Resumes(version), resumed));
        if version == Version::Tls13 {
            found.push((Ability::EarlyData, self.early_data(sessions).await));
        }
    }

    async fn early_data(&self, mut sessions: Vec<Session>) -> bool {
        if sessions.is_empty() {
            // The server issues one ticket at a time.
            if let Ok(response) = self.get(Try::new(Version::Tls13)).await {
                sessions = self::sessions(response).await;
            }
        }
        let Some(session) = sessions.pop().filter(Session::early_data_capable) else {
            return false;
        };
        let early = Try { session: Some(&session), early_data: true, ..Try::new(Version::Tls13) };
        let facts = self.get(early).await.ok().and_then(|response| response.facts);
        facts.is_some_and(|facts| facts.early_data == EarlyData::Accepted)
    }

    /// The first connection fetches the cookie (RFC 7413 section 3), the second uses it.
    async fn fast_open(&self, plain: Try<'_>) -> bool {
        let mut used = false;
        for _ in 0..2 {
            let response = self.get(Try { fast_open: true, ..plain }).await;
            used = response.is_ok_and(|response| response.tcp.is_some_and(|tcp| tcp.syn_data));
        }
        used
    }

    /// Whether it answers while another connection says nothing.
    async fn side_by_side(&self, plain: Try<'_>) -> bool {
        let Ok(_silent) = TcpStream::connect(self.address).await else { return false };
        tokio::time::timeout(SOON, self.get(plain)).await.is_ok_and(|response| response.is_ok())
    }

    async fn get(&self, what: Try<'_>) -> Result<Answer, ClientError> {
        let mut config = ConnectorConfig::new(Trust::File(self.trust.clone()));
        (config.min_version, config.max_version) = (what.version, what.version);
        config.ciphers = CipherPolicy { groups: Some(what.groups.into()), ..Default::default() };
        config.ed25519 = true;
        config.alpn = vec![what.http.alpn().to_vec()];
        let connector = Connector::new(config)?;
        let offer = ConnectOptions {
            host: HOST.to_owned(),
            session: what.session.cloned(),
            early_data: what.early_data,
        };
        let target = format!("https://{HOST}{}", what.size.path());
        let request = Request::get(Target::parse(&target)?);
        let whole = async {
            let connected = connect_tls(&connector, &offer, self.address, what.fast_open).await?;
            http_get(connected, &request, 2 * Size::OneMib.bytes()).await
        };
        let timeout =
            ClientError::Timeout { phase: "a connection of the trial", after: TRIAL_TIMEOUT };
        let response = tokio::time::timeout(TRIAL_TIMEOUT, whole).await.unwrap_or(Err(timeout))?;
        match response.head.status.is_success() {
            true => Ok(response),
            false => Err(ClientError::WeirdReply(format!("status {}", response.head.status))),
        }
    }
}

/// The sessions of a connection, which often come before the response and seldom much later.
async fn sessions(mut response: Answer) -> Vec<Session> {
    match response.sessions.is_empty() {
        true => response.exchange.close(TICKETS).await,
        false => std::mem::take(&mut response.sessions),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, LabError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| LabError::System { what: "start the client of the trial", source })
}

/// How soon a server answers that serves several connections at a time.
const SOON: Duration = Duration::from_secs(1);

/// How long a ticket may come after the response.
const TICKETS: Duration = Duration::from_millis(200);
