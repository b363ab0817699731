//! One transfer: connections, requests, redirections, and what has to be put in order however it
//! ends.

mod deliver;
mod keeping;
mod over_quic;
mod over_tcp;
mod race;

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_tls::Session;
use tokio::net::TcpStream;

use self::keeping::InUse;
use self::race::Winner;
use crate::early::mended_without_early_data;
use crate::quic::QuicHandle;
use crate::{
    Client, ClientError, Event, HttpVersions, Listener, Marks, Report, Request, Scheme, Target,
    Wire,
};

/// One transfer in progress.
pub(crate) struct Transfer<'a> {
    client: &'a Client,
    report: Report,
    listener: &'a mut dyn Listener,
    in_use: InUse,
    wire: Option<Wire<TcpStream>>,
    /// Every connection over QUIC that was started; a session or token may come on each.
    links: RefCell<Vec<QuicHandle>>,
    sessions: Vec<Session>,
}

/// How one connection ended.
enum Outcome {
    Answered,
    Redirect(Target, u16),
    Again(&'static str),
}

/// By what a target is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carriers {
    Tcp,
    Quic,
    Both,
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(
        client: &'a Client,
        request: &Request,
        listener: &'a mut dyn Listener,
    ) -> Self {
        Self {
            client,
            report: Report::new(request),
            listener,
            in_use: InUse::default(),
            wire: None,
            links: RefCell::default(),
            sessions: Vec::new(),
        }
    }

    pub(crate) fn into_report(self) -> Report {
        self.report
    }

    pub(crate) async fn run(&mut self, mut request: Request) -> Result<(), ClientError> {
        let mut early = true;
        let mut start = None;
        loop {
            let early_now = early && self.client.config.early_data.allows(&request.method);
            let carriers = self.carriers(&request.target)?;
            self.take_from_jar(&request.target, carriers, early_now)?;
            // The jar's time is not the network's: the clock starts here.
            let start = *start.get_or_insert_with(Instant::now);
            self.report.marks = Marks::new(start);
            self.report.early_bytes = 0;
            let outcome = match self.attempt(&request, carriers, early_now).await {
                Err(ClientError::Tls(error))
                    if self.report.retries == 0 && mended_without_early_data(&error) =>
                {
                    Outcome::Again("the server no longer takes what the session promised")
                }
                Err(ClientError::NotBegun) if self.report.retries == 0 => {
                    Outcome::Again("the server had not begun with it; on a fresh connection")
                }
                other => other?,
            };
            match outcome {
                Outcome::Answered => return Ok(()),
                Outcome::Again(why) => {
                    self.note_wire();
                    self.settle()?;
                    self.report.retries += 1;
                    self.listener.event(&Event::Retrying(why));
                    early = false;
                }
                Outcome::Redirect(target, status) => {
                    self.settle()?;
                    self.report.num_redirects += 1;
                    self.report.redirect_time = start.elapsed().as_secs_f64();
                    self.listener.event(&Event::Redirected(&target.to_string()));
                    request = request.redirected(status, target);
                    self.report.url_effective = request.target.to_string();
                    self.report.scheme = request.target.scheme().name();
                    self.report.method = request.method.to_string();
                    early = true;
                }
            }
        }
    }

    /// One connection: made, used, closed.
    async fn attempt(
        &mut self,
        request: &Request,
        carriers: Carriers,
        early: bool,
    ) -> Result<Outcome, ClientError> {
        let connecting = Limit::new(self.client.config.connect_timeout);
        let addresses = connecting.within(self.resolve(&request.target)).await?;
        match carriers {
            Carriers::Tcp => {
                let stream = self.establish(request, early, &addresses);
                let stream = connecting.within(stream).await?;
                self.over_tcp(stream, request, &connecting).await
            }
            Carriers::Quic => {
                let won = self.dial_quic(request, early, true, &addresses);
                match connecting.within(won).await {
                    Ok(won) => self.over_quic(won, request).await,
                    Err(error) => {
                        self.note_failed_link();
                        Err(error)
                    }
                }
            }
            Carriers::Both => {
                match connecting.within(self.race(request, early, &addresses)).await {
                    Ok(Winner::Quic(won)) => self.over_quic(*won, request).await,
                    Ok(Winner::Tcp(reached, why)) => {
                        let stream = self.take_over(reached, request, &why);
                        self.over_tcp(stream, request, &connecting).await
                    }
                    Err(error) => {
                        self.note_failed_link();
                        Err(error)
                    }
                }
            }
        }
    }

    fn carriers(&self, target: &Target) -> Result<Carriers, ClientError> {
        let secure = target.scheme() == Scheme::Https;
        match (self.client.config.http, secure) {
            (HttpVersions::Three, true) => Ok(Carriers::Quic),
            (HttpVersions::Three, false) => Err(ClientError::BadUrl {
                url: target.to_string(),
                reason: "HTTP/3 is spoken over https alone".to_owned(),
            }),
            (HttpVersions::ThreeFirst, true) if self.client.quic.is_some() => Ok(Carriers::Both),
            _ => Ok(Carriers::Tcp),
        }
    }

    async fn resolve(&mut self, target: &Target) -> Result<Vec<SocketAddr>, ClientError> {
        let resolver = &self.client.config.resolver;
        let addresses = resolver.resolve(target.host(), target.port()).await?;
        self.report.marks.resolved = Some(Instant::now());
        self.listener.event(&Event::Resolved { host: target.host(), addresses: &addresses });
        Ok(addresses)
    }

    fn note_request(
        &mut self,
        request: &Request,
        version: http::Version,
    ) -> Result<(), ClientError> {
        let text = request.head_text(version)?;
        self.report.size_request += text.len() as u64;
        self.report.size_upload += request.body.len() as u64;
        self.listener.event(&Event::RequestHead(&text));
        Ok(())
    }
}

/// How long connecting may take.
struct Limit {
    after: Option<Duration>,
    at: Option<tokio::time::Instant>,
}

impl Limit {
    fn new(after: Option<Duration>) -> Self {
        Self { after, at: after.map(|after| tokio::time::Instant::now() + after) }
    }

    fn late(&self) -> ClientError {
        ClientError::Timeout { phase: "connecting", after: self.after.unwrap_or_default() }
    }

    async fn within<T>(
        &self,
        future: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match self.at {
            None => future.await,
            Some(at) => {
                tokio::time::timeout_at(at, future).await.unwrap_or_else(|_| Err(self.late()))
            }
        }
    }
}
