//! The access log: one line for each request, written by a separate thread.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use firstflight_config::{AccessLogFormat, AccessLogSettings};
use firstflight_units::{is_unprintable, printable_json};
use jiff::tz::TimeZone;
use serde::{Serialize, Serializer};
use tracing::warn;

use crate::ServerError;

/// A request, from its arrival to the end of its response. The field names are those of the JSON
/// format.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AccessLogEntry {
    /// When the request arrived, RFC 3339 in UTC.
    pub time: jiff::Timestamp,
    /// The client's address and port.
    pub client: String,
    /// The trace that the request belongs to, in hexadecimal; `None` without `[telemetry]`.
    pub trace_id: Option<String>,
    /// The request's span in that trace.
    pub span_id: Option<String>,
    /// The method, or `PING`.
    pub method: String,
    /// The requested host, from `Host` or `:authority`.
    pub host: Option<String>,
    /// Path and query as the client sent them.
    pub target: String,
    /// HTTP version, or `ping-pong`.
    pub protocol: &'static str,
    /// The response's status; `None` if there was no response.
    pub status: Option<u16>,
    /// Bytes read from the request's body.
    pub bytes_in: u64,
    /// Bytes of the response's body that were passed to the connection.
    pub bytes: u64,
    /// From arrival to the end of the response, in milliseconds.
    pub duration_ms: f64,
    /// Whether the whole response was passed to the connection.
    pub complete: bool,
    /// TLS version.
    pub tls_version: &'static str,
    /// Cipher suite.
    pub cipher: &'static str,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// Whether the whole request arrived as early data.
    pub early: bool,
    /// Why an early request was not run early, if it was not.
    pub held: Option<&'static str>,
    /// How long it was held, in milliseconds.
    pub held_ms: Option<f64>,
    /// The outcome of the flight's claim: `none`, `won` or `lost`.
    pub claim: &'static str,
    /// The ticket age stated by the client minus the age by the server's clock, in seconds.
    pub ticket_age_skew: i32,
    /// Whether early data was accepted, or why not.
    pub early_data: &'static str,
    /// Whether a handler (files, upstream, ping-pong) received the request.
    pub executed: bool,
    /// The client random, which identifies the flight.
    #[serde(serialize_with = "as_hexadecimal")]
    pub client_random: [u8; 32],
    /// The upstream server that responded, or that was tried last.
    pub upstream: Option<String>,
    /// The upstream's status; `None` if it did not respond.
    pub upstream_status: Option<u16>,
    /// The time until the head of the upstream's response, over all attempts, in milliseconds.
    pub upstream_ms: Option<f64>,
    /// The client's `Referer`.
    pub referer: Option<String>,
    /// The client's `User-Agent`.
    pub user_agent: Option<String>,
}

fn as_hexadecimal<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex::encode(bytes))
}

/// Queues entries for the log's thread.
pub(crate) struct AccessLog {
    lines: SyncSender<Message>,
    writer: Mutex<Option<JoinHandle<()>>>,
    state: Arc<State>,
}

/// State shared with the log's thread.
#[derive(Default)]
struct State {
    lost: AtomicU64,
    /// Bytes of the texts in queued entries.
    queued_bytes: AtomicUsize,
    /// Set if the file is to be reopened, but the queue is full.
    reopens: AtomicBool,
}

enum Message {
    Entry(Box<AccessLogEntry>),
    Reopen,
    End,
}

impl AccessLog {
    /// Opens the log and starts its thread.
    ///
    /// # Errors
    /// [`ServerError::AccessLog`].
    pub(crate) fn open(settings: &AccessLogSettings) -> Result<Self, ServerError> {
        let path = settings.file.clone();
        let out = open_output(path.as_ref()).map_err(|reason| ServerError::AccessLog {
            path: path.clone().unwrap_or_default(),
            reason,
        })?;
        let (lines, incoming) = sync_channel(MAX_QUEUED);
        let format = settings.format;
        let state = Arc::<State>::default();
        let shared = state.clone();
        let writer = thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || run_writer(&incoming, out, path, format, &shared))
            .map_err(|reason| ServerError::AccessLog { path: PathBuf::new(), reason })?;
        Ok(Self { lines, writer: Mutex::new(Some(writer)), state })
    }

    /// Queues an entry without waiting. If the disk is too slow, entries are dropped, counted and
    /// reported.
    pub(crate) fn queue(&self, entry: AccessLogEntry) {
        let bytes = entry.text_bytes();
        let queued = self.state.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if queued > MAX_QUEUED_BYTES
            || self.lines.try_send(Message::Entry(Box::new(entry))).is_err()
        {
            self.state.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let lost = self.state.lost.fetch_add(1, Ordering::Relaxed);
            if lost.is_power_of_two() || lost == 0 {
                warn!("the access log cannot be written fast enough; lines lost: {}", lost + 1);
            }
        }
    }

    /// The number of lost lines.
    pub(crate) fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// Opens the file again, after a log rotation has moved it.
    pub(crate) fn reopen(&self) {
        if self.lines.try_send(Message::Reopen).is_err() {
            self.state.reopens.store(true, Ordering::Relaxed);
        }
    }

    /// Writes all queued lines and ends the thread. Blocks until they are written.
    pub(crate) fn close(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            let _ = self.lines.send(Message::End);
            let _ = writer.join();
        }
    }
}

impl AccessLogEntry {
    /// The bytes of the texts that clients choose.
    fn text_bytes(&self) -> usize {
        let fields = [&self.host, &self.referer, &self.user_agent];
        let fields = fields.into_iter().flatten().map(String::len).sum::<usize>();
        self.method.len() + self.target.len() + fields
    }

    /// Writes the line, including its line end.
    fn write(&self, format: AccessLogFormat, line: &mut String) {
        let _ = match format {
            AccessLogFormat::Json => {
                let json = serde_json::to_string(self).unwrap_or_default();
                writeln!(line, "{}", printable_json(&json))
            }
            AccessLogFormat::Text => self.write_text(line),
            AccessLogFormat::Combined => self.write_combined(line),
        };
    }

    /// `HOST IDENT USER [TIME] "REQUEST" STATUS BYTES "REFERER" "USER-AGENT"`, as Apache defines it.
    fn write_combined(&self, line: &mut String) -> fmt::Result {
        match self.client.parse::<SocketAddr>() {
            Ok(address) => write!(line, "{}", address.ip().to_canonical())?,
            Err(_) => line.push_str(&self.client),
        }
        let time = self.time.to_zoned(TimeZone::UTC);
        writeln!(
            line,
            " - - [{}] \"{} {} {}\" {} {} \"{}\" \"{}\"",
            time.strftime("%d/%b/%Y:%H:%M:%S %z"),
            self.method,
            Escaped(&self.target),
            self.protocol,
            // 499 as in nginx: the client disconnected before there was a status.
            self.status.unwrap_or(499),
            self.bytes,
            OrDash(self.referer.as_deref().map(Escaped)),
            OrDash(self.user_agent.as_deref().map(Escaped)),
        )
    }

    fn write_text(&self, line: &mut String) -> fmt::Result {
        let yes = |value: bool| if value { "yes" } else { "no" };
        writeln!(
            line,
            "{} {} \"{} {} {}\" {} {} {:.3}ms {} {} resumed={} early={} held={} held_ms={:.3} \
             claim={} skew={} early_data={} executed={} complete={} host={} upstream={} \
             upstream_ms={:.3} trace={}",
            self.time,
            self.client,
            self.method,
            Escaped(&self.target),
            self.protocol,
            OrDash(self.status),
            self.bytes,
            self.duration_ms,
            self.tls_version,
            self.cipher,
            yes(self.resumed),
            yes(self.early),
            self.held.unwrap_or("-"),
            OrDash(self.held_ms),
            self.claim,
            self.ticket_age_skew,
            self.early_data,
            yes(self.executed),
            yes(self.complete),
            OrDash(self.host.as_deref().map(EscapedWord)),
            self.upstream.as_deref().unwrap_or("-"),
            OrDash(self.upstream_ms),
            self.trace_id.as_deref().unwrap_or("-"),
        )
    }
}

/// A value, or `-` if it is missing.
struct OrDash<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrDash<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// A client's text that is not in quotes. Spaces are escaped, so that it cannot forge further
/// fields.
struct EscapedWord<'a>(&'a str);

impl fmt::Display for EscapedWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.split(' ').enumerate() {
            f.write_str(if at == 0 { "" } else { "\\u{20}" })?;
            Escaped(part).fmt(f)?;
        }
        Ok(())
    }
}

/// A client's text, escaped so that it cannot end its quotes or its line.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if self.0.bytes().all(is_plain) {
            return f.write_str(self.0);
        }
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "{}", c.escape_default())?,
                c if is_unprintable(c) => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

fn open_output(path: Option<&PathBuf>) -> io::Result<Box<dyn Write + Send>> {
    Ok(match path {
        None => Box::new(io::stdout()),
        Some(path) => Box::new(open_file(path)?),
    })
}

/// Opens a file for appending. Does not follow a symbolic link, by which the owner of the directory
/// could choose another file.
fn open_file(path: &Path) -> io::Result<File> {
    let mut existing = OpenOptions::new();
    existing.append(true).custom_flags(libc::O_NOFOLLOW);
    let mut new = existing.clone();
    new.create_new(true).mode(NEW_FILE_MODE);
    let opened = match new.open(path) {
        // Independent of the umask, which is 0077 in the packaged unit.
        Ok(file) => {
            // Some file systems have no modes.
            let _ = file.set_permissions(Permissions::from_mode(NEW_FILE_MODE));
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => existing.open(path),
        Err(error) => Err(error),
    };
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
        _ => error,
    })
}

/// Writes the queued entries. This is the log's thread.
fn run_writer(
    incoming: &Receiver<Message>,
    out: Box<dyn Write + Send>,
    path: Option<PathBuf>,
    format: AccessLogFormat,
    state: &State,
) {
    let mut out = BufWriter::new(out);
    let mut line = String::new();
    let mut is_failing = false;
    loop {
        // Flushed whenever the queue is empty, so that a reader sees each line within a tenth of a
        // second.
        let message = match incoming.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                log_first_failure(out.flush(), &mut is_failing);
                match incoming.recv() {
                    Ok(message) => {
                        // Waking this thread delays the worker that queues a line, before its
                        // response is sent. While this thread sleeps, further lines need no
                        // wake-up.
                        thread::sleep(GATHER_DELAY);
                        message
                    }
                    Err(RecvError) => break,
                }
            }
        };
        if state.reopens.swap(false, Ordering::Relaxed) || matches!(message, Message::Reopen) {
            log_first_failure(out.flush(), &mut is_failing);
            match open_output(path.as_ref()) {
                Ok(reopened) => out = BufWriter::new(reopened),
                Err(error) => warn!("cannot open the access log again: {error}"),
            }
        }
        match message {
            Message::Entry(entry) => {
                state.queued_bytes.fetch_sub(entry.text_bytes(), Ordering::Relaxed);
                line.clear();
                entry.write(format, &mut line);
                let written = out.write_all(line.as_bytes());
                if written.is_err() {
                    state.lost.fetch_add(1, Ordering::Relaxed);
                    log_first_failure(written, &mut is_failing);
                }
            }
            Message::Reopen => {}
            Message::End => break,
        }
    }
    log_first_failure(out.flush(), &mut is_failing);
}

/// Logs the first of consecutive failures.
fn log_first_failure(result: io::Result<()>, is_failing: &mut bool) {
    if let (Err(error), false) = (&result, *is_failing) {
        warn!("cannot write the access log: {error}");
    }
    *is_failing = result.is_err();
}

/// The group may read a log file.
const NEW_FILE_MODE: u32 = 0o640;

/// How long the first line after a pause waits for others.
const GATHER_DELAY: Duration = Duration::from_millis(100);

/// The maximum number of queued lines: about 20 MB at usual lengths.
const MAX_QUEUED: usize = 65_536;

/// The maximum number of bytes of clients' texts in queued lines.
const MAX_QUEUED_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(target: &str) -> AccessLogEntry {
        AccessLogEntry {
            time: jiff::Timestamp::UNIX_EPOCH,
            client: "192.0.2.1:5".to_owned(),
            method: "GET".to_owned(),
            target: target.to_owned(),
            protocol: "HTTP/1.1",
            status: Some(200),
            bytes: 3,
            duration_ms: 1.5,
            complete: true,
            tls_version: "TLSv1.3",
            cipher: "TLS_AES_128_GCM_SHA256",
            resumed: true,
            early: true,
            held: Some("policy"),
            held_ms: Some(20.25),
            claim: "none",
            ticket_age_skew: -1,
            early_data: "accepted",
            executed: true,
            client_random: [0; 32],
            trace_id: None,
            span_id: None,
            host: Some("h.test".to_owned()),
            bytes_in: 0,
            upstream: Some("127.0.0.1:80".to_owned()),
            upstream_status: Some(200),
            upstream_ms: Some(1.25),
            referer: None,
            user_agent: None,
        }
    }

    fn line(entry: &AccessLogEntry, format: AccessLogFormat) -> String {
        let mut line = String::new();
        entry.write(format, &mut line);
        line
    }

    #[test]
    fn the_combined_format_is_that_of_apache() {
        let entry = AccessLogEntry {
            client: "[::ffff:192.0.2.1]:5".to_owned(),
            referer: Some("https://a.test/\"x".to_owned()),
            ..entry("/a?b")
        };
        assert_eq!(
            line(&entry, AccessLogFormat::Combined),
            "192.0.2.1 - - [01/Jan/1970:00:00:00 +0000] \"GET /a?b HTTP/1.1\" 200 3 \
             \"https://a.test/\\\"x\" \"-\"\n"
        );
        let proxied = AccessLogEntry { client: "2001:db8::1".to_owned(), ..entry };
        assert!(line(&proxied, AccessLogFormat::Combined).starts_with("2001:db8::1 - - ["));
    }

    #[test]
    fn a_text_line_has_every_field_in_order() {
        assert_eq!(
            line(&entry("/a?b"), AccessLogFormat::Text),
            "1970-01-01T00:00:00Z 192.0.2.1:5 \"GET /a?b HTTP/1.1\" 200 3 1.500ms TLSv1.3 \
             TLS_AES_128_GCM_SHA256 resumed=yes early=yes held=policy held_ms=20.250 claim=none \
             skew=-1 early_data=accepted executed=yes complete=yes host=h.test \
             upstream=127.0.0.1:80 upstream_ms=1.250 trace=-\n"
        );
    }

    /// `/dev/full` is a disk without room.
    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let settings =
            AccessLogSettings { file: Some("/dev/full".into()), format: AccessLogFormat::Text };
        let log = AccessLog::open(&settings).unwrap();
        for _ in 0..100 {
            log.queue(entry("/"));
        }
        log.close();
        assert!((50..=100).contains(&log.lost()), "{}", log.lost());
    }

    #[test]
    fn long_lines_are_queued_up_to_a_number_of_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let settings =
            AccessLogSettings { file: Some(file.clone()), format: AccessLogFormat::Text };
        let log = AccessLog::open(&settings).unwrap();
        log.queue(entry(&"x".repeat(MAX_QUEUED_BYTES + 1)));
        assert_eq!(log.lost(), 1);
        log.queue(entry("/"));
        log.close();
        assert_eq!(log.lost(), 1);
        assert_eq!(log.state.queued_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 1);
    }

    #[test]
    fn every_field_is_documented() {
        let docs = include_str!("../../../../docs/operate/observe.md");
        let fields = serde_json::to_value(entry("/")).unwrap();
        for name in fields.as_object().unwrap().keys() {
            assert!(
                docs.contains(&format!("`{name}`")),
                "{name} is not in docs/operate/observe.md"
            );
        }
    }

    #[test]
    fn a_target_cannot_end_its_quotes_or_its_line() {
        let line = line(&entry("/\" 200 \\\n\u{85}x"), AccessLogFormat::Text);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.contains("\"GET /\\\" 200 \\\\\\n\\u{85}x HTTP/1.1\""), "{line}");
    }

    #[test]
    fn a_symbolic_link_is_not_followed_at_the_start_or_after_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let [file, other] = ["log", "other"].map(|name| dir.path().join(name));
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&other, &file).unwrap();
        let settings =
            AccessLogSettings { file: Some(file.clone()), format: AccessLogFormat::Json };
        let refused = AccessLog::open(&settings).err().unwrap().to_string();
        assert!(refused.contains("it is a symbolic link"), "{refused}");
        std::fs::remove_file(&file).unwrap();

        let log = AccessLog::open(&settings).unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{mode:o}");
        let moved = dir.path().join("log.1");
        std::fs::rename(&file, &moved).unwrap();
        std::os::unix::fs::symlink(&other, &file).unwrap();
        log.reopen();
        log.queue(entry("/"));
        log.close();
        let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(moved), lines(other)), (1, 0), "the file in use stays");
    }

    #[test]
    fn text_from_a_client_is_escaped() {
        let user_agent = "a\u{9b}2J\u{7f}\n\u{202e}b";
        let entry =
            AccessLogEntry { user_agent: Some(user_agent.to_owned()), ..entry("/\u{202e}x") };
        let json = line(&entry, AccessLogFormat::Json);
        assert!(!json.trim_end_matches('\n').contains(is_unprintable), "{json:?}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["user_agent"], user_agent);
        let text = line(&entry, AccessLogFormat::Text);
        assert!(text.contains("/\\u{202e}x"), "{text}");
        let entry = AccessLogEntry { host: Some("h executed=no \"".to_owned()), ..entry };
        let text = line(&entry, AccessLogFormat::Text);
        assert!(text.contains(r#" host=h\u{20}executed=no\u{20}\" "#), "{text}");
    }

    #[test]
    fn no_line_is_lost_by_closing_or_rotating() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let settings =
            AccessLogSettings { file: Some(file.clone()), format: AccessLogFormat::Json };
        let log = AccessLog::open(&settings).unwrap();
        (0..1000).for_each(|_| log.queue(entry("/")));
        let moved = dir.path().join("log.1");
        std::fs::rename(&file, &moved).unwrap();
        log.reopen();
        (0..10).for_each(|_| log.queue(entry("/")));
        log.close();
        let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(moved), lines(file)), (1000, 10));
    }
}
