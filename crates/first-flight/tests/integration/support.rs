//! Servers as packaged by Debian, and the client's side of a test.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use firstflight_first_flight::{
    Driver, Ended, Entropy, Event, FirstFlight, FlightPlan, Hello, TcpLink, Ticket,
};
use firstflight_testkit::{Running, TEST_TIMEOUT, free_port, program_path, text, until};
use tempfile::TempDir;

/// A running server with a certificate for localhost.
pub(crate) struct Server {
    _running: Running,
    pub(crate) dir: TempDir,
    address: SocketAddr,
    epoch: Instant,
    alpn: Vec<&'static str>,
}

impl Server {
    /// Starts a program whose arguments depend on the port, in a directory with cert.pem and key.pem.
    /// Its standard output is the file `out`.
    pub(crate) fn start(
        program: &str,
        alpn: &[&'static str],
        arguments: impl Fn(&Path, u16) -> Vec<String>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
        fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        for _ in 0..5 {
            let port = free_port();
            let address = (Ipv4Addr::LOCALHOST, port).into();
            let mut command = Command::new(program_path(program));
            command.current_dir(dir.path()).args(arguments(dir.path(), port));
            // OpenSSL's server ends with its input.
            command.stdin(Stdio::piped());
            command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
            let mut running = Running::start(&mut command);
            let mut ended = false;
            let listens = until(|| {
                ended = running.has_ended();
                ended || TcpStream::connect(address).is_ok()
            });
            if listens && !ended {
                let alpn = alpn.to_vec();
                return Self { _running: running, dir, address, epoch: Instant::now(), alpn };
            }
        }
        panic!("{program} does not start: {} {}", text(&out), text(&err));
    }

    pub(crate) fn hello(&self) -> Hello {
        Hello::new("localhost", &self.alpn)
    }

    /// The time of the clock that dates tickets.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    pub(crate) fn build(&self, plan: FlightPlan) -> FirstFlight {
        plan.build(self.now(), &Entropy::system())
    }

    /// Sends a flight, or a copy of one.
    pub(crate) fn send(&self, flight: &FirstFlight) -> Driver {
        let link = TcpLink::connect(self.address, TEST_TIMEOUT, self.epoch).unwrap();
        Driver::start(flight, Box::new(link))
    }

    /// A ticket from a full handshake.
    pub(crate) fn ticket(&self) -> Ticket {
        let mut driver = self.send(&self.build(FlightPlan::full(self.hello())));
        await_event(&mut driver, |event| *event == Event::Finished);
        assert!(driver.connection().finish());
        let event = await_event(&mut driver, |event| matches!(event, Event::Ticket(_)));
        let Event::Ticket(ticket) = event else { unreachable!() };
        ticket
    }

    /// A resumption with a new ticket, and this early data.
    pub(crate) fn early(&self, data: &[u8]) -> FlightPlan {
        FlightPlan::resume(self.hello(), &self.ticket()).early_data(data)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The first later event that `predicate` accepts.
pub(crate) fn await_event(driver: &mut Driver, predicate: impl FnMut(&Event) -> bool) -> Event {
    driver
        .wait_for(TEST_TIMEOUT, predicate)
        .unwrap_or_else(|ended| panic!("{ended}: {:?}", driver.events()))
}

/// How a server treated the ticket and the early data; known once its Finished has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) retried: bool,
    pub(crate) resumed: bool,
    pub(crate) early_data: bool,
}

pub(crate) const ACCEPTED: Treatment =
    Treatment { retried: false, resumed: true, early_data: true };
pub(crate) const REFUSED: Treatment = Treatment { early_data: false, ..ACCEPTED };
pub(crate) const FULL: Treatment = Treatment { resumed: false, ..REFUSED };
pub(crate) const RETRIED: Treatment = Treatment { retried: true, ..REFUSED };

pub(crate) fn treatment(driver: &mut Driver) -> Treatment {
    await_event(driver, |event| *event == Event::Finished);
    let mut found = Treatment { ..FULL };
    for timed in driver.events() {
        match &timed.event {
            Event::HelloRetryRequest => found.retried = true,
            Event::ServerHello { resumed, .. } => found.resumed = *resumed,
            Event::EncryptedExtensions { early_data, .. } => found.early_data = *early_data,
            _ => {}
        }
    }
    found
}

/// Waits for an alert, or for the end of the connection without one.
pub(crate) fn failure(driver: &mut Driver) -> Option<&'static str> {
    match driver.wait_for(TEST_TIMEOUT, |event| matches!(event, Event::Alert(_))) {
        Ok(Event::Alert(alert)) => Some(alert.name()),
        Ok(_) => unreachable!(),
        Err(Ended::Closed) => None,
        Err(ended) => panic!("{ended}: {:?}", driver.events()),
    }
}

/// Waits until the application data contains a text. Returns whether data came before our Finished.
pub(crate) fn response(driver: &mut Driver, text: &str) -> bool {
    let (mut all, mut first_before) = (Vec::new(), None);
    await_event(driver, |event| {
        if let Event::ApplicationData { data, before_finished, .. } = event {
            all.extend_from_slice(data);
            first_before.get_or_insert(*before_finished);
        }
        String::from_utf8_lossy(&all).contains(text)
    });
    first_before.unwrap()
}

pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// An hour, by which the age of a ticket is shifted.
pub(crate) const HOUR_MS: i64 = 3_600_000;
