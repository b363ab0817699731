//! A witness: an HTTP/1.1 origin that counts executions by their query string.
//!
//! Any server can forward to it. Each request is counted. The response is a JSON object with
//! `executions`, how often the same query was executed so far, and `early_data`, the value of the
//! header field `Early-Data` or null. An audit needs nothing more from an upstream.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Counts executions by query. Keeps only the newest queries.
#[derive(Default)]
pub struct Witness {
    counts: HashMap<String, u64>,
    order: VecDeque<String>,
}

impl Witness {
    /// Counts an execution, and returns how many there were of this query.
    pub fn count(&mut self, query: &str) -> u64 {
        if !self.counts.contains_key(query) {
            if self.order.len() == MAX_QUERIES
                && let Some(oldest) = self.order.pop_front()
            {
                self.counts.remove(&oldest);
            }
            self.order.push_back(query.to_owned());
        }
        let count = self.counts.entry(query.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Responds to requests until the listener fails.
    ///
    /// # Errors
    /// If the listener fails.
    pub fn serve(self, listener: &TcpListener) -> io::Result<()> {
        let (witness, connections) = (Arc::new(Mutex::new(self)), Arc::new(AtomicUsize::new(0)));
        loop {
            let (stream, _) = listener.accept()?;
            if connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (witness, connections) = (witness.clone(), connections.clone());
            thread::spawn(move || {
                let _ = serve_connection(stream, &witness);
                connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// Responds to the requests of a connection.
fn serve_connection(mut stream: TcpStream, witness: &Mutex<Witness>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let (mut buffer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let response = {
            let mut witness = witness.lock().unwrap_or_else(PoisonError::into_inner);
            witness_response(&mut witness, &buffer)
        };
        match response {
            Ok(Some((response, length))) => {
                stream.write_all(response.as_bytes())?;
                buffer.drain(..length);
                if response.contains(CLOSE) {
                    return Ok(());
                }
            }
            Ok(None) => match stream.read(&mut chunk)? {
                0 => return Ok(()),
                length => buffer.extend_from_slice(&chunk[..length]),
            },
            Err(InvalidRequest) => {
                let refused =
                    "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                return stream.write_all(refused.as_bytes());
            }
        }
    }
}

/// The bytes are not an HTTP/1.1 request, or it is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a request of HTTP/1.1")]
pub struct InvalidRequest;

/// Executes the request at the start of `bytes`. Returns the response and the length of the
/// request, or `None` if the request is incomplete.
///
/// # Errors
/// [`InvalidRequest`].
pub fn witness_response(
    witness: &mut Witness,
    bytes: &[u8],
) -> Result<Option<(String, usize)>, InvalidRequest> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST_BYTES => return Ok(None),
        _ => return Err(InvalidRequest),
    };
    let field = |name: &str| {
        let mut found =
            request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        found.next().map(|field| String::from_utf8_lossy(field.value).into_owned())
    };
    if field("transfer-encoding").is_some() {
        return Err(InvalidRequest);
    }
    let body = field("content-length").map_or(Ok(0), |length| length.parse::<usize>());
    let length = head.checked_add(body.map_err(|_| InvalidRequest)?).ok_or(InvalidRequest)?;
    if length > MAX_REQUEST_BYTES {
        return Err(InvalidRequest);
    }
    if bytes.len() < length {
        return Ok(None);
    }
    let target = request.path.unwrap_or_default();
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let body = serde_json::json!({
        "executions": witness.count(query),
        "early_data": field("early-data"),
    })
    .to_string();
    let sent_body = if request.method == Some("HEAD") { "" } else { &body };
    // RFC 9112 section 9.6
    let closes = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let closes = if closes { CLOSE } else { "" };
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncache-control: no-store\r\n{closes}\
         content-length: {}\r\n\r\n{sent_body}",
        body.len()
    );
    Ok(Some((response, length)))
}

const CLOSE: &str = "connection: close\r\n";
const MAX_QUERIES: usize = 10_000;
const MAX_CONNECTIONS: usize = 256;
const MAX_REQUEST_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 100;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn executions(witness: &mut Witness, request: &str) -> String {
        let (response, length) = witness_response(witness, request.as_bytes()).unwrap().unwrap();
        assert_eq!(length, request.len());
        response.split("\r\n\r\n").nth(1).unwrap().to_owned()
    }

    #[test]
    fn each_query_has_its_own_count() {
        let mut witness = Witness::default();
        let a = "GET /witness?a HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(executions(&mut witness, a), r#"{"early_data":null,"executions":1}"#);
        let early = "POST /w?a HTTP/1.1\r\nEarly-Data: 1\r\nContent-Length: 2\r\n\r\nxy";
        assert_eq!(executions(&mut witness, early), r#"{"early_data":"1","executions":2}"#);
        assert!(executions(&mut witness, &a.replace("?a", "?b")).contains("\"executions\":1"));
    }

    #[test]
    fn a_connection_is_closed_if_the_client_requests_it() {
        let mut witness = Witness::default();
        for (field, closes) in [("", false), ("Connection: close\r\n", true)] {
            let request = format!("GET /?a HTTP/1.1\r\n{field}\r\n");
            let (response, _) =
                witness_response(&mut witness, request.as_bytes()).unwrap().unwrap();
            assert_eq!(response.contains(CLOSE), closes, "{response}");
        }
    }

    #[test]
    fn incomplete_requests_wait_and_invalid_ones_are_refused() {
        let mut witness = Witness::default();
        let request = b"POST /?a HTTP/1.1\r\nContent-Length: 2\r\n\r\nxy";
        for length in 0..request.len() {
            assert_eq!(witness_response(&mut witness, &request[..length]), Ok(None));
        }
        for bad in ["\0\0", "GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"] {
            assert_eq!(witness_response(&mut witness, bad.as_bytes()), Err(InvalidRequest));
        }
        assert!(witness.counts.is_empty(), "nothing was executed");
    }

    #[test]
    fn memory_is_bounded() {
        let mut witness = Witness::default();
        for number in 0..MAX_QUERIES + 5 {
            witness.count(&number.to_string());
        }
        assert_eq!((witness.counts.len(), witness.order.len()), (MAX_QUERIES, MAX_QUERIES));
        assert_eq!(witness.count(&MAX_QUERIES.to_string()), 2, "the newest are kept");
    }
}
