//! Files for the static directory, small ones read at once.
//!
//! An answer that is there when the request has been read leaves in one write with the server's
//! handshake flight; reading on another thread would let the flight go first and the answer after
//! it. Small files nearly always lie in the page cache, where a read takes microseconds. Large ones
//! are read on tokio's file threads as they are sent.

use std::fs::Metadata;
use std::future::{Ready, ready};
use std::io::{self, Cursor, Read};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::services::fs::{Backend, File};

/// Files up to this size are read at once: what leaves in a few flights anyway.
const SMALL: u64 = 64 * 1024;

/// Opens files of the machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptFiles;

/// An open file: all of a small one, a handle to a large one.
#[derive(Debug)]
pub(crate) struct PromptFile {
    metadata: Metadata,
    content: PromptContent,
}

#[derive(Debug)]
enum PromptContent {
    Read(Cursor<Vec<u8>>),
    Handle(tokio::fs::File),
}

impl Backend for PromptFiles {
    type File = PromptFile;
    type Metadata = Metadata;
    type OpenFuture = Ready<io::Result<PromptFile>>;
    type MetadataFuture = Ready<io::Result<Metadata>>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        ready(open(path))
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        ready(std::fs::metadata(path))
    }
}

fn open(path: PathBuf) -> io::Result<PromptFile> {
    // A pipe or a device could keep the whole worker waiting.
    if !std::fs::metadata(&path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is no regular file"));
    }
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    let content = match metadata.len() {
        0..=SMALL => {
            let mut bytes = Vec::with_capacity(metadata.len() as usize);
            // A file that grows meanwhile is served as long as it was.
            file.take(metadata.len()).read_to_end(&mut bytes)?;
            PromptContent::Read(Cursor::new(bytes))
        }
        _ => PromptContent::Handle(tokio::fs::File::from_std(file)),
    };
    Ok(PromptFile { metadata, content })
}

impl File for PromptFile {
    type Metadata = Metadata;
    type MetadataFuture<'a> = Ready<io::Result<Metadata>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        ready(Ok(self.metadata.clone()))
    }
}

impl AsyncRead for PromptFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.content {
            PromptContent::Read(bytes) => Pin::new(bytes).poll_read(cx, buffer),
            PromptContent::Handle(file) => Pin::new(file).poll_read(cx, buffer),
        }
    }
}

impl AsyncSeek for PromptFile {
    fn start_seek(mut self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        match &mut self.content {
            PromptContent::Read(bytes) => Pin::new(bytes).start_seek(position),
            PromptContent::Handle(file) => Pin::new(file).start_seek(position),
        }
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        match &mut self.content {
            PromptContent::Read(bytes) => Pin::new(bytes).poll_complete(cx),
            PromptContent::Handle(file) => Pin::new(file).poll_complete(cx),
        }
    }
}
