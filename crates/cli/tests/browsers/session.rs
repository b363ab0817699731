//! A browser and three recording servers that it visits.

use std::time::Duration;

use firstflight_browser::{Browser, BrowserKind, Installed, Settings};

use crate::connection::{Connection, EarlyDataOutcome, with_recordings};
use crate::findings::record_finding;
use crate::network::TestNetwork;
use crate::poll;
use crate::server::{RecordingServer, Request, ServerBehaviour, Tls};

/// A browser and the servers that it visits. `www.site.test` and `beside.site.test` are the first
/// server, `other.test` is the second, `third.test` the third.
pub(crate) struct BrowserSession {
    // Dropped first, since its profile is in the network's directory.
    browser: Option<Browser>,
    pub(crate) servers: Vec<RecordingServer>,
    pub(crate) network: TestNetwork,
    pub(crate) installed: Installed,
    /// The connections since the last finding, as evidence.
    connections: Vec<Connection>,
}

/// The timeout of a visit, for a busy machine.
pub(crate) const VISIT_TIMEOUT: Duration = Duration::from_secs(30);

impl BrowserSession {
    pub(crate) fn new(installed: &Installed, tls: &Tls) -> Self {
        Self::with(installed, tls, |_| ())
    }

    /// Like [`Self::new`], with changed browser settings.
    pub(crate) fn with(
        installed: &Installed,
        tls: &Tls,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let network = TestNetwork::new();
        let servers: Vec<RecordingServer> = (0..3).map(|path| network.server(path, tls)).collect();
        for server in &servers {
            server.behaviour(|behaviour| behaviour.pages.extend(pages()));
        }
        let mut settings = network.settings();
        change(&mut settings);
        let browser = network.open(installed, "profile", &settings);
        Self {
            browser: Some(browser),
            servers,
            network,
            installed: installed.clone(),
            connections: Vec::new(),
        }
    }

    pub(crate) fn make(&self) -> BrowserKind {
        self.installed.kind
    }

    /// Changes how the first server treats clients.
    pub(crate) fn behaviour(&self, change: impl FnOnce(&mut ServerBehaviour)) {
        self.servers[0].behaviour(change);
    }

    /// Changes the TLS settings of all servers. Tickets remain valid.
    pub(crate) fn set_tls(&self, tls: &Tls) {
        self.servers.iter().for_each(|server| server.set_tls(tls));
    }

    /// Opens a page, closes all connections, and returns them.
    pub(crate) fn visit(&mut self, url: &str) -> Vec<Connection> {
        self.open_page(url);
        self.finish_visit()
    }

    /// The browser.
    pub(crate) fn browser(&mut self) -> &mut Browser {
        self.browser.as_mut().expect("it is open")
    }

    /// Restarts the browser with the same profile.
    pub(crate) fn restart_browser(&mut self) {
        self.browser.take().expect("it is open").close().unwrap();
        let settings = self.network.settings();
        self.browser = Some(self.network.open(&self.installed, "profile", &settings));
    }

    /// Opens a page, as through the address bar.
    pub(crate) fn open_page(&mut self, url: &str) {
        if let Err(error) = self.browser().navigate(url, VISIT_TIMEOUT) {
            panic!("{}: {url}: {error}; {:?}", self.make(), self.recorded());
        }
    }

    /// Runs a script in the page.
    pub(crate) fn run(&mut self, script: &str) -> serde_json::Value {
        let value = self.browser().evaluate(script);
        value.unwrap_or_else(|error| panic!("{}: {script}: {error}", self.make()))
    }

    /// Runs a script in the page, waits for a request of `target`, closes all connections and
    /// returns them.
    pub(crate) fn run_and_finish(&mut self, script: &str, target: &str) -> Vec<Connection> {
        self.run(script);
        self.wait_for(target);
        self.finish_visit()
    }

    /// Waits until a server has responded to a request of `target` with 200.
    pub(crate) fn wait_for(&self, target: &str) {
        let is_served = |request: &Request| request.target == target && request.status == 200;
        let served = poll(|| self.recorded().iter().any(is_served));
        assert!(served, "{}: {target} was not requested; {:?}", self.make(), self.recorded());
    }

    /// The requests since connections were last closed.
    pub(crate) fn recorded(&self) -> Vec<Request> {
        let recorded = self.servers.iter().flat_map(RecordingServer::recorded);
        recorded.flat_map(|recorded| recorded.requests).collect()
    }

    /// Closes all connections and returns those since the last call.
    pub(crate) fn finish_visit(&mut self) -> Vec<Connection> {
        // Waits for responses that are still in flight.
        std::thread::sleep(Duration::from_millis(100));
        self.servers.iter().for_each(RecordingServer::close_connections);
        let secrets: String = self.servers.iter().map(RecordingServer::secrets).collect();
        let recorded = self.servers.iter().flat_map(RecordingServer::take).collect();
        let connections = with_recordings(self.network.packets(&secrets), recorded);
        self.connections.extend(connections.iter().cloned());
        connections
    }

    /// Records a finding with the connections since the last one.
    pub(crate) fn record_finding(
        &mut self,
        finding: &str,
        response: impl AsRef<str>,
    ) -> Result<(), String> {
        record_finding(
            &self.installed,
            finding,
            response.as_ref(),
            &std::mem::take(&mut self.connections),
        )
    }
}

/// The pages of the recording servers.
fn pages() -> Vec<(&'static str, (&'static str, String))> {
    let html = |body: &str| {
        // Keeps browsers from requesting an icon.
        let head = "<!doctype html><link rel=icon href='data:,'><title>page</title>";
        ("text/html", format!("{head}<body>{body}"))
    };
    let image = |number| format!("<img src='/image{number}'>");
    let images: String = (0..6).map(image).collect();
    let picture = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>".to_owned();
    vec![
        ("/image0", ("image/svg+xml", picture.clone())),
        ("/image1", ("image/svg+xml", picture.clone())),
        ("/image2", ("image/svg+xml", picture.clone())),
        ("/image3", ("image/svg+xml", picture.clone())),
        ("/image4", ("image/svg+xml", picture.clone())),
        ("/image5", ("image/svg+xml", picture)),
        ("/", html("a page")),
        ("/images", html(&images)),
        ("/image", html("<img src='/image0'>")),
        ("/form", html("<form method=post action='/posted'><input name=a value=b></form>")),
        ("/kept", html("may be kept")),
        ("/frame", html("<iframe src='https://www.site.test/framed'></iframe>")),
        ("/framed", html("in a frame")),
        ("/elsewhere", html("<img src='https://www.site.test/image0'>")),
        ("/preconnect", html("<link rel=preconnect href='https://other.test'>")),
    ]
}

/// The only connection that carried a request of `target`.
pub(crate) fn connection_of<'a>(connections: &'a [Connection], target: &str) -> &'a Connection {
    let all: Vec<&Connection> =
        connections.iter().filter(|connection| connection.requested(target)).collect();
    match all[..] {
        [only] => only,
        _ => {
            panic!("{target} was requested on {} connections: {}", all.len(), describe(connections))
        }
    }
}

/// How a request was sent: early, or on what kind of connection.
pub(crate) fn request_label(connections: &[Connection], target: &str) -> &'static str {
    let connections = connection_of(connections, target);
    let early_data =
        connections.requests().iter().any(|request| request.target == target && request.early_data);
    match (early_data, connections.early_data()) {
        (true, EarlyDataOutcome::Accepted) => "early",
        (true, _) => panic!("early without early data in the packets: {connections}"),
        (false, EarlyDataOutcome::Accepted) => "after early data",
        (false, EarlyDataOutcome::Refused) => "refused, and again after the handshake",
        (false, _) if connections.announced_early_data() => {
            "after early data announced and not sent"
        }
        (false, _) if connections.resumed() => "resumed",
        (false, _) => "full",
    }
}

/// Describes connections, one a line.
pub(crate) fn describe(connections: &[Connection]) -> String {
    connections.iter().map(|connection| format!("\n  {connection}")).collect()
}
