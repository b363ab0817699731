use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use firstflight_tls::{Session, Version};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{JarQuery, Origin, Ticket, Token, Transport, TrustId};

/// The contents of a jar, without files and clocks.
#[derive(Debug, Default)]
pub(super) struct Contents {
    entries: Vec<Entry>,
    tokens: Vec<TokenEntry>,
    unreadable: usize,
}

/// The stored form of a ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    scheme: String,
    host: String,
    port: u16,
    trust: String,
    alpn: Option<String>,
    version: String,
    early_data: bool,
    /// Seconds since the Unix epoch.
    issued: u64,
    expires: u64,
    /// The session's bytes in base64.
    session: String,
    /// Further host names that the session may be offered to, with wildcards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    further_names: Vec<String>,
    /// The server's transport parameters in base64; only a session for QUIC has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transport_parameters: Option<String>,
}

/// The stored form of an address token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TokenEntry {
    host: String,
    port: u16,
    trust: String,
    /// Seconds since the Unix epoch.
    received: u64,
    /// The token's bytes in base64.
    token: String,
}

/// The file format: a version, and entries that are parsed one by one.
#[derive(Serialize, Deserialize)]
struct JarFile<S, T> {
    version: u32,
    sessions: Vec<S>,
    tokens: Vec<T>,
}

const VERSION: u32 = 2;

/// Maximum number of tickets for one origin, transport and trust setting.
const MAX_SESSIONS_PER_ORIGIN: usize = 16;

/// Maximum number of tickets.
const MAX_SESSIONS: usize = 512;

/// Maximum number of address tokens for one origin and trust setting.
const MAX_TOKENS_PER_ORIGIN: usize = 4;

/// Maximum number of address tokens.
const MAX_TOKENS: usize = 256;

/// Maximum length of a session, in base64.
const MAX_SESSION_LENGTH: usize = 64 * 1024;

/// Maximum length of an address token or of transport parameters, in base64.
const MAX_FIELD_LENGTH: usize = 4096;

/// Maximum age of a ticket (RFC 8446 section 4.6.1: a week) and of a token, in seconds.
const MAX_AGE_SECONDS: u64 = 7 * 24 * 60 * 60;

impl Contents {
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file: JarFile<Json, Json> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            return Err(format!(
                "its format is version {}, and the supported version is {VERSION}",
                file.version
            ));
        }
        let total = file.sessions.len() + file.tokens.len();
        let entries: Vec<Entry> = parse_valid(file.sessions);
        let tokens: Vec<TokenEntry> = parse_valid(file.tokens);
        Ok(Self { unreadable: total - entries.len() - tokens.len(), entries, tokens })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let file = JarFile {
            version: VERSION,
            sessions: self.entries.iter().collect(),
            tokens: self.tokens.iter().collect(),
        };
        serde_json::to_vec(&file).expect("strings and numbers can always be written")
    }

    /// Returns the number of sessions in the file, including unreadable entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.unreadable
    }

    /// Returns the number of address tokens.
    pub(super) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets the unreadable entries, and returns their number.
    pub(super) fn drop_unreadable(&mut self) -> usize {
        std::mem::take(&mut self.unreadable)
    }

    pub(super) fn expire(&mut self, now: u64) {
        self.entries
            .retain(|entry| now < entry.expires.min(entry.issued.saturating_add(MAX_AGE_SECONDS)));
        self.tokens.retain(|token| now < token.received.saturating_add(MAX_AGE_SECONDS));
    }

    /// Adds an entry, replaces the same session, and drops the oldest entries above the limits.
    pub(super) fn add(&mut self, entry: Entry) {
        self.entries.retain(|old| old.session != entry.session);
        let shares_limit = |old: &Entry| {
            old.is_of(&entry.scheme, &entry.host, entry.port)
                && old.transport() == entry.transport()
                && old.trust == entry.trust
        };
        while self.entries.iter().filter(|old| shares_limit(old)).count() >= MAX_SESSIONS_PER_ORIGIN
        {
            self.drop_oldest(shares_limit);
        }
        while self.entries.len() >= MAX_SESSIONS {
            self.drop_oldest(|_| true);
        }
        self.entries.push(entry);
    }

    /// Takes out the newest matching entry; prefers entries that allow early data if requested.
    pub(super) fn take(
        &mut self,
        query: &JarQuery<'_>,
        transport: Transport,
        alpn: &[Vec<u8>],
    ) -> Option<Entry> {
        let (index, _) = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.transport() == transport && entry.fits(query, alpn))
            .max_by_key(|(index, entry)| {
                let exact_host = entry.host == query.origin.host;
                (query.early_data && entry.early_data, exact_host, entry.issued, *index)
            })?;
        Some(self.entries.remove(index))
    }

    /// Adds an address token, replaces the same token, and drops the oldest above the limits.
    pub(super) fn add_token(&mut self, token: TokenEntry) {
        self.tokens.retain(|old| old.token != token.token);
        let shares_limit = |old: &TokenEntry| {
            old.host == token.host && old.port == token.port && old.trust == token.trust
        };
        while self.tokens.iter().filter(|old| shares_limit(old)).count() >= MAX_TOKENS_PER_ORIGIN {
            self.drop_oldest_token(shares_limit);
        }
        while self.tokens.len() >= MAX_TOKENS {
            self.drop_oldest_token(|_| true);
        }
        self.tokens.push(token);
    }

    /// Takes out the newest token of an origin.
    pub(super) fn take_token(&mut self, origin: &Origin, trust: &TrustId) -> Option<TokenEntry> {
        let fits = |token: &TokenEntry| {
            token.host == origin.host && token.port == origin.port && token.trust == trust.0
        };
        let (index, _) = self
            .tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| fits(token))
            .max_by_key(|(index, token)| (token.received, *index))?;
        Some(self.tokens.remove(index))
    }

    fn drop_oldest_token(&mut self, matches: impl Fn(&TokenEntry) -> bool) {
        let tokens = self.tokens.iter().enumerate();
        let oldest =
            tokens.filter(|(_, token)| matches(token)).min_by_key(|(_, token)| token.received);
        if let Some(index) = oldest.map(|(index, _)| index) {
            self.tokens.remove(index);
        }
    }

    fn drop_oldest(&mut self, matches: impl Fn(&Entry) -> bool) {
        let oldest = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| matches(entry))
            .min_by_key(|(_, entry)| entry.issued)
            .map(|(index, _)| index);
        if let Some(index) = oldest {
            self.entries.remove(index);
        }
    }
}

impl Entry {
    /// Returns `None` if the ticket is too large or has no version.
    pub(super) fn from_ticket(ticket: &Ticket) -> Option<Self> {
        let session = STANDARD_NO_PAD.encode(ticket.session.to_bytes().ok()?);
        if session.len() > MAX_SESSION_LENGTH {
            return None;
        }
        let transport_parameters =
            ticket.transport_parameters.as_ref().map(|bytes| STANDARD_NO_PAD.encode(bytes));
        if transport_parameters.as_ref().is_some_and(|text| text.len() > MAX_FIELD_LENGTH) {
            return None;
        }
        let (issued, lifetime) = ticket.session.issued_and_lifetime();
        let alpn = match &ticket.alpn {
            Some(alpn) => Some(String::from_utf8(alpn.clone()).ok()?),
            None => None,
        };
        Some(Self {
            scheme: ticket.origin.scheme.clone(),
            host: ticket.origin.host.clone(),
            port: ticket.origin.port,
            trust: ticket.trust.0.clone(),
            alpn,
            version: ticket.session.version()?.name().to_owned(),
            early_data: ticket.session.early_data_capable(),
            issued,
            expires: issued.saturating_add(u64::from(lifetime).min(MAX_AGE_SECONDS)),
            session,
            further_names: ticket.session.further_names(),
            transport_parameters,
        })
    }

    /// Restores the ticket.
    pub(super) fn into_ticket(self) -> Result<Ticket, String> {
        let bytes = decode(&self.session)?;
        let session = Session::from_bytes(&bytes).map_err(|error| error.to_string())?;
        let transport_parameters = match &self.transport_parameters {
            Some(text) => Some(decode(text)?.into()),
            None => None,
        };
        Ok(Ticket {
            origin: Origin { scheme: self.scheme, host: self.host, port: self.port },
            trust: TrustId(self.trust),
            alpn: self.alpn.map(String::into_bytes),
            session,
            transport_parameters,
        })
    }

    fn transport(&self) -> Transport {
        match self.transport_parameters {
            Some(_) => Transport::Quic,
            None => Transport::Tcp,
        }
    }

    fn is_of(&self, scheme: &str, host: &str, port: u16) -> bool {
        self.scheme == scheme && self.host == host && self.port == port
    }

    /// Whether the ticket may also be offered to this host (RFC 9110 section 4.3.4).
    fn covers(&self, host: &str) -> bool {
        // A wildcard for a whole top-level domain is not accepted.
        let parent =
            host.split_once('.').map(|(_, parent)| parent).filter(|parent| parent.contains('.'));
        self.further_names.iter().any(|name| match name.strip_prefix("*.") {
            Some(wildcard) => parent == Some(wildcard),
            None => name == host,
        })
    }

    fn fits(&self, query: &JarQuery<'_>, alpn: &[Vec<u8>]) -> bool {
        let origin = query.origin;
        let (oldest, newest) = query.versions;
        let alpn_fits = match &self.alpn {
            Some(protocol) => alpn.iter().any(|offered| offered == protocol.as_bytes()),
            None => true,
        };
        (self.host == origin.host || self.covers(&origin.host))
            && self.scheme == origin.scheme
            && self.port == origin.port
            && self.trust == query.trust.0
            && alpn_fits
            && self
                .version
                .parse::<Version>()
                .is_ok_and(|version| (oldest..=newest).contains(&version))
    }
}

impl TokenEntry {
    /// Returns `None` if the token is too large.
    pub(super) fn from_token(token: &Token) -> Option<Self> {
        let text = STANDARD_NO_PAD.encode(&token.bytes);
        (text.len() <= MAX_FIELD_LENGTH).then(|| Self {
            host: token.origin.host.clone(),
            port: token.origin.port,
            trust: token.trust.0.clone(),
            received: token.received,
            token: text,
        })
    }

    /// Restores the token.
    pub(super) fn into_token(self, origin: &Origin) -> Result<Token, String> {
        Ok(Token {
            origin: origin.clone(),
            trust: TrustId(self.trust),
            received: self.received,
            bytes: decode(&self.token)?.into(),
        })
    }
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD_NO_PAD.decode(text).map_err(|error| error.to_string())
}

/// Parses the entries, without those that are invalid.
fn parse_valid<T: DeserializeOwned>(entries: Vec<Json>) -> Vec<T> {
    entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect()
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
