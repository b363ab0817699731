//! Writes small seeds: real connections, sessions and files for the fuzzer to spoil.
//!
//! Usage: `seeds FOLDER`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use firstflight_fuzz::quic::{Peer, resumption};
use firstflight_fuzz::{Event, Flags, acceptor, connector};
use firstflight_packets::{Label, Observer};
use firstflight_puncture::{Limits, PuncturableFunction};
use firstflight_quic::test_packets::{crypto_frame, initial_packet};
use firstflight_replay::{
    ClaimKey, EpochScope, FlightOffer as FirstFlight, Gate, GateConfig, HandoffQuery, HandoffTime,
    TicketEpochs,
};
use firstflight_report::{
    Cell, Control, ControlPair, Cost, Effect, Figures, LinkFacts, Load, MiddleboxOutcome, Record,
    Replay, SCHEMA, Sample, Summary, Waterfall, WaterfallPacket, write,
};
use firstflight_tickets::{KeyFile, Schedule, UnixTime};
use firstflight_tls::{ConnectOptions, KeyLogLines, Progress, Session, TlsConnection, Version};

#[path = "seeds/pair.rs"]
mod pair;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("name a folder")?);
    for (name, version) in [("tls12", Version::Tls12), ("tls13", Version::Tls13)] {
        let full = Connection::make(version, None)?;
        let session = full.session.clone().ok_or("no ticket")?;
        let resumed = Connection::make(version, Some(session.clone()))?;
        put(&folder, "session", name, &session.to_bytes()?)?;
        put(&folder, "packets", &format!("{name}_full"), &full.capture)?;
        put(&folder, "packets", &format!("{name}_resumed"), &resumed.capture)?;
        if version == Version::Tls13 {
            put(&folder, "cells", &format!("{name}_full"), &full.capture)?;
            put(&folder, "cells", &format!("{name}_resumed"), &resumed.capture)?;
        }
        // The first bytes mean a server with early data and the end behind it, and a client.
        let (server, client) =
            ([&[7], &*resumed.to_server].concat(), [&[4], &*full.to_client].concat());
        put(&folder, "connection", &format!("{name}_server"), &server)?;
        put(&folder, "connection", &format!("{name}_client"), &client)?;
        put(&folder, "jar", name, &jar(&session)?)?;
    }
    quic(&folder)?;
    let pair = pair::Pair::new()?;
    for (name, retry) in [("quic_full", false), ("quic_early", false), ("quic_retry", true)] {
        let capture = pair.connect(retry)?;
        println!("{:?}", label(&capture)?);
        put(&folder, "packets", name, &capture)?;
    }
    put(&folder, "ticket_file", "fresh", key_file()?.as_bytes())?;
    put(&folder, "profiles", "built_in", PROFILES)?;
    put(&folder, "config", "all", CONFIG.as_bytes())?;
    put(&folder, "config", "sites", include_bytes!("../../examples/firstflight.toml"))?;
    put(&folder, "record", "schema_2", record()?.as_bytes())?;
    for (name, condition) in CONDITIONS {
        put(&folder, "condition", name, condition.as_bytes())?;
    }
    for (name, bytes) in ANSWERS {
        put(&folder, "response", name, bytes)?;
    }
    for (name, bytes) in STORE_ANSWERS {
        put(&folder, "store", name, bytes)?;
    }
    for (name, seed) in AUDIT_HTTP {
        put(&folder, "audit_http", name, seed)?;
    }
    for (name, seed) in FLIGHT_RESPONSES {
        put(&folder, "flight_response", name, seed)?;
    }
    put(&folder, "inheritance", "register", &register())?;
    put(&folder, "inheritance", "question", &question())?;
    put(&folder, "puncture", "some_used", &punctured_keys())?;
    for (name, path) in PATHS {
        put(&folder, "policy", name, path.as_bytes())?;
    }
    Ok(())
}

/// A response in chunks, one that was refused, and two requests to a witness.
const AUDIT_HTTP: [(&str, &[u8]); 3] = [
    ("response", b"HTTP/1.1 200 OK\r\nServer: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    ("too_early", b"HTTP/1.1 425 Too Early\r\nContent-Length: 2\r\n\r\nno"),
    ("requests", b"GET /w?a HTTP/1.1\r\nEarly-Data: 1\r\n\r\nPOST /w?a HTTP/1.1\r\nContent-Length: 2\r\n\r\nxy"),
];

/// Handshake messages of a server: where they stand, the length of pieces, the bytes.
const FLIGHT_RESPONSES: [(&str, &[u8]); 4] = [
    ("alert", &[0, 9, 21, 3, 3, 0, 2, 2, 40]),
    ("extensions", &[1, 0, 8, 0, 0, 6, 0, 4, 0, 42, 0, 0]),
    ("certificate_request", &[1, 0, 13, 0, 0, 3, 0, 0, 0]),
    ("ticket", &[2, 0, 4, 0, 0, 15, 0, 0, 0, 9, 1, 2, 3, 4, 1, 5, 0, 1, 6, 0, 0]),
];

/// What a gate with a flight and a name leaves.
fn register() -> Vec<u8> {
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
    let key = ClaimKey::of_flight(&[7; 32]);
    let flight = FirstFlight::new(key, 0, Duration::ZERO, epochs.current());
    let gate = Gate::new(GateConfig::default(), epochs);
    let _ = gate.claim(&flight, Duration::ZERO);
    gate.claim_name(ClaimKey::from_name(&[b"seed"]), Duration::from_secs(60), Duration::ZERO);
    let common = Duration::from_secs(1000);
    let time = HandoffTime { gate: Duration::ZERO, common, tickets: Duration::from_secs(1 << 30) };
    gate.hand_off(time).to_bytes()
}

/// Ticket keys of which some were used.
fn punctured_keys() -> Vec<u8> {
    let mut function = PuncturableFunction::new(Limits { epoch_seconds: 60, ..Limits::default() });
    let issued: Vec<_> = (0..50).map(|at| function.issue(at).0).collect();
    for at in [3, 4, 5, 9, 40] {
        function.puncture(&issued[at]);
    }
    function.issue(100);
    function.snapshot().to_vec()
}

fn question() -> Vec<u8> {
    let flight =
        FirstFlight::new(ClaimKey::of_flight(&[7; 32]), -3, Duration::from_secs(1 << 20), 5);
    let name = ClaimKey::from_name(&[b"seed"]);
    let questions = [
        HandoffQuery::Flight(flight.clone()),
        HandoffQuery::Spend(flight),
        HandoffQuery::Name(name, Duration::from_secs(60)),
        HandoffQuery::Release(name),
    ];
    questions.iter().flat_map(HandoffQuery::to_bytes).collect()
}

/// First bytes: what the target makes of the rest.
fn quic(folder: &Path) -> Outcome {
    let piece = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let seed = |how: u8, pieces: &[&[u8]]| {
        [vec![how], pieces.iter().flat_map(|bytes| piece(bytes)).collect()].concat()
    };
    let (client, _) = Peer::client(None);
    let mut server = Peer::server(true);
    let hello = client.written[0].clone();
    if !server.read(&hello) {
        return Err("no handshake".into());
    }
    let frame = crypto_frame(0, &hello);
    put(folder, "quic_server", "client_hello", &seed(0, &[&hello]))?;
    put(folder, "quic_server", "finished", &seed(1, &[&[20, 0, 0, 32], &[0; 32]]))?;
    put(folder, "quic_server", "edited", &[2, 0, 80, 1])?;
    put(
        folder,
        "quic_server",
        "datagram",
        &seed(3, &[&initial_packet(b"12345678", b"t", 0, &frame)]),
    )?;
    put(folder, "quic_server", "initial", &seed(4, &[&frame[..100], &[2, 0, 0, 0, 0], &frame]))?;
    let [initial, handshake, _] = &server.written;
    put(folder, "quic_client", "server_hello", &seed(0, &[initial, handshake]))?;
    put(folder, "quic_client", "edited", &[1, 0, 80, 1])?;
    put(folder, "quic_client", "edited_resumed", &[6, 0, 80, 1])?;
    let versions = [0x80, 0, 0, 0, 0, 0, 1, 9, 0x0a, 0x1a, 0x2a, 0x3a];
    let retry = [&[0xf0, 0, 0, 0, 1, 0, 1, 9], &[7; 40][..]].concat();
    put(folder, "quic_client", "versions_and_retry", &seed(2, &[&versions, &retry]))?;
    put(
        folder,
        "quic_client",
        "initial",
        &seed(8, &[&crypto_frame(0, initial), &[2, 0, 0, 0, 0]]),
    )?;
    let parameters = resumption().transport_parameters;
    put(folder, "quic_client", "parameters", &[&[4], &parameters[..]].concat())
}

/// What a store may answer: the sections of INFO, a cluster's slots, an epoch, the time, no.
const STORE_ANSWERS: [(&str, &[u8]); 5] = [
    (
        "info",
        b"# Server\r\nrun_id:0123abcd\r\nrole:master\r\nmaster_replid:ef01\r\n\
          master_repl_offset:17\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
          evicted_keys:0\r\n",
    ),
    (
        "slots",
        b"*2\r\n*3\r\n:0\r\n:8191\r\n*3\r\n$1\r\na\r\n:7000\r\n$1\r\nA\r\n*3\r\n\
          :8192\r\n:16383\r\n*3\r\n$0\r\n\r\n:7001\r\n$1\r\nB\r\n",
    ),
    ("epoch", b"2 a1 b2 0000000000000abc 10000000 6000000 5000000"),
    ("time", b"*2\r\n$10\r\n1795283032\r\n$6\r\n268430\r\n"),
    ("error", b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
];

/// A record with one of most things.
fn record() -> Outcome<String> {
    let cell = |kind: &str, p50_ms: f64| Cell {
        server: "nginx".to_owned(),
        workload: "get".to_owned(),
        rtt_ms: 20.0,
        tls: "1.3".to_owned(),
        kind: kind.to_owned(),
        summary: Some(Summary {
            samples: 1,
            first_byte: Figures { p50_ms, ..Figures::default() },
            round_trips: Some(2),
            ..Summary::default()
        }),
        ..Cell::default()
    };
    let packet = WaterfallPacket {
        up: true,
        delivered_ms: Some(10.0),
        what: vec!["SYN".to_owned(), "early data 80 B".to_owned()],
        payload: 300,
        ..WaterfallPacket::default()
    };
    let record = Record {
        schema: SCHEMA,
        command: vec!["lab".to_owned()],
        link: Some(LinkFacts::default()),
        cells: vec![cell("full", 60.5), cell("0-RTT", 40.25)],
        samples: vec![Sample { cell: 1, time_ms: Some(40.25), ..Sample::default() }],
        effects: vec![Effect { to: 1, ..Effect::default() }],
        control: Some(Control { pairs: vec![ControlPair::default()], ..Control::default() }),
        costs: vec![Cost::default()],
        replays: vec![Replay::default()],
        middleboxes: vec![MiddleboxOutcome::default()],
        waterfalls: vec![Waterfall { packets: vec![packet], ..Waterfall::default() }],
        loads: vec![Load::default()],
        ..Record::default()
    };
    let path = env::temp_dir().join(format!("firstflight-seed-{}", std::process::id()));
    write(&record, &path)?;
    let json = fs::read_to_string(&path)?;
    fs::remove_file(&path)?;
    Ok(json)
}

fn put(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> Outcome {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(name), bytes)?)
}

/// A connection between our client and our server.
struct Connection {
    capture: Vec<u8>,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    session: Option<Session>,
}

impl Connection {
    fn make(version: Version, session: Option<Session>) -> Outcome<Self> {
        let key_log = Arc::new(KeyLogLines::default());
        let offer = ConnectOptions { host: "localhost".into(), session, early_data: true };
        let mut client = connector(version, Some(key_log.clone())).connection(&offer)?;
        let mut server = acceptor().connection(true)?;
        let mut made = Self {
            capture: Vec::new(),
            to_server: Vec::new(),
            to_client: Vec::new(),
            session: None,
        };
        // Asking for a Fast Open cookie (RFC 7413), and padding.
        made.segment(Flags::SYN, &[34, 2, 1, 1], 4);
        made.segment(Flags::SYN | Flags::ACK | Flags::TO_CLIENT, &[], 0);
        made.segment(Flags::ACK, &[], 0);

        let (mut asked, mut heard, mut answered) = (false, false, false);
        for _round_trip in 0..6 {
            asked = asked || say(&mut client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            made.carry(&mut client, 0, &mut server);
            heard = heard || hear(&mut server)?;
            answered = answered || heard && say(&mut server, b"HTTP/1.1 204 No Content\r\n\r\n")?;
            made.carry(&mut server, Flags::TO_CLIENT, &mut client);
            if asked && hear(&mut client)? {
                break;
            }
        }
        // Each TLS 1.3 connection brings tickets; TLS 1.2 only where none was used.
        made.session = client.take_sessions().pop();
        made.segment(Flags::FIN | Flags::ACK | Flags::TO_CLIENT, &[], 0);
        made.segment(Flags::FIN | Flags::ACK, &[], 0);
        let secrets = key_log.take();
        let flags = Flags(Flags::SECRETS);
        let body = secrets.as_bytes();
        Event { flags, gap: 0, seq: 0, ack: 0, options: 0, body }.write(&mut made.capture);
        println!("{:?}", label(&made.capture)?);
        Ok(made)
    }

    /// Hands over what `from` has to send.
    fn carry(&mut self, from: &mut TlsConnection, direction: u8, to: &mut TlsConnection) {
        let bytes = from.outgoing().to_vec();
        from.sent(bytes.len());
        to.feed(&bytes);
        for part in bytes.chunks(1400) {
            self.segment(direction | Flags::ACK, part, 0);
            let all = if direction == 0 { &mut self.to_server } else { &mut self.to_client };
            all.extend(part);
        }
    }

    fn segment(&mut self, flags: u8, body: &[u8], options: u8) {
        // A SYN counts as one byte.
        let behind_syn = |sent: &[u8]| sent.len() as u16 + 1;
        let (own, other) = match flags & Flags::TO_CLIENT {
            0 => (&self.to_server, &self.to_client),
            _ => (&self.to_client, &self.to_server),
        };
        let seq = if flags & Flags::SYN == 0 { behind_syn(own) } else { 0 };
        let ack = behind_syn(other);
        let event = Event { flags: Flags(flags), gap: 10_000, seq, ack, options, body };
        event.write(&mut self.capture);
    }
}

/// What the judge says of the capture: it is no seed if it cannot be read.
fn label(capture: &[u8]) -> Outcome<Label> {
    let mut observer = Observer::new();
    let mut now = 0;
    for event in Event::all(capture) {
        now += 1_000 * u64::from(event.gap);
        match event.flags.has(Flags::SECRETS) {
            true => drop(observer.add_secrets(std::str::from_utf8(event.body)?)),
            false => observer.packet(&event.packet(&event.frame(), now)),
        }
    }
    let facts = observer.finish().pop().ok_or("no connection in the capture")?;
    facts.label().map_err(|why| format!("{why:?}").into())
}

/// Writes once the machine lets it.
fn say(machine: &mut TlsConnection, words: &[u8]) -> Outcome<bool> {
    if machine.handshake()? != Progress::Done(()) {
        return Ok(false);
    }
    Ok(machine.write(words)? == Progress::Done(words.len()))
}

/// Whether application data came.
fn hear(machine: &mut TlsConnection) -> Outcome<bool> {
    Ok(matches!(machine.read(&mut [0; 4096])?, Progress::Done(1..)))
}

fn key_file() -> Outcome<String> {
    let hour = Duration::from_secs(3600);
    let folder = tempfile::tempdir()?;
    let file = KeyFile::new(folder.path().join("keys.toml"));
    file.write_new(Schedule::new(hour, 2 * hour)?, UnixTime(1_790_000_000))?;
    Ok(fs::read_to_string(file.path())?)
}

fn jar(session: &Session) -> Outcome<Vec<u8>> {
    let version = session.version().ok_or("a session without a version")?.name();
    let bytes = STANDARD_NO_PAD.encode(session.to_bytes()?);
    // The first byte: to be sealed. It must not have expired when it is used in some years.
    Ok(format!(
        "\u{1}{{\"version\":2,\"sessions\":[{{\"scheme\":\"https\",\"host\":\"a\",\"port\":443,\
         \"trust\":\"system\",\"alpn\":\"h2\",\"version\":\"{version}\",\"early_data\":true,\
         \"issued\":9999999999,\"expires\":19999999999,\"session\":\"{bytes}\"}}],\"tokens\":[]}}"
    )
    .into_bytes())
}

const CONDITIONS: [(&str, &str); 4] = [
    ("latency", "p95(0rtt, server=nginx, profile=cable, tfo=off, tls=1.3) > 1.2*rtt + 300us"),
    ("partner", "p50(0-RTT, time=total) >= 0.7*p50(full) and not (count(0rtt) < 59)"),
    ("change", "p50(0rtt, size=1k, rtt=28ms) > 1.05*old or replays(server=nginx) != 0"),
    ("spoiled", "-(spoiled(resumed) - 3) / 2 <= count(full) or round_trips(0rtt) == 2"),
];

/// How the response is cut, whether it should be a PONG, and the response.
const ANSWERS: [(&str, &[u8]); 3] = [
    (
        "page",
        b"\x05\0HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ),
    ("chunked", b"\x20\0HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("pong", b"\x01\x01PONG"),
];

const PATHS: [(&str, &str); 4] = [
    ("dots", "/x/../api/./pay"),
    ("encoded", "/%61pi%2fpay"),
    ("twice", "/x/%252e%252e/api/pay"),
    ("other", "/API;v=1\\pay//"),
];

const PROFILES: &[u8] = include_bytes!("../../crates/emulator/src/profile/profiles.toml");

const CONFIG: &str = r#"[early_data]
enabled = true
default = "permissive"
when_not_allowed = "hold"
freshness = "10s"
register_capacity = 1048576

[early_data.paths]
"/api" = "strict"
"/api/pay" = "disabled"

[limits]
header_timeout = "10s"
header_size = 32768
idle_timeout = "60s"
connections = 10000
streams = 100
upstream_timeout = "60s"
drain_timeout = "30s"
"#;
