//! Keeps small files that were served recently in memory, with the fields of their responses.
//!
//! A plain `GET` of such a file costs one `stat` instead of nine system calls. Nothing stale is
//! served: a file whose inode, size or times differ from those of the copy is read again. A copy is
//! only kept if the file had not changed for [`SETTLE_TIME`] when it was read, because a file may
//! change twice within one tick of the file system's clock.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use percent_encoding::percent_decode_str;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::context::ResponseBody;

/// Small files below one directory.
pub(crate) struct SmallFiles {
    root: Box<Path>,
    files: Cache<Box<str>, Arc<SmallFile>, BySize>,
}

/// A file's content and the fields of its response.
struct SmallFile {
    path: PathBuf,
    version: FileVersion,
    headers: HeaderMap,
    content: Bytes,
}

/// What changes when a file is changed or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The file that a request names, before it is read.
pub(crate) struct Candidate {
    key: Box<str>,
    path: PathBuf,
    version: FileVersion,
}

impl SmallFiles {
    pub(crate) fn new(root: &Path) -> Self {
        let files = Cache::with_weighter(EXPECTED_FILES, MAX_TOTAL_BYTES, BySize);
        Self { root: root.into(), files }
    }

    /// The response to a plain `GET`, if its file is in memory and has not changed.
    pub(crate) fn respond<B>(&self, request: &Request<B>) -> Option<Response<ResponseBody>> {
        if !is_plain(request) {
            return None;
        }
        let file = self.files.get(request.uri().path())?;
        if fs::metadata(&file.path).map(|now| FileVersion::of(&now)).ok() != Some(file.version) {
            self.files.remove(request.uri().path());
            return None;
        }
        let body = Full::new(file.content.clone()).map_err(|never| match never {});
        let mut response = Response::new(body.boxed_unsync());
        *response.headers_mut() = file.headers.clone();
        Some(response)
    }

    /// The file that a plain `GET` names, if its content may be kept. Call this before the file is
    /// read. The request's path has been checked.
    pub(crate) fn candidate<B>(&self, request: &Request<B>) -> Option<Candidate> {
        let uri_path = request.uri().path();
        if !is_plain(request) || uri_path.len() > MAX_KEY_BYTES {
            return None;
        }
        let relative = percent_decode_str(uri_path.strip_prefix('/')?).decode_utf8().ok()?;
        let mut path = self.root.join(&*relative);
        if uri_path.ends_with('/') {
            path.push("index.html");
        }
        let metadata = fs::metadata(&path).ok()?;
        let changed = SystemTime::UNIX_EPOCH
            + Duration::new(u64::try_from(metadata.ctime()).ok()?, metadata.ctime_nsec() as u32);
        let is_settled = changed.elapsed().is_ok_and(|age| age >= SETTLE_TIME);
        let fits = metadata.is_file() && metadata.len() <= MAX_INLINE_BYTES;
        (is_settled && fits).then(|| Candidate {
            key: uri_path.into(),
            path,
            version: FileVersion::of(&metadata),
        })
    }

    /// Keeps the response to a candidate's request.
    pub(crate) fn keep(&self, candidate: Candidate, headers: &HeaderMap, content: &Bytes) {
        if content.len() as u64 != candidate.version.size {
            return;
        }
        let Candidate { key, path, version } = candidate;
        let (mut headers, content) = (headers.clone(), content.clone());
        // A clone keeps the size of the map's index, so that further fields need no new one.
        headers.reserve(MAX_ADDED_FIELDS);
        self.files.insert(key, Arc::new(SmallFile { path, version, headers, content }));
    }
}

impl FileVersion {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Whether the response is the whole file: the request has no range and no condition.
fn is_plain<B>(request: &Request<B>) -> bool {
    let selects = |name| {
        matches!(name, &header::RANGE | &header::IF_MATCH | &header::IF_NONE_MATCH)
            || matches!(name, &header::IF_MODIFIED_SINCE | &header::IF_UNMODIFIED_SINCE)
    };
    request.method() == Method::GET && !request.headers().keys().any(selects)
}

/// Counts a file's content, its fields and its place in the cache.
#[derive(Clone)]
struct BySize;

impl Weighter<Box<str>, Arc<SmallFile>> for BySize {
    fn weight(&self, key: &Box<str>, file: &Arc<SmallFile>) -> u64 {
        (key.len() + file.content.len() + OVERHEAD_BYTES) as u64
    }
}

/// Files up to this size are read immediately, and may be kept: they need few round trips anyway.
pub(crate) const MAX_INLINE_BYTES: u64 = 64 * 1024;

/// The memory that copies may take.
const MAX_TOTAL_BYTES: u64 = 16 * 1024 * 1024;
/// The expected number of copies.
const EXPECTED_FILES: usize = 4096;
/// The fields of a copy, and its place in the cache.
const OVERHEAD_BYTES: usize = 1024;
const MAX_KEY_BYTES: usize = 1024;

/// Fields that are added to a response, such as `Date` and `Alt-Svc`.
const MAX_ADDED_FIELDS: usize = 4;

/// How long a file must have been unchanged before a copy of it is kept: many ticks of any file
/// system's clock.
const SETTLE_TIME: Duration = Duration::from_secs(2);
