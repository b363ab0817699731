//! Early data over HTTP/2 and HTTP/3, at this project's server.

use std::thread::sleep;
use std::time::Duration;

use firstflight_browser::{Browser, Installed, Quic};

use crate::connection::{Connection, EarlyDataOutcome};
use crate::findings::record_finding;
use crate::network::TestNetwork;
use crate::network::{FirstflightServer, LogLine};
use crate::session::{VISIT_TIMEOUT, describe};

/// A browser and this project's server.
struct Visits {
    // Dropped first, since its profile is in the network's directory.
    browser: Browser,
    firstflight: FirstflightServer,
    network: TestNetwork,
    installed: Installed,
    connections: Vec<Connection>,
}

impl Visits {
    fn new(installed: &Installed, quic: Quic) -> Self {
        Self::with_config(installed, quic, CONFIG)
    }

    fn with_config(installed: &Installed, quic: Quic, config: &str) -> Self {
        let network = TestNetwork::new();
        let firstflight = FirstflightServer::start(&network, &pages(), config);
        let mut settings = network.settings();
        settings.quic = quic;
        let browser = network.open(installed, "profile", &settings);
        Self {
            browser,
            firstflight,
            network,
            installed: installed.clone(),
            connections: Vec::new(),
        }
    }

    fn open_page(&mut self, path: &str) {
        let url = format!("https://www.site.test{path}");
        if let Err(error) = self.browser.navigate(&url, VISIT_TIMEOUT) {
            panic!("{}: {url}: {error}; {:?}", self.installed.kind, self.firstflight.lines());
        }
    }

    /// Makes the browser close all connections, and returns them with the log lines.
    fn finish_visit(&mut self) -> (Vec<Connection>, Vec<LogLine>) {
        // Waits for responses that are still in flight.
        sleep(Duration::from_millis(200));
        self.browser.close_connections().unwrap();
        sleep(Duration::from_millis(300));
        assert!(self.firstflight.is_alive());
        let connections = self.network.packets("");
        // Leaves out the connections that checked whether the server listens.
        let connections: Vec<Connection> =
            connections.into_iter().filter(|connection| connection.tls().is_some()).collect();
        self.connections.extend(connections.iter().cloned());
        (connections, self.firstflight.take())
    }

    fn visit(&mut self, path: &str) -> (Vec<Connection>, Vec<LogLine>) {
        self.open_page(path);
        self.finish_visit()
    }

    fn record_finding(&mut self, finding: &str, response: impl AsRef<str>) -> Result<(), String> {
        record_finding(
            &self.installed,
            finding,
            response.as_ref(),
            &std::mem::take(&mut self.connections),
        )
    }

    /// Runs a script in a page whose connection is closed, waits for the request, and describes how
    /// it was sent.
    fn run_and_finish(&mut self, script: &str, target: &str) -> String {
        self.visit("/");
        self.open_page("/");
        self.finish_visit();
        self.browser.evaluate(script).unwrap();
        crate::poll(|| self.firstflight.lines().iter().any(|line| line.target == target));
        let (connections, lines) = self.finish_visit();
        describe_requests(&connections, &lines, target)
    }
}

pub(crate) fn http_2(installed: &Installed) -> Result<(), String> {
    let mut visits = Visits::new(installed, Quic::Off);
    run_experiments(&mut visits, "h2", "HTTP/2")?;
    // Two host names with the same address and certificate.
    visits.visit("/names.html");
    let (connections, lines) = visits.visit("/names.html");
    assert_eq!(lines.len(), 2, "{lines:?}");
    let connections = connections.len();
    let early = lines.iter().filter(|line| line.early_data).count();
    visits.record_finding(
        "h2-two-names",
        format!("{connections} connections, {early} of 2 requests early"),
    )
}

pub(crate) fn http_3(installed: &Installed) -> Result<(), String> {
    let origins = ["www.site.test:443", "beside.site.test:443"].map(str::to_owned);
    let mut visits = Visits::new(installed, Quic::Known(origins.to_vec()));
    run_experiments(&mut visits, "h3", "HTTP/3")
}

pub(crate) fn returns_over_http_3(installed: &Installed) -> Result<(), String> {
    return_five_times(installed, "", 2)
}

/// The server sends tickets with its first flight, and address tokens after the client's Finished.
pub(crate) fn returns_with_expired_tokens(installed: &Installed) -> Result<(), String> {
    return_five_times(installed, "[http3]\ntoken_lifetime = \"1ms\"\n", 1)
}

/// Returns more often than the first visit brings tickets, so each visit has to bring the next
/// ticket. Checks the packets, since a page loads without early data, too. A visit has to
/// bring at least `min_tokens` address tokens; quinn sends one at once to a validated address, and
/// one to any address for each Handshake packet.
fn return_five_times(installed: &Installed, config: &str, min_tokens: u32) -> Result<(), String> {
    let quic = Quic::Known(vec!["www.site.test:443".to_owned()]);
    let mut visits = Visits::with_config(installed, quic, config);
    let (first, lines) = visits.visit("/");
    let protocol = lines.last().map(|line| line.protocol.as_str());
    assert_eq!(protocol, Some("HTTP/3"), "{}", describe(&first));
    for number in 1..=5 {
        let (connections, lines) = visits.visit(&format!("/?return={number}"));
        let [connection] = &connections[..] else {
            panic!("return {number} needs one connection:{}", describe(&connections));
        };
        assert_eq!(connection.early_data(), EarlyDataOutcome::Accepted, "{number}: {connection}");
        assert!(lines.iter().all(|line| line.early_data), "{number}: {lines:?}");
        let quic = connection.facts.quic().expect("a connection over QUIC");
        assert!(quic.new_tokens >= min_tokens, "{number}: {connection}");
    }
    Ok(())
}

/// The experiments for a protocol.
fn run_experiments(visits: &mut Visits, name: &str, protocol: &str) -> Result<(), String> {
    let key = |what: &str| format!("{name}-{what}");
    let (_, lines) = visits.visit("/");
    let protocol_used = lines.last().map_or("nothing", |line| &line.protocol).to_owned();
    visits.record_finding(&key("first-visit"), &protocol_used)?;
    if protocol_used != protocol {
        return Ok(());
    }
    let (connections, lines) = visits.visit("/?again");
    let get = describe_requests(&connections, &lines, "/?again");
    visits.record_finding(&key("get"), get)?;
    let (connections, lines) = visits.visit("/images.html");
    let early = lines.iter().filter(|line| line.early_data).count();
    let count =
        format!("{} connections, {early} of {} requests early", connections.len(), lines.len());
    visits.record_finding(&key("page-of-six-images"), count)?;
    let post =
        visits.run_and_finish("void fetch('/posted', {method: 'POST', body: 'a body'})", "/posted");
    visits.record_finding(&key("post-fetch"), post)?;
    let get = visits.run_and_finish("void fetch('/fetched')", "/fetched");
    visits.record_finding(&key("get-fetch"), get)?;
    let late = visits.run_and_finish("void fetch('/late/')", "/late/");
    visits.record_finding(&key("425-fetch"), late)?;
    visits.visit("/");
    let (connections, lines) = visits.visit("/late/");
    let late = describe_requests(&connections, &lines, "/late/");
    visits.record_finding(&key("425-page"), late)?;
    let six: Vec<String> = (0..6)
        .map(|number| {
            let target = format!("/?{number}");
            let (connections, lines) = visits.visit(&target);
            let response = describe_requests(&connections, &lines, &target);
            response.split(':').next().unwrap_or_default().to_owned()
        })
        .collect();
    visits.record_finding(&key("six-returns"), six.join(", "))
}

/// Describes how requests of a target were sent, and the responses.
fn describe_requests(connections: &[Connection], lines: &[LogLine], target: &str) -> String {
    let requested: Vec<&LogLine> = lines.iter().filter(|line| line.target == target).collect();
    let mut descriptions = Vec::new();
    for line in &requested {
        let connection =
            connections.iter().find(|connection| connection.facts.client == line.client);
        let connection = connection.unwrap_or_else(|| panic!("no packets of {line:?}"));
        let label = match (line.early_data, connection.early_data()) {
            (true, EarlyDataOutcome::Accepted) => "early",
            // The packets do not contradict the log.
            (true, EarlyDataOutcome::Unknown) => "early",
            (true, _) => panic!("early without early data in the packets: {connection}, {line:?}"),
            (false, EarlyDataOutcome::Accepted | EarlyDataOutcome::Unknown) => "after early data",
            (false, EarlyDataOutcome::Refused) => "refused, and again after the handshake",
            (false, _) if connection.resumed() => "resumed",
            (false, _) => "full",
        };
        let held = line.held.as_ref().map_or(String::new(), |why| format!(", held ({why})"));
        let status = line.status.map_or("no response".to_owned(), |status| status.to_string());
        descriptions.push(format!("{label}{held}: {status}"));
    }
    let connections: std::collections::BTreeSet<_> =
        requested.iter().map(|line| line.client).collect();
    let suffix = match (requested.len(), connections.len()) {
        (0, _) => return "no request".to_owned(),
        (1, _) => "",
        (_, 1) => " on one connection",
        _ => " on connections of their own",
    };
    descriptions.join("; ") + suffix
}

/// Below `/late` early requests get 425.
const CONFIG: &str =
    "[early_data]\nwhen_not_allowed = \"425\"\n[early_data.paths]\n\"/late\" = \"disabled\"\n";

fn pages() -> Vec<(&'static str, String)> {
    let html = |body: &str| {
        format!("<!doctype html><link rel=icon href='data:,'><title>page</title><body>{body}")
    };
    let picture = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>".to_owned();
    let images: String = (0..6).map(|number| format!("<img src='/image.svg?{number}'>")).collect();
    vec![
        ("index.html", html("a page")),
        ("images.html", html(&images)),
        ("names.html", html("<img src='https://beside.site.test/image.svg'>")),
        ("image.svg", picture),
    ]
}
