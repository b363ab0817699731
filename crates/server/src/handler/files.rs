//! Serves the files below a directory.
//!
//! tower-http implements ranges, conditions, index pages, types and precompressed files. This
//! module adds which paths are served at all, `If-Range`, which requests have a range, and the
//! fields and texts of responses.
//!
//! Files up to 64 KiB are read immediately instead of on another thread. They are nearly always in
//! the page cache, and the response is ready in time to leave with the server's flight. Larger
//! files are read on file threads while they are sent.

use std::borrow::Cow;
use std::fs::Metadata;
use std::future::{self, Ready};
use std::io::{self, Cursor, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use firstflight_config::{ConfigError, ENCODINGS, FileSettings};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeek, ReadBuf, Take};
use tower_http::services::ServeDir;
use tower_http::services::fs::{Backend, DefaultServeDirFallback, File};
use tower_service::Service as _;

use crate::ServerError;
use crate::context::{BodyError, ResponseBody};
use crate::handler::response::{head_of, plain};
use crate::handler::small_files::{Candidate, MAX_INLINE_BYTES, SmallFiles};

/// A directory that is ready to serve.
pub(crate) struct Files {
    directory: ServeDir<DefaultServeDirFallback, FileBackend>,
    /// Whether responses depend on `Accept-Encoding`.
    varies: bool,
    small: SmallFiles,
}

impl Files {
    /// Checks the directory and the names of the encodings.
    ///
    /// # Errors
    /// [`ServerError::Root`] or [`ServerError::Config`].
    pub(crate) fn new(settings: &FileSettings) -> Result<Self, ServerError> {
        let invalid = |reason: std::io::Error| ServerError::Root {
            path: settings.root.clone(),
            reason: reason.to_string(),
        };
        check_root(&settings.root)?;
        // tower-http prefixes a relative path with a dot.
        let root = std::path::absolute(&settings.root).map_err(invalid)?;
        let files = FileBackend::new(&root, settings.follow_symlinks).map_err(invalid)?;
        let small = SmallFiles::new(&root);
        // RFC 9110 section 14.2: a request for several ranges may get the whole file.
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
        Ok(Self { directory, varies: !settings.precompressed.is_empty(), small })
    }

    /// Responds to a request. Its body is ignored.
    pub(crate) async fn respond<B>(&self, request: Request<B>) -> Response<ResponseBody> {
        match self.small.respond(&request) {
            Some(response) => response,
            None => Box::pin(self.respond_from_disk(request)).await,
        }
    }

    async fn respond_from_disk<B>(&self, request: Request<B>) -> Response<ResponseBody> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        if !may_be_served(request.uri().path()) {
            return plain(StatusCode::NOT_FOUND);
        }
        // Which encoding is best depends on which files exist.
        let candidate = (!self.varies).then(|| self.small.candidate(&request)).flatten();
        let (mut parts, _) = request.into_parts();
        // RFC 9110 section 9.3.2: the response is that to GET, also if the file cannot be read.
        let is_head = std::mem::replace(&mut parts.method, Method::GET) == Method::HEAD;
        // RFC 9110 section 14.2: ignored for other methods and units.
        let range = byte_range(&parts.headers).filter(|_| !is_head);
        match range {
            Some(range) => parts.headers.insert(header::RANGE, range),
            None => parts.headers.remove(header::RANGE),
        };
        let location = with_trailing_slash(&parts.uri);
        let response = self.fetch(Request::from_parts(parts, ())).await;
        let response = self.complete(response, location);
        match candidate {
            Some(candidate) if response.status() == StatusCode::OK => {
                self.keep(candidate, response).await
            }
            _ if is_head => head_of(response),
            _ => response,
        }
    }

    /// Keeps a small file's content.
    async fn keep(
        &self,
        candidate: Candidate,
        response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(body) => {
                let content = body.to_bytes();
                self.small.keep(candidate, &parts.headers, &content);
                let body = Full::new(content).map_err(|never| match never {});
                Response::from_parts(parts, body.boxed_unsync())
            }
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Fetches a file and applies `If-Range` (RFC 9110 section 13.1.5), which tower-http does not
    /// implement. The current entity tag is known only after fetching the file.
    async fn fetch(&self, request: Request<()>) -> Response<ResponseBody> {
        let headers = request.headers();
        let condition =
            headers.get(header::IF_RANGE).filter(|_| headers.contains_key(header::RANGE));
        let Some(condition) = condition.cloned() else { return self.look_up(request).await };
        let mut whole = request.clone();
        whole.headers_mut().remove(header::RANGE);
        let whole = self.look_up(whole).await;
        if !if_range_matches(&condition, whole.headers()) {
            return whole;
        }
        let part = self.look_up(request).await;
        // The file may have been replaced between the two requests.
        match part.headers().get(header::ETAG) == whole.headers().get(header::ETAG) {
            true => part,
            false => whole,
        }
    }

    /// Fetches a file or its range. tower-http rejects a suffix that is longer than the file, which is
    /// the whole file (RFC 9110 section 14.1.2).
    async fn look_up(&self, request: Request<()>) -> Response<ResponseBody> {
        let whole = is_suffix(request.headers()).then(|| {
            let mut whole = request.clone();
            whole.headers_mut().insert(header::RANGE, HeaderValue::from_static("bytes=0-"));
            whole
        });
        let response = self.call(request).await;
        match whole {
            Some(whole) if response.status() == StatusCode::RANGE_NOT_SATISFIABLE => {
                // An empty file has no range to serve.
                let empty = response.headers().get(header::CONTENT_RANGE);
                let empty = empty.is_some_and(|range| range == "bytes */0");
                if empty { response } else { self.call(whole).await }
            }
            _ => response,
        }
    }

    async fn call(&self, request: Request<()>) -> Response<ResponseBody> {
        let Ok(response) = self.directory.clone().call(request).await;
        response.map(|body| body.map_err(BodyError::from).boxed_unsync())
    }

    fn complete(
        &self,
        mut response: Response<ResponseBody>,
        location: Option<HeaderValue>,
    ) -> Response<ResponseBody> {
        let status = response.status();
        if status.is_redirection() && response.headers_mut().remove(header::LOCATION).is_some() {
            // Redirect on this host only, whatever host the request names.
            let Some(location) = location else { return plain(StatusCode::NOT_FOUND) };
            response = plain(status);
            response.headers_mut().insert(header::LOCATION, location);
        }
        if status.is_client_error() || status.is_server_error() {
            let range = response.headers_mut().remove(header::CONTENT_RANGE);
            response = plain(status);
            response.headers_mut().extend(range.map(|range| (header::CONTENT_RANGE, range)));
        }
        let headers = response.headers_mut();
        if let Some(with_charset) = headers.get(header::CONTENT_TYPE).and_then(with_charset) {
            headers.insert(header::CONTENT_TYPE, with_charset);
        }
        if self.varies && status == StatusCode::NOT_MODIFIED {
            // RFC 9110 section 15.4.5: the field that a 200 response would have.
            headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
        response
    }
}

/// Types follow from file names; browsers should not guess others from the content.
const NOSNIFF: HeaderName = header::X_CONTENT_TYPE_OPTIONS;

fn check_root(root: &Path) -> Result<(), ServerError> {
    let invalid = |reason: String| ServerError::Root { path: root.to_owned(), reason };
    let metadata = std::fs::metadata(root).map_err(|error| invalid(error.to_string()))?;
    if !metadata.is_dir() {
        return Err(invalid("it is not a directory".to_owned()));
    }
    std::fs::read_dir(root).map(drop).map_err(|error| invalid(error.to_string()))
}

fn unknown_encoding(encoding: &str) -> ConfigError {
    let known: Vec<_> = ENCODINGS.iter().map(|(name, _)| *name).collect();
    ConfigError::Setting(format!(
        "unknown encoding {encoding:?} in precompressed; supported: {}",
        known.join(", ")
    ))
}

/// Whether a path may be served: no dot segments in any spelling, no hidden files except
/// `/.well-known` (RFC 8615), no empty segments, valid UTF-8.
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

/// The target with a slash at the end of its path. Returns `None` if the path does not start with
/// exactly one slash, because a browser could take it for another host.
fn with_trailing_slash(uri: &http::Uri) -> Option<HeaderValue> {
    let path = uri.path();
    if !path.starts_with('/') || path.starts_with("//") {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    HeaderValue::try_from(format!("{path}/{query}")).ok()
}

/// The request's `Range`, if it is in bytes. The unit is case-insensitive.
fn byte_range(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut fields = headers.get_all(header::RANGE).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    let (unit, ranges) = field.to_str().ok()?.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let range = match ranges.split_once('-') {
        // A position of more than 64 bits is past the end of any file.
        Some((first, last)) if is_number(last) && last.parse::<u64>().is_err() => {
            format!("bytes={first}-{}", u64::MAX)
        }
        _ => format!("bytes={ranges}"),
    };
    HeaderValue::try_from(range).ok()
}

/// Whether the range, as [`byte_range`] returns it, is the last bytes of a file, and at least one.
fn is_suffix(headers: &HeaderMap) -> bool {
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let length = range.and_then(|range| range.strip_prefix("bytes=-"));
    length.is_some_and(|length| is_number(length) && length.bytes().any(|digit| digit != b'0'))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the response is the representation that `If-Range` names: by a strong entity tag, or by
/// the exact date of the last change.
fn if_range_matches(condition: &HeaderValue, response: &HeaderMap) -> bool {
    let same = |name| response.get(name) == Some(condition);
    match condition.as_bytes().first() {
        Some(b'"') => same(header::ETAG),
        // A weak tag never matches.
        Some(b'W') if condition.as_bytes().starts_with(b"W/") => false,
        _ => same(header::LAST_MODIFIED),
    }
}

/// Text is UTF-8 unless its type names another charset.
fn with_charset(content_type: &HeaderValue) -> Option<HeaderValue> {
    let text = content_type.to_str().ok()?;
    let textual = text.starts_with("text/") || text == "application/javascript";
    (textual && !text.contains(';'))
        .then(|| HeaderValue::try_from(format!("{text}; charset=utf-8")).ok())?
}

/// Opens files below a directory. The kernel makes sure that symbolic links do not lead outside,
/// even if the directory is renamed meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct FileBackend {
    root: Arc<Path>,
    follow_symlinks: bool,
}

impl FileBackend {
    /// Serves files below `root`.
    ///
    /// # Errors
    /// Why the kernel cannot open files below a directory.
    pub(crate) fn new(root: &Path, follow_symlinks: bool) -> io::Result<Self> {
        let files = Self { root: root.into(), follow_symlinks };
        match files.open_beneath(root, OFlag::O_PATH) {
            Ok(_) => Ok(files),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "symbolic links cannot be confined to the directory: this kernel is older than Linux \
                 5.6, or the sandbox forbids openat2 (as systemd's RestrictSUIDSGID does); allow links \
                 with follow_symlinks = true",
            )),
            Err(error) => Err(error),
        }
    }

    /// Opens the directory or a path below it.
    fn open_beneath(&self, path: &Path, flags: OFlag) -> io::Result<std::fs::File> {
        let flags = flags | OFlag::O_CLOEXEC;
        if self.follow_symlinks {
            return Ok(open(path, flags, Mode::empty())?.into());
        }
        let relative = path.strip_prefix(&self.root).map_err(io::Error::other)?;
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        // Opened by its name each time: a deployment may have replaced the directory.
        let flags_of_root = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root: OwnedFd = open(&*self.root, flags_of_root, Mode::empty())?;
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags).resolve(resolve);
        let mut attempts = 0;
        loop {
            match openat2(&root, relative, how) {
                Ok(file) => return Ok(file.into()),
                // Something was renamed during the lookup.
                Err(Errno::EAGAIN) if attempts < MAX_LOOKUP_RETRIES => attempts += 1,
                Err(Errno::EAGAIN | Errno::EXDEV | Errno::ELOOP | Errno::ENAMETOOLONG) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn metadata_of(&self, path: &Path) -> io::Result<Metadata> {
        self.open_beneath(path, OFlag::O_PATH)?.metadata()
    }

    fn read(&self, path: &Path) -> io::Result<OpenedFile> {
        // `O_NONBLOCK`, because opening a pipe could block the worker.
        let file =
            self.open_beneath(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "not a regular file"));
        }
        let content = match metadata.len() {
            0..=MAX_INLINE_BYTES => {
                let mut bytes = Vec::with_capacity(metadata.len() as usize);
                // A file that grows meanwhile is served with its previous length.
                file.take(metadata.len()).read_to_end(&mut bytes)?;
                if bytes.len() as u64 != metadata.len() {
                    return Err(shrunk());
                }
                FileContent::Read(Cursor::new(bytes))
            }
            length => FileContent::Handle(tokio::fs::File::from_std(file).take(length)),
        };
        Ok(OpenedFile { metadata, content })
    }
}

/// Retries of a lookup during which something was renamed.
const MAX_LOOKUP_RETRIES: usize = 4;

/// An open file: the content of a small one, a handle to a large one.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    metadata: Metadata,
    content: FileContent,
}

#[derive(Debug)]
enum FileContent {
    Read(Cursor<Vec<u8>>),
    /// Up to the length that was announced: the file may grow meanwhile.
    Handle(Take<tokio::fs::File>),
}

/// The file has become shorter than its announced length, so the response is incomplete.
fn shrunk() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file was cut off while it was read")
}

impl Backend for FileBackend {
    type File = OpenedFile;
    type Metadata = Metadata;
    type OpenFuture = Ready<io::Result<OpenedFile>>;
    type MetadataFuture = Ready<io::Result<Metadata>>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        future::ready(self.read(&path))
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        future::ready(self.metadata_of(&path))
    }
}

impl File for OpenedFile {
    type Metadata = Metadata;
    type MetadataFuture<'a> = Ready<io::Result<Metadata>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        future::ready(Ok(self.metadata.clone()))
    }
}

impl AsyncRead for OpenedFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.content {
            FileContent::Read(bytes) => Pin::new(bytes).poll_read(cx, buffer),
            FileContent::Handle(file) => {
                let room = buffer.remaining();
                ready!(Pin::new(&mut *file).poll_read(cx, buffer))?;
                let has_ended = room > 0 && buffer.remaining() == room;
                Poll::Ready(if has_ended && file.limit() > 0 { Err(shrunk()) } else { Ok(()) })
            }
        }
    }
}

impl AsyncSeek for OpenedFile {
    fn start_seek(mut self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        match &mut self.content {
            FileContent::Read(bytes) => Pin::new(bytes).start_seek(position),
            FileContent::Handle(file) => Pin::new(file.get_mut()).start_seek(position),
        }
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let length = self.metadata.len();
        match &mut self.content {
            FileContent::Read(bytes) => Pin::new(bytes).poll_complete(cx),
            FileContent::Handle(file) => {
                let position = ready!(Pin::new(file.get_mut()).poll_complete(cx))?;
                file.set_limit(length.saturating_sub(position));
                Poll::Ready(Ok(position))
            }
        }
    }
}

#[cfg(test)]
mod tests;
