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

/// A pool of servers that handle the same requests. Cheap to clone.
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

    /// Creates a pool that replaces this one when it starts. It then continues the counters of this
    /// pool and of servers with the same address, and the health checks of this pool end.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn successor(&self, config: PoolConfig) -> Result<Self, PoolError> {
        Ok(Self(Arc::new(Shared::new(self.name(), config, Some(self.0.clone()))?)))
    }

    /// Starts the health checks and the closing of idle connections. Both end with the last clone
    /// of the pool, the checks also when another pool replaces it. Further calls do nothing.
    ///
    /// Must be called inside a tokio runtime.
    pub fn start(&self) {
        if self.0.mark_started() {
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

    /// Returns whether a new pool with this configuration would equal this one. The file of
    /// certificate authorities may have changed.
    pub fn is_current(&self, config: &PoolConfig) -> bool {
        self.0.is_current(config)
    }

    /// Returns the current status.
    pub fn status(&self) -> PoolStatus {
        self.0.status()
    }

    /// Sends a request and returns its response. The URI is a path with a query; `Host` is a header.
    /// The request is in flight until the response body has ended or is dropped, and an upload that
    /// outlasts the response has ended or stalled. After a 101, that includes the tunnel, which
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
        let repeatable = Repeatable::of(&head, body.is_end_stream(), options.once);
        let retry_head = (repeatable != Repeatable::Never).then(|| head.clone());
        let mut request = Request::from_parts(head, Upload::new(body, progress.clone()));
        let (mut history, mut fresh) = (AttemptHistory::default(), false);
        let mut last_error = None;
        shared.lock().count_request();
        loop {
            // An earlier failure explains more than the lack of further servers.
            let permit = match (shared.permit(&history).await, last_error.take()) {
                (Ok(permit), _) => permit,
                (Err(SendError::NoServer), Some(error)) | (Err(error), _) => return Err(error),
            };
            let index = permit.index;
            progress.touch();
            let AttemptError { failure, error, unsent } =
                match shared.attempt(permit, request, &progress, options, fresh).await {
                    Ok(response) => return Ok(response),
                    Err(failed) => *failed,
                };
            let is_unsent = unsent.is_some();
            let decision = shared.lock().decide_retry(
                &mut history,
                index,
                failure,
                is_unsent,
                repeatable,
                Instant::now(),
            );
            fresh = decision == RetryDecision::Fresh;
            request = match (decision, unsent, &retry_head) {
                (RetryDecision::No, ..) | (_, None, None) => {
                    progress.abandon();
                    return Err(error);
                }
                (_, Some(request), _) => request,
                (_, None, Some(head)) => Request::from_parts(head.clone(), empty_body(&progress)),
            };
            last_error = Some(error);
        }
    }
}

fn empty_body(progress: &Progress) -> Upload {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    Upload::new(body, progress.clone())
}
