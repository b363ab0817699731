use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty};

use crate::attempt::{AttemptError, SendOptions};
use crate::retry::{Repeatable, RetryDecision};
use crate::server_list::AttemptHistory;
use crate::shared::{PoolStatus, Shared};
use crate::upload::{Progress, Upload};
use crate::{Body, PoolConfig, PoolError, SendError, attempt, health_check};

/// A pool of servers for the same requests. Cheap to clone.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

impl Pool {
    /// Creates a pool with this name. Opens no connection yet.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid setting, or certificate authorities that cannot be read.
    pub fn new(name: &str, config: PoolConfig) -> Result<Self, PoolError> {
        Ok(Self(Arc::new(Shared::new(name, config, None)?)))
    }

    /// Creates a pool that replaces this one when it starts: it continues the counters of the pool, and
    /// of servers with the same address, and this one's health checks end.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn successor(&self, config: PoolConfig) -> Result<Self, PoolError> {
        Ok(Self(Arc::new(Shared::new(self.name(), config, Some(self.0.clone()))?)))
    }

    /// Starts the health checks and the closing of idle connections, inside a tokio runtime. Both end
    /// with the last clone of the pool, the checks also when another pool replaces it. Further calls
    /// do nothing.
    pub fn start(&self) {
        if self.0.starts() {
            self.0.replace_predecessor();
            health_check::start(&self.0);
        }
    }

    /// Returns the name of the pool.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.0.config
    }

    /// Returns whether a pool with this configuration, made now, would be equal: the file of
    /// authorities may have changed.
    pub fn is_current(&self, config: &PoolConfig) -> bool {
        self.0.is_current(config)
    }

    /// Returns the current status.
    pub fn status(&self) -> PoolStatus {
        self.0.status()
    }

    /// Sends a request and returns its response. The URI is a path with a query; `Host` is a header.
    /// The request is in flight until the response body has ended or is dropped, and an upload that
    /// outlasts it has ended or stands still. After a 101, that includes the tunnel, which
    /// [`hyper::upgrade::on`] returns.
    ///
    /// # Errors
    /// [`SendError`], if all attempts failed.
    pub async fn send(
        &self,
        request: Request<Body>,
        options: &SendOptions<'_>,
    ) -> Result<Response<Body>, SendError> {
        let shared = &self.0;
        let (mut head, body) = request.into_parts();
        attempt::prepare(&mut head, &body, &shared.config)?;
        let progress = Progress::new();
        let repeatable = Repeatable::of(&head, body.is_end_stream());
        let spare = (repeatable != Repeatable::Never).then(|| head.clone());
        let mut request = Request::from_parts(head, Upload::new(body, progress.clone()));
        let (mut history, mut fresh) = (AttemptHistory::default(), false);
        let mut last = None;
        shared.lock().start();
        loop {
            // An earlier failure explains more than the lack of further servers.
            let permit = match (shared.permit(&history).await, last.take()) {
                (Ok(permit), _) => permit,
                (Err(SendError::NoServer), Some(error)) | (Err(error), _) => return Err(error),
            };
            let index = permit.index;
            progress.note();
            let AttemptError { failure, error, unsent } =
                match shared.attempt(permit, request, &progress, options, fresh).await {
                    Ok(response) => return Ok(response),
                    Err(failed) => failed,
                };
            let is_unsent = unsent.is_some();
            let again = shared.lock().again(
                &mut history,
                index,
                failure,
                is_unsent,
                repeatable,
                Instant::now(),
            );
            fresh = again == RetryDecision::Fresh;
            request = match (again, unsent, &spare) {
                (RetryDecision::No, ..) | (_, None, None) => {
                    progress.abandon();
                    return Err(error);
                }
                (_, Some(request), _) => request,
                (_, None, Some(head)) => Request::from_parts(head.clone(), empty_body(&progress)),
            };
            last = Some(error);
        }
    }
}

fn empty_body(progress: &Progress) -> Upload {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    Upload::new(body, progress.clone())
}
