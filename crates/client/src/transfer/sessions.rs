use std::cell::Cell;

use super::{Transfer, Transports};
use crate::quic::ALPN;
use crate::{ClientError, Event, JarQuery, Origin, Scheme, Target, Ticket, Token};

/// Sessions and tokens from the jar for the current connection.
#[derive(Default)]
pub(super) struct JarTickets {
    pub(super) tcp: Option<Ticket>,
    /// Whether the session may have been visible on the wire.
    pub(super) tcp_sent: Cell<bool>,
    /// Counts as sent as soon as a QUIC connection is started, like the token.
    pub(super) quic: Option<Ticket>,
    pub(super) token: Option<Token>,
}

impl Transfer<'_> {
    pub(super) fn take_from_jar(
        &mut self,
        target: &Target,
        transports: Transports,
        early_data: bool,
    ) -> Result<(), ClientError> {
        let config = &self.client.config;
        self.stream = None;
        self.links.get_mut().clear();
        let (Some(jar), Scheme::Https) = (&config.jar, target.scheme()) else { return Ok(()) };
        let (tcp, quic) = (config.http.alpn(), [ALPN.to_vec()]);
        let query = JarQuery {
            origin: &origin(target),
            trust: &self.client.trust,
            tcp: (transports != Transports::Quic).then_some(tcp.as_slice()),
            quic: (transports != Transports::Tcp).then_some(quic.as_slice()),
            versions: config.versions,
            early_data,
        };
        let mut warnings = Vec::new();
        let found = jar.take(&query, &mut warnings)?;
        self.jar_tickets = JarTickets {
            tcp: found.tcp,
            tcp_sent: Cell::new(false),
            quic: found.quic,
            token: found.token,
        };
        self.warn(&warnings);
        Ok(())
    }

    /// Stores new sessions and tokens in the jar, and returns unused ones.
    pub(crate) fn store_sessions(&mut self) -> Result<(), ClientError> {
        let (mut tickets, mut tokens) = self.collect_new();
        let (new_sessions, new_tokens) = (tickets.len(), tokens.len());
        self.report.sessions += new_sessions;
        self.report.tokens += new_tokens;
        let JarTickets { tcp, tcp_sent, quic, token } = std::mem::take(&mut self.jar_tickets);
        let links = std::mem::take(self.links.get_mut());
        self.stream = None;
        let Some(jar) = &self.client.config.jar else { return Ok(()) };
        // A TLS 1.2 session may be used again (RFC 5246 section F.1.4); a TLS 1.3 session only if
        // it was never sent.
        let reusable = |ticket: &Ticket| new_sessions == 0 && !ticket.session.single_use();
        tickets.extend(tcp.filter(|ticket| !tcp_sent.get() || reusable(ticket)));
        if links.is_empty() {
            tickets.extend(quic);
            tokens.extend(token);
        }
        let mut warnings = Vec::new();
        jar.put(&tickets, &tokens, &mut warnings)?;
        self.warn(&warnings);
        if new_sessions > 0 {
            self.listener.event(&Event::SessionsStored(new_sessions));
        }
        if new_tokens > 0 {
            self.listener.event(&Event::TokensStored(new_tokens));
        }
        Ok(())
    }

    /// Returns the sessions and tokens received on all connections since the last call.
    fn collect_new(&mut self) -> (Vec<Ticket>, Vec<Token>) {
        let Ok(target) = Target::parse(&self.report.url_effective) else {
            return Default::default();
        };
        let (origin, trust) = (origin(&target), &self.client.trust);
        let ticket = |session, alpn, transport_parameters| Ticket {
            origin: origin.clone(),
            trust: trust.clone(),
            alpn,
            session,
            transport_parameters,
        };
        let mut tickets = Vec::new();
        if let Some(stream) = &self.stream {
            self.sessions.extend(stream.take_sessions());
            let alpn = stream.facts().and_then(|facts| facts.alpn);
            let sessions = self.sessions.drain(..);
            tickets.extend(sessions.map(|session| ticket(session, alpn.clone(), None)));
        }
        let mut tokens = Vec::new();
        for link in self.links.get_mut().iter() {
            tickets.extend(link.take_resumptions().into_iter().map(|resumption| {
                let parameters = Some(resumption.transport_parameters);
                ticket(resumption.session, Some(ALPN.to_vec()), parameters)
            }));
            let received = link.take_tokens().into_iter();
            tokens.extend(received.map(|token| Token::new(origin.clone(), trust.clone(), token)));
        }
        (tickets, tokens)
    }

    pub(super) fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            self.listener.event(&Event::Warning(warning));
        }
    }
}

fn origin(target: &Target) -> Origin {
    Origin {
        scheme: target.scheme().name().to_owned(),
        host: target.host().to_ascii_lowercase(),
        port: target.port(),
    }
}
