//! Sites and their routes: which of them a request is for, and what answers it.

use std::path::Path;

use bytes::Bytes;
use firstflight_config::{Action, ConfigError, Policy, Route, ServerConfig, Site};
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt;
use tower_http::services::ServeDir;
use tower_http::services::fs::DefaultServeDirFallback;
use tower_service::Service as _;

use crate::ServerError;
use crate::content::{AnswerBody, BodyError, plain};
use crate::prompt_files::PromptFiles;
use crate::proxy::{Forwarding, Proxy};
use crate::upstreams::Pools;

/// All sites of one configuration.
pub(crate) struct Sites(Vec<ReadySite>);

struct ReadySite {
    policy: Policy,
    /// The longest path first.
    routes: Vec<ReadyRoute>,
}

struct ReadyRoute {
    path: String,
    answerer: Answerer,
}

enum Answerer {
    /// A directory. Index pages, ranges, conditions and types are tower-http's; `..` cannot leave
    /// the directory, but symbolic links in it are followed, because whoever can place one there
    /// can place a copy too.
    Files(ServeDir<DefaultServeDirFallback, PromptFiles>),
    /// HTTP servers behind this one.
    Proxy(Proxy),
    Redirect(firstflight_config::Redirect),
    Status(StatusCode),
}

impl Sites {
    /// Checks what the configuration names.
    ///
    /// # Errors
    /// [`ServerError::Root`] or [`ServerError::Config`].
    pub(crate) fn new(
        content: &firstflight_config::Sites,
        config: &ServerConfig,
        pools: &Pools,
    ) -> Result<Self, ServerError> {
        let ready = |site: &Site| ReadySite::new(site, config, pools);
        content.sites.iter().map(ready).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a request may run from early data.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        let uri = request.uri();
        let Some(site) = self.site() else { return false };
        site.policy.may_run_early(request.method(), uri.path(), uri.query())
    }

    /// Answers a request. `None`: the client went away and needs no answer.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        forwarding: Forwarding<'_>,
    ) -> Option<Response<AnswerBody>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        match self.site().and_then(|site| site.route(request.uri().path())) {
            None => Some(plain(StatusCode::NOT_FOUND)),
            Some(route) => route.answerer.answer(request, forwarding).await,
        }
    }

    fn site(&self) -> Option<&ReadySite> {
        self.0.first()
    }
}

impl ReadySite {
    fn new(site: &Site, config: &ServerConfig, pools: &Pools) -> Result<Self, ServerError> {
        let mut policy = config.early_data.policy.clone();
        for route in &site.routes {
            if let Some(mode) = route.early.mode {
                let wrong = |error: firstflight_config::BadRulePath| setting(error.to_string());
                policy = policy.rule(&route.path, mode).map_err(wrong)?;
            }
        }
        let ready = |route: &Route| {
            let answerer = Answerer::new(&route.action, pools)?;
            Ok::<_, ServerError>(ReadyRoute { path: route.path.clone(), answerer })
        };
        let mut routes = site.routes.iter().map(ready).collect::<Result<Vec<_>, _>>()?;
        routes.sort_by_key(|route| std::cmp::Reverse(route.path.len()));
        Ok(Self { policy, routes })
    }

    fn route(&self, path: &str) -> Option<&ReadyRoute> {
        self.routes.iter().find(|route| path.starts_with(&route.path) || route.path == "/")
    }
}

impl Answerer {
    fn new(action: &Action, pools: &Pools) -> Result<Self, ServerError> {
        Ok(match action {
            Action::Files(settings) => Self::Files(files(&settings.root)?),
            Action::Upstream(name) => {
                let unknown = || setting(format!("there is no upstream {name:?}"));
                Self::Proxy(Proxy::new(pools.get(name).ok_or_else(unknown)?.clone()))
            }
            Action::Redirect(redirect) => Self::Redirect(redirect.clone()),
            Action::Status(status) => Self::Status(*status),
        })
    }

    async fn answer<B>(
        &self,
        request: Request<B>,
        forwarding: Forwarding<'_>,
    ) -> Option<Response<AnswerBody>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        match self {
            Self::Files(files) => {
                let Ok(answer) = files.clone().call(request).await;
                Some(answer.map(|body| body.map_err(BodyError::from).boxed_unsync()))
            }
            Self::Proxy(proxy) => proxy.forward(request, forwarding).await,
            Self::Redirect(redirect) => {
                let mut answer = plain(redirect.status);
                answer.headers_mut().insert(header::LOCATION, redirect.to.clone());
                Some(answer)
            }
            Self::Status(status) => Some(plain(*status)),
        }
    }
}

fn files(root: &Path) -> Result<ServeDir<DefaultServeDirFallback, PromptFiles>, ServerError> {
    let wrong = |reason: String| ServerError::Root { path: root.to_owned(), reason };
    let metadata = std::fs::metadata(root).map_err(|error| wrong(error.to_string()))?;
    if !metadata.is_dir() {
        return Err(wrong("it is no directory".to_owned()));
    }
    std::fs::read_dir(root).map_err(|error| wrong(error.to_string()))?;
    Ok(ServeDir::with_backend(root, PromptFiles))
}

fn setting(text: String) -> ServerError {
    ServerError::Config(ConfigError::Setting(text))
}
