//! A receiver that speaks OTLP over HTTP: tests can read what it received and set its response.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
pub use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::sync::oneshot;

/// A collector on its own thread. It ends when dropped.
pub struct Collector {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    end: Option<oneshot::Sender<()>>,
}

#[derive(Default)]
struct State {
    spans: Vec<Span>,
    metrics: Vec<Metric>,
    /// The statuses of the next messages to refuse, the next one last.
    refusals: Vec<StatusCode>,
    messages: usize,
}

impl Collector {
    /// Listens on a port that the system chooses.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let state = Arc::new(Mutex::new(State::default()));
        let (end, ended) = oneshot::channel();
        let shared = state.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::select! {
                    () = serve(listener, shared) => {}
                    _ = ended => {}
                }
            });
        });
        Self { address, state, end: Some(end) }
    }

    /// Its URL, as the endpoint in `[telemetry]`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Refuses the next messages with these statuses, one each.
    pub fn refuse(&self, statuses: &[u16]) {
        let statuses = statuses.iter().map(|code| StatusCode::from_u16(*code).expect("a status"));
        let mut state = self.lock();
        state.refusals = statuses.rev().collect();
    }

    /// The number of messages received, accepted or refused.
    pub fn messages(&self) -> usize {
        self.lock().messages
    }

    /// The spans accepted so far.
    pub fn spans(&self) -> Vec<Span> {
        self.lock().spans.clone()
    }

    /// The metrics accepted so far.
    pub fn metrics(&self) -> Vec<Metric> {
        self.lock().metrics.clone()
    }

    /// Waits until the accepted spans are `enough`, and returns them. `what` is for the panic
    /// message.
    ///
    /// # Panics
    /// After ten seconds.
    pub fn wait_for(&self, what: &str, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let spans = self.spans();
            if enough(&spans) {
                return spans;
            }
            assert!(Instant::now() < deadline, "no {what} among {spans:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
    }
}

/// A span's attribute as text; numbers and booleans are formatted.
pub fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(flag) => Some(flag.to_string()),
        _ => None,
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| receive(request, state.clone()));
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn receive(
    request: Request<Incoming>,
    state: Arc<Mutex<State>>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let protobuf =
        request.headers().get("content-type").is_some_and(|t| t == "application/x-protobuf");
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.messages += 1;
    let mut response = Response::new(Empty::new());
    *response.status_mut() = match state.refusals.pop() {
        Some(refusal) => refusal,
        None if protobuf && accept(&path, body, &mut state) => StatusCode::OK,
        None => StatusCode::BAD_REQUEST,
    };
    Ok(response)
}

/// Decodes and keeps a message. Returns whether it is a valid one of OTLP.
fn accept(path: &str, body: Bytes, state: &mut State) -> bool {
    match path {
        "/v1/traces" => ExportTraceServiceRequest::decode(body).is_ok_and(|message| {
            let scopes =
                message.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            state.spans.extend(scopes.flat_map(|scope| scope.spans));
            true
        }),
        "/v1/metrics" => ExportMetricsServiceRequest::decode(body).is_ok_and(|message| {
            let scopes =
                message.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
            state.metrics.extend(scopes.flat_map(|scope| scope.metrics));
            true
        }),
        _ => false,
    }
}
