//! Idle connections: the memory that a server holds for each, the cost of requests on active
//! connections beside them, and the memory that remains after they have closed.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use firstflight_bench::{KeepAliveConfig, Limit, run_keep_alive};
use firstflight_samples::HttpVersion;
use firstflight_tls::{
    CipherPolicy, ConnectOptions, Connector, ConnectorConfig, Progress, TlsConnection, Trust,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;
use socket2::{Domain, Socket, Type};

use crate::arguments::Arguments;
use crate::seconds;
use crate::servers::{Running, Server, Site};

/// Memory and CPU of a server with idle connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct IdleRow {
    pub(crate) server: String,
    /// The version of HTTP.
    http: &'static str,
    idle: usize,
    /// KiB of resident memory for each idle connection, without kernel memory.
    kib_each: f64,
    /// The same after all idle connections have closed.
    kib_each_after: f64,
    /// Microseconds of the server's CPU for a request on active connections beside the idle ones.
    active_us: f64,
    /// Mean response time of these requests in milliseconds.
    active_ms: f64,
    /// The share of a core that the server takes while nobody sends anything, in percent.
    idle_cpu_percent: f64,
}

/// Connections that make requests beside the idle ones.
const ACTIVE_CONNECTIONS: usize = 1000;

/// Connections that are opened and closed first. The memory that remains is the baseline.
const WARM_UP_CONNECTIONS: usize = 200;

/// The versions of HTTP over TCP. A QUIC client needs too much memory for 50,000.
const HTTP_VERSIONS: [HttpVersion; 2] = [HttpVersion::One, HttpVersion::Two];

/// Lets this process, and the servers that it starts, have a file open for each connection. Returns
/// the numbers of connections, lowered to what the system allows.
pub(crate) fn raise_file_limit(idle: &[usize]) -> io::Result<Vec<usize>> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let other_files = WARM_UP_CONNECTIONS + 3 * ACTIVE_CONNECTIONS;
    let needed = (idle.iter().max().copied().unwrap_or_default() + other_files) as u64;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard.max(needed));
    if raised.is_ok() {
        return Ok(idle.to_vec());
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    eprintln!("{hard} open files are allowed, so fewer idle connections; raise `ulimit -Hn`");
    let max_idle = (hard as usize).saturating_sub(other_files);
    if max_idle == 0 {
        return Err(io::Error::other(format!(
            "{hard} open files are too few: {needed} are needed"
        )));
    }
    let mut allowed: Vec<_> = idle.iter().map(|count| (*count).min(max_idle)).collect();
    allowed.dedup();
    Ok(allowed)
}

/// Measures a server, which is started again for each row. Returns the rows up to the first
/// failure, and the reason for it.
pub(crate) fn measure(
    server: &Server,
    site: &Site,
    idle: &[usize],
    arguments: &Arguments,
) -> (Vec<IdleRow>, Option<String>) {
    let mut rows = Vec::new();
    for http in HTTP_VERSIONS {
        for idle in idle {
            let row = server
                .start(site, arguments.server_core)
                .and_then(|running| measure_row(&running, http, *idle, arguments));
            match row {
                Ok(row) => rows.push(row),
                Err(reason) => {
                    return (rows, Some(format!("HTTP/{}, {idle} idle: {reason}", http.name())));
                }
            }
        }
    }
    (rows, None)
}

fn measure_row(
    server: &Running,
    http: HttpVersion,
    idle: usize,
    arguments: &Arguments,
) -> Result<IdleRow, String> {
    let client = Client::new(server.address, http)?;
    let open = |numbers: Range<usize>| {
        numbers.map(|number| client.open(number)).collect::<Result<Vec<_>, _>>()
    };
    drop(open(0..WARM_UP_CONNECTIONS)?);
    sleep(SETTLE_TIME);
    let before = server.memory_kib();
    let idle_connections = open(0..idle)?;
    sleep(SETTLE_TIME);
    let each = |kib: u64| kib.saturating_sub(before) as f64 / idle as f64;
    let kib_each = each(server.memory_kib());
    let cpu_before = server.cpu_time();
    sleep(SETTLE_TIME);
    let (user, system) = server.cpu_time().since(cpu_before);
    drop(idle_connections);
    sleep(4 * SETTLE_TIME);
    // Measured before the active connections, whose memory must not count.
    let kib_each_after = each(server.memory_kib());
    // Other addresses, because the earlier ports may still be in TIME_WAIT.
    let first = idle.next_multiple_of(CONNECTIONS_PER_ADDRESS);
    let idle_connections = open(first..first + idle)?;
    let mut cpu_before = server.cpu_time();
    let config = KeepAliveConfig {
        address: server.address,
        path: "/1k".to_owned(),
        credentials: None,
        http,
        ciphers: ciphers(),
        connections: ACTIVE_CONNECTIONS,
        limit: Limit::Time(seconds(arguments.seconds)),
    };
    let active = run_keep_alive(&config, || cpu_before = server.cpu_time())
        .map_err(|error| error.to_string())?;
    let (active_user, active_system) = server.cpu_time().since(cpu_before);
    drop(idle_connections);
    Ok(IdleRow {
        server: server.name.clone(),
        http: http.name(),
        idle,
        kib_each,
        kib_each_after,
        active_us: (active_user + active_system) / active.completed as f64,
        active_ms: ACTIVE_CONNECTIONS as f64 * active.seconds / active.completed as f64 * 1e3,
        idle_cpu_percent: (user + system) / SETTLE_TIME.as_secs_f64() / 1e4,
    })
}

/// Time for a server to handle pending events, and to release memory.
const SETTLE_TIME: Duration = Duration::from_secs(1);

fn ciphers() -> CipherPolicy {
    CipherPolicy {
        tls13_ciphers: Some("TLS_AES_128_GCM_SHA256".to_owned()),
        groups: Some("X25519".to_owned()),
        ..CipherPolicy::default()
    }
}

/// Opens connections and makes one request on each.
struct Client {
    connector: Connector,
    address: SocketAddr,
    http: HttpVersion,
}

impl Client {
    fn new(address: SocketAddr, http: HttpVersion) -> Result<Self, String> {
        let config = ConnectorConfig {
            ciphers: ciphers(),
            alpn: vec![http.alpn().to_vec()],
            ..ConnectorConfig::new(Trust::Anyone)
        };
        let connector = Connector::new(config).map_err(|error| error.to_string())?;
        Ok(Self { connector, address, http })
    }

    /// Opens a connection and reads its first response. Then drops the client's TLS state, so that
    /// thousands of connections fit into this process.
    fn open(&self, number: usize) -> Result<TcpStream, String> {
        let opened = self.connect(number).map_err(|error| error.to_string())?;
        let offer = ConnectOptions { host: "localhost".to_owned(), ..ConnectOptions::default() };
        let tls = self.connector.connection(&offer).map_err(|error| error.to_string())?;
        self.request(tls, opened).map_err(|error| format!("connection {number}: {error}"))
    }

    /// Connects from one of several addresses: each has 28,000 ports for connections to one server.
    /// The port is chosen while connecting. Binding would look for one that no connection to any
    /// server uses, which takes milliseconds once there are thousands.
    fn connect(&self, number: usize) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::from((source_address(number), 0)).into())?;
        socket.connect(&self.address.into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(stream)
    }

    fn request(&self, mut tls: TlsConnection, mut socket: TcpStream) -> io::Result<TcpStream> {
        while tls.handshake().map_err(io::Error::other)? != Progress::Done(()) {
            exchange(&mut tls, &mut socket)?;
        }
        let is_http2 = self.http == HttpVersion::Two;
        let is_complete = if is_http2 { http2_is_complete } else { http1_is_complete };
        tls.write(if is_http2 { HTTP2_REQUEST } else { HTTP1_REQUEST })
            .map_err(io::Error::other)?;
        send(&mut tls, &mut socket)?;
        let (mut response, mut part) = (Vec::new(), [0; 4096]);
        while !is_complete(&response) {
            match tls.read(&mut part).map_err(io::Error::other)? {
                Progress::Done(count) => response.extend_from_slice(&part[..count]),
                Progress::NeedsInput => exchange(&mut tls, &mut socket)?,
                Progress::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        Ok(socket)
    }
}

/// The client's address for a connection.
fn source_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 2 + (number / CONNECTIONS_PER_ADDRESS) as u8)
}

/// Connections from each client address.
const CONNECTIONS_PER_ADDRESS: usize = 20_000;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

fn send(tls: &mut TlsConnection, socket: &mut TcpStream) -> io::Result<()> {
    let count = tls.outgoing().len();
    socket.write_all(tls.outgoing())?;
    tls.sent(count);
    Ok(())
}

fn exchange(tls: &mut TlsConnection, socket: &mut TcpStream) -> io::Result<()> {
    send(tls, socket)?;
    let mut buffer = [0; 16 * 1024];
    match socket.read(&mut buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            tls.feed(&buffer[..count]);
            Ok(())
        }
    }
}

const HTTP1_REQUEST: &[u8] = b"GET /1k HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The preface, SETTINGS, and HEADERS with END_STREAM and END_HEADERS (RFC 9113 sections 3.4 and
/// 6.2): `GET https://localhost/1k` by literals of RFC 7541 section 6.2.2.
const HTTP2_REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x12\x01\x05\x00\x00\x00\x01\x82\x87\x01\x09localhost\x04\x03/1k";

fn http1_is_complete(response: &[u8]) -> bool {
    let head = response.windows(4).position(|part| part == b"\r\n\r\n");
    head.is_some_and(|at| response.len() - at - 4 >= 1024)
}

/// Whether a frame ends stream 1.
fn http2_is_complete(mut response: &[u8]) -> bool {
    const END_STREAM: u8 = 1;
    while let Some((head, rest)) = response.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(after) = rest.get(length..) else { return false };
        if head[3] <= 1 && head[4] & END_STREAM != 0 && head[8] == 1 {
            return true;
        }
        response = after;
    }
    false
}

pub(crate) fn table(rows: &[IdleRow]) -> String {
    let mut text = format!(
        "{:<8}  {:<22}  {:>6}  {:>9}  {:>12}  {:>10}  {:>10}  {:>6}\n",
        "HTTP", "server", "idle", "KiB each", "KiB after", "us/request", "response", "CPU"
    );
    for http in HTTP_VERSIONS {
        for row in rows.iter().filter(|row| row.http == http.name()) {
            let _ = writeln!(
                text,
                "{:<8}  {:<22}  {:>6}  {:>9.1}  {:>12.1}  {:>10.1}  {:>7.1} ms  {:>4.1} %",
                row.http,
                row.server,
                row.idle,
                row.kib_each,
                row.kib_each_after,
                row.active_us,
                row.active_ms,
                row.idle_cpu_percent,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9113_6_2_the_length_of_the_headers_frame_is_right() {
        let frames = &HTTP2_REQUEST[24..];
        assert_eq!(frames[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(usize::from(frames[11]), frames[18..].len());
    }

    #[test]
    fn idle_connections_are_opened_again_from_other_addresses() {
        for idle in [1, 10, CONNECTIONS_PER_ADDRESS, 50_000] {
            let first = idle.next_multiple_of(CONNECTIONS_PER_ADDRESS);
            assert!(source_address(first) > source_address(idle - 1), "{idle}");
        }
    }

    #[test]
    fn a_response_is_complete_with_its_last_byte() {
        let http1 = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[b'x'; 1024]].concat();
        assert!(http1_is_complete(&http1) && !http1_is_complete(&http1[..http1.len() - 1]));
        let headers = [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
        let data = [0, 0, 2, 0, 1, 0, 0, 0, 1, b'x', b'x'];
        let http2 = [&headers[..], &data].concat();
        assert!(http2_is_complete(&http2) && !http2_is_complete(&http2[..http2.len() - 1]));
        assert!(!http2_is_complete(&headers));
    }

    #[test]
    fn the_table_fits_into_100_columns() {
        let row = IdleRow {
            server: "nginx on AWS-LC".to_owned(),
            http: HttpVersion::Two.name(),
            idle: 50_000,
            kib_each: 1234.5,
            kib_each_after: 1234.5,
            active_us: 1234.5,
            active_ms: 12345.6,
            idle_cpu_percent: 100.0,
        };
        assert!(table(&[row]).lines().all(|line| line.len() <= 100));
    }
}
