//! What a listener does over QUIC, found by doing it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_client::ClientError;
use firstflight_tls::{EarlyData, Trust, Version};

use firstflight_samples::{Connectors, RequestedConnection, TOO_OLD_S, Ticket};

use super::{Ability, HOST};
use crate::connection::{ConnectionOffer, Exchanged};
use crate::exchange::talk;
use crate::{Certificate, Group, Http, Kind, Size, Transport, Workload};

/// A GET of the smallest page.
const ASKED: RequestedConnection = RequestedConnection {
    workload: Workload::Get,
    transport: Transport::Quic,
    version: Version::Tls13,
    kind: Kind::Full,
    tfo: false,
    token: false,
    http: Http::Three,
    size: Size::OneKib,
    group: Group::X25519,
    certificate: Certificate::EcdsaP256,
};

/// Tries HTTP/3, and where there is some, resumption, early data, its refusal by age, and address
/// tokens.
pub(super) async fn all(address: SocketAddr, trust: &Path) -> Vec<(Ability, bool)> {
    let key_log = Arc::default();
    let connectors = Connectors::new(Trust::File(trust.to_owned()), &key_log);
    let get = |ticket: Option<Ticket>, early_data| {
        let brought = ConnectionOffer { host: HOST.to_owned(), ticket, early_data, token: None };
        get(&connectors, brought, address)
    };
    let first = match get(None, false).await {
        Ok(first) => first,
        Err(why) => {
            tracing::debug!(%address, %why, "no HTTP/3");
            return vec![(Ability::Http3, false)];
        }
    };
    let (mut tickets, tokens) = (first.tickets, !first.tokens.is_empty());
    let mut found = vec![(Ability::Http3, true), (Ability::AddressTokens, tokens)];
    let resumed = match tickets.pop() {
        Some(ticket) => get(Some(ticket), false).await.ok(),
        None => None,
    };
    let facts = resumed.as_ref().and_then(|second| second.facts.as_ref());
    found.push((Ability::ResumesQuic, facts.is_some_and(|facts| facts.resumed)));
    tickets.extend(resumed.into_iter().flat_map(|second| second.tickets));
    let accepts = async |ticket: Option<Ticket>| {
        let early = ticket.filter(|ticket| ticket.session().early_data_capable())?;
        let third = get(Some(early), true).await.ok()?;
        let accepted = third.facts.is_some_and(|facts| facts.early_data == EarlyData::Accepted);
        Some((accepted, third.tickets))
    };
    let early = accepts(tickets.pop()).await;
    let takes = early.as_ref().is_some_and(|(accepted, _)| *accepted);
    found.push((Ability::EarlyDataQuic, takes));
    tickets.extend(early.into_iter().flat_map(|(_, tickets)| tickets));
    if takes {
        let old = tickets.pop().and_then(|ticket| ticket.issued_earlier(TOO_OLD_S).ok());
        let refuses = accepts(old).await.is_some_and(|(accepted, _)| !accepted);
        found.push((Ability::FreshnessQuic, refuses));
    }
    found
}

async fn get(
    connectors: &Connectors,
    brought: ConnectionOffer,
    address: SocketAddr,
) -> Result<Exchanged, ClientError> {
    let mut local = None;
    let whole = talk(connectors, brought, address, &ASKED, ASKED.size.path(), &mut local);
    let timeout = ClientError::Timeout { phase: "a connection of the trial", after: TRIAL_TIMEOUT };
    tokio::time::timeout(TRIAL_TIMEOUT, whole).await.unwrap_or(Err(timeout))
}

/// How long a connection of the trial may take: there is no delay.
pub(super) const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);
