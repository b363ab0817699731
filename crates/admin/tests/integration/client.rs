//! An admin server in this process, and a client that sends exactly the given bytes.

use firstflight_admin::{Admin, AdminHandle};
use firstflight_config::{AdminAddress, AdminSettings};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::scene::Scene;

/// An admin server that stops when this is dropped.
pub(crate) struct TestAdmin {
    pub(crate) address: String,
    pub(crate) handle: AdminHandle,
    pub(crate) settings: AdminSettings,
    task: JoinHandle<()>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl TestAdmin {
    /// Starts a server on loopback, without a token.
    pub(crate) async fn without_token(scene: Scene) -> Self {
        Self::start(AdminSettings::new(loopback()), scene).await
    }

    /// Starts a server on loopback, with [`TOKEN`] in a file of `dir`.
    pub(crate) async fn with_token(dir: &TempDir, scene: Scene) -> Self {
        let mut settings = AdminSettings::new(loopback());
        settings.token_file = Some(write_token(dir, TOKEN));
        Self::start(settings, scene).await
    }

    pub(crate) async fn start(settings: AdminSettings, scene: Scene) -> Self {
        let admin = Admin::bind(settings.clone(), scene).await.unwrap();
        let (address, handle) = (admin.name(), admin.handle());
        let task = tokio::spawn(admin.run(std::future::pending()));
        Self { address, handle, settings, task }
    }

    /// Sends a GET with these additional lines in its head.
    pub(crate) async fn get(&self, path: &str, lines: &[&str]) -> Response {
        self.send("GET", path, lines, "").await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        lines: &[&str],
        body: &str,
    ) -> Response {
        let host = format!("Host: {}", self.address);
        let mut head = vec![format!("{method} {path} HTTP/1.1"), "Connection: close".to_owned()];
        if !lines.iter().any(|line| line.starts_with("Host:")) {
            head.push(host);
        }
        if !body.is_empty() {
            head.push(format!("Content-Length: {}", body.len()));
        }
        head.extend(lines.iter().map(|line| (*line).to_owned()));
        self.raw(&format!("{}\r\n\r\n{body}", head.join("\r\n"))).await
    }

    /// Sends these bytes, and reads the response to its end.
    pub(crate) async fn raw(&self, request: &str) -> Response {
        exchange(self.connect().await, request).await
    }

    pub(crate) async fn connect(&self) -> Box<dyn Stream> {
        match self.address.strip_prefix("unix:") {
            Some(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            None => Box::new(TcpStream::connect(&self.address).await.unwrap()),
        }
    }
}

impl Drop for TestAdmin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Response {
    /// A header field; empty if it is missing.
    pub(crate) fn field(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let found = lines.find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        });
        found.unwrap_or_default()
    }
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn exchange(mut stream: Box<dyn Stream>, request: &str) -> Response {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    Response { status, head: head.to_owned(), body: body.to_owned() }
}

pub(crate) fn loopback() -> AdminAddress {
    AdminAddress::Tcp(([127, 0, 0, 1], 0).into())
}

/// Writes a token file that only its owner may read.
pub(crate) fn write_token(dir: &TempDir, token: &str) -> std::path::PathBuf {
    use std::os::unix::fs::OpenOptionsExt;
    let path = dir.path().join("token");
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
    std::io::Write::write_all(&mut file.unwrap(), token.as_bytes()).unwrap();
    path
}

pub(crate) const TOKEN: &str = "c0ffee00c0ffee00c0ffee00c0ffee00";
