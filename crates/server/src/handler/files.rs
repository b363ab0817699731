//! The files below a directory.
//!
//! Ranges, conditions, index pages, types and ready-made encodings are tower-http's. Here is what
//! it leaves open: which paths are served at all, `If-Range`, which requests have a range, and
//! answers' fields and texts.

use std::borrow::Cow;
use std::path::Path;

use firstflight_config::{ConfigError, ENCODINGS, FileSettings};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use percent_encoding::percent_decode_str;
use tower_http::services::ServeDir;
use tower_http::services::fs::DefaultServeDirFallback;
use tower_service::Service as _;

use crate::ServerError;
use crate::handler::prompt_files::PromptBackend;
use crate::handler::response::{BodyError, ResponseBody, plain};

/// A directory, ready to serve.
pub(crate) struct Files {
    directory: ServeDir<DefaultServeDirFallback, PromptBackend>,
    /// Whether answers depend on the encodings that a client takes.
    varies: bool,
}

impl Files {
    /// Checks that the directory is there, and the names of encodings.
    ///
    /// # Errors
    /// [`ServerError::Root`] or [`ServerError::Config`].
    pub(crate) fn new(settings: &FileSettings) -> Result<Self, ServerError> {
        let wrong = |reason: std::io::Error| ServerError::Root {
            path: settings.root.clone(),
            reason: reason.to_string(),
        };
        check_root(&settings.root)?;
        // The library puts a dot before a relative one.
        let root = std::path::absolute(&settings.root).map_err(wrong)?;
        let files = PromptBackend::new(&root, settings.follow_symlinks).map_err(wrong)?;
        // Who asks for several ranges gets the whole, as RFC 9110 section 14.2 allows.
        let mut directory = ServeDir::with_backend(root, files).ignore_multi_range_requests(true);
        for encoding in &settings.precompressed {
            directory = match &**encoding {
                "br" => directory.precompressed_br(),
                "gzip" => directory.precompressed_gzip(),
                "zstd" => directory.precompressed_zstd(),
                "deflate" => directory.precompressed_deflate(),
                _ => return Err(ServerError::Config(unknown_encoding(encoding))),
            };
        }
        Ok(Self { directory, varies: !settings.precompressed.is_empty() })
    }

    /// Answers a request. Its body is of no interest.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response<ResponseBody> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED);
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if !may_be_served(request.uri().path()) {
            return plain(StatusCode::NOT_FOUND);
        }
        let (mut parts, _) = request.into_parts();
        // RFC 9110 section 14.2: of other methods and in other units it does not count.
        let range = bytes_asked_for(&parts.headers).filter(|_| parts.method == Method::GET);
        match range {
            Some(range) => parts.headers.insert(header::RANGE, range),
            None => parts.headers.remove(header::RANGE),
        };
        let location = directory_of(&parts.uri);
        let answer = self.fetch(Request::from_parts(parts, ())).await;
        self.complete(answer, location)
    }

    /// Fetches, by `If-Range` too (RFC 9110 section 13.1.5), which tower-http does not know: what
    /// the file is now can be asked only by fetching it.
    async fn fetch(&self, request: Request<()>) -> Response<ResponseBody> {
        let headers = request.headers();
        let condition =
            headers.get(header::IF_RANGE).filter(|_| headers.contains_key(header::RANGE));
        let Some(condition) = condition.cloned() else { return self.look_up(request).await };
        let mut whole = request.clone();
        whole.headers_mut().remove(header::RANGE);
        let whole = self.look_up(whole).await;
        if !is_this_one(&condition, whole.headers()) {
            return whole;
        }
        let part = self.look_up(request).await;
        // The file may have been replaced meanwhile.
        match part.headers().get(header::ETAG) == whole.headers().get(header::ETAG) {
            true => part,
            false => whole,
        }
    }

    async fn look_up(&self, request: Request<()>) -> Response<ResponseBody> {
        let Ok(answer) = self.directory.clone().call(request).await;
        answer.map(|body| body.map_err(BodyError::from).boxed_unsync())
    }

    fn complete(
        &self,
        mut answer: Response<ResponseBody>,
        location: Option<HeaderValue>,
    ) -> Response<ResponseBody> {
        let status = answer.status();
        if status.is_redirection() && answer.headers_mut().remove(header::LOCATION).is_some() {
            // On this host, whatever the request calls it.
            let Some(location) = location else { return plain(StatusCode::NOT_FOUND) };
            answer = plain(status);
            answer.headers_mut().insert(header::LOCATION, location);
        }
        if status.is_client_error() || status.is_server_error() {
            let range = answer.headers_mut().remove(header::CONTENT_RANGE);
            answer = plain(status);
            answer.headers_mut().extend(range.map(|range| (header::CONTENT_RANGE, range)));
        }
        let headers = answer.headers_mut();
        if let Some(with_charset) = headers.get(header::CONTENT_TYPE).and_then(with_charset) {
            headers.insert(header::CONTENT_TYPE, with_charset);
        }
        if self.varies && status == StatusCode::NOT_MODIFIED {
            // RFC 9110 section 15.4.5: what a 200 would have had.
            headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
        answer
    }
}

/// Types are by name, and browsers should not guess others from what is in a file.
const NOSNIFF: HeaderName = header::X_CONTENT_TYPE_OPTIONS;

fn check_root(root: &Path) -> Result<(), ServerError> {
    let wrong = |reason: String| ServerError::Root { path: root.to_owned(), reason };
    let metadata = std::fs::metadata(root).map_err(|error| wrong(error.to_string()))?;
    if !metadata.is_dir() {
        return Err(wrong("it is no directory".to_owned()));
    }
    std::fs::read_dir(root).map(drop).map_err(|error| wrong(error.to_string()))
}

fn unknown_encoding(encoding: &str) -> ConfigError {
    let known: Vec<_> = ENCODINGS.iter().map(|(name, _)| *name).collect();
    ConfigError::Setting(format!(
        "unknown encoding {encoding:?} among precompressed; allowed are {}",
        known.join(", ")
    ))
}

/// Whether a path can be a file's that is to be seen: no dot segments, however they are written,
/// nothing hidden but `/.well-known` (RFC 8615), no empty segments, and text.
fn may_be_served(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let path = path.strip_suffix('/').unwrap_or(path);
    path.is_empty()
        || path.split('/').enumerate().all(|(index, raw)| {
            let segment: Cow<'_, str> = match percent_decode_str(raw).decode_utf8() {
                Ok(segment) => segment,
                Err(_) => return false,
            };
            let shown = !segment.starts_with('.') || (index == 0 && segment == ".well-known");
            shown && !segment.is_empty() && !segment.contains(['/', '\0'])
        })
}

/// The target with a slash at its path's end. `None`: the path does not begin with one slash, and a
/// browser could take it for another host's.
fn directory_of(uri: &http::Uri) -> Option<HeaderValue> {
    let path = uri.path();
    if !path.starts_with('/') || path.starts_with("//") {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    HeaderValue::try_from(format!("{path}/{query}")).ok()
}

/// The request's `Range`, if there is one, in bytes. Its unit may be written in either case.
fn bytes_asked_for(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut fields = headers.get_all(header::RANGE).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    let (unit, ranges) = field.to_str().ok()?.split_once('=')?;
    let bytes = unit.eq_ignore_ascii_case("bytes");
    bytes.then(|| HeaderValue::try_from(format!("bytes={ranges}")).ok())?
}

/// Whether the answer is the representation that an `If-Range` means: by a strong entity tag, or by
/// the very date of its last change.
fn is_this_one(condition: &HeaderValue, answer: &HeaderMap) -> bool {
    let same = |name| answer.get(name) == Some(condition);
    match condition.as_bytes().first() {
        Some(b'"') => same(header::ETAG),
        // A weak tag never matches here; none of ours is one.
        Some(b'W') if condition.as_bytes().starts_with(b"W/") => false,
        _ => same(header::LAST_MODIFIED),
    }
}

/// Text is UTF-8 unless its type says otherwise.
fn with_charset(content_type: &HeaderValue) -> Option<HeaderValue> {
    let text = content_type.to_str().ok()?;
    let textual = text.starts_with("text/") || text == "application/javascript";
    (textual && !text.contains(';'))
        .then(|| HeaderValue::try_from(format!("{text}; charset=utf-8")).ok())?
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
