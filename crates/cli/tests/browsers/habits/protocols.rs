//! What it does over HTTP/2 and HTTP/3, at this program's server.

use std::thread::sleep;
use std::time::Duration;

use firstflight_browser::{Browser, Installed, Quic};

use crate::findings::found;
use crate::ours::{Line, Ours};
use crate::room::LIMIT;
use crate::seen::{Early, Seen};
use crate::stage::Stage;

/// A browser and our server.
struct Visits {
    // Dropped first: its profile lies in the stage's directory.
    browser: Browser,
    ours: Ours,
    stage: Stage,
    installed: Installed,
    seen: Vec<Seen>,
}

impl Visits {
    fn new(installed: &Installed, quic: Quic) -> Self {
        let stage = Stage::new();
        let ours = Ours::start(&stage, &pages(), CONFIG);
        let mut settings = stage.settings();
        settings.quic = quic;
        let browser = stage.open(installed, "profile", &settings);
        Self { browser, ours, stage, installed: installed.clone(), seen: Vec::new() }
    }

    fn go(&mut self, path: &str) {
        let url = format!("https://www.site.test{path}");
        if let Err(error) = self.browser.navigate(&url, LIMIT) {
            panic!("{}: {url}: {error}; {:?}", self.installed.make, self.ours.lines());
        }
    }

    /// Has the browser end all connections, and says which there were and what was asked.
    fn end(&mut self) -> (Vec<Seen>, Vec<Line>) {
        // Answers are on the way, and what comes of them.
        sleep(Duration::from_millis(200));
        self.browser.forget_connections().unwrap();
        sleep(Duration::from_millis(300));
        assert!(self.ours.is_alive());
        let seen = self.stage.packets("");
        // What only asked whether the server listens.
        let seen: Vec<Seen> = seen.into_iter().filter(|seen| seen.tls().is_some()).collect();
        self.seen.extend(seen.iter().cloned());
        (seen, self.ours.take())
    }

    fn visit(&mut self, path: &str) -> (Vec<Seen>, Vec<Line>) {
        self.go(path);
        self.end()
    }

    fn found(&mut self, habit: &str, response: impl AsRef<str>) -> Result<(), String> {
        found(&self.installed, habit, response.as_ref(), &std::mem::take(&mut self.seen))
    }

    /// Runs a script in a page whose connection has ended, waits for the request, and says how it
    /// came.
    fn act(&mut self, script: &str, target: &str) -> String {
        self.visit("/");
        self.go("/");
        self.end();
        self.browser.evaluate(script).unwrap();
        crate::within(|| self.ours.lines().iter().any(|line| line.target == target));
        let (seen, lines) = self.end();
        response(&seen, &lines, target)
    }
}

pub(crate) fn http_2(installed: &Installed) -> Result<(), String> {
    let mut visits = Visits::new(installed, Quic::Off);
    spoken(&mut visits, "h2", "HTTP/2")?;
    // Two names of one address and one certificate.
    visits.visit("/names.html");
    let (seen, lines) = visits.visit("/names.html");
    assert_eq!(lines.len(), 2, "{lines:?}");
    let connections = seen.len();
    let early = lines.iter().filter(|line| line.early).count();
    visits.found("h2-two-names", format!("{connections} connections, {early} of 2 requests early"))
}

pub(crate) fn http_3(installed: &Installed) -> Result<(), String> {
    let origins = ["www.site.test:443", "beside.site.test:443"].map(str::to_owned);
    let mut visits = Visits::new(installed, Quic::Known(origins.to_vec()));
    spoken(&mut visits, "h3", "HTTP/3")
}

/// What it does over this protocol.
fn spoken(visits: &mut Visits, name: &str, protocol: &str) -> Result<(), String> {
    let key = |what: &str| format!("{name}-{what}");
    let (_, lines) = visits.visit("/");
    let spoken = lines.last().map_or("nothing", |line| &line.protocol).to_owned();
    visits.found(&key("first-visit"), &spoken)?;
    if spoken != protocol {
        return Ok(());
    }
    let (seen, lines) = visits.visit("/?again");
    let get = response(&seen, &lines, "/?again");
    visits.found(&key("get"), get)?;
    let (seen, lines) = visits.visit("/images.html");
    let early = lines.iter().filter(|line| line.early).count();
    let count = format!("{} connections, {early} of {} requests early", seen.len(), lines.len());
    visits.found(&key("page-of-six-images"), count)?;
    let post = visits.act("void fetch('/posted', {method: 'POST', body: 'a body'})", "/posted");
    visits.found(&key("post-fetch"), post)?;
    let get = visits.act("void fetch('/fetched')", "/fetched");
    visits.found(&key("get-fetch"), get)?;
    let late = visits.act("void fetch('/late/')", "/late/");
    visits.found(&key("425-fetch"), late)?;
    visits.visit("/");
    let (seen, lines) = visits.visit("/late/");
    let late = response(&seen, &lines, "/late/");
    visits.found(&key("425-page"), late)?;
    let six: Vec<String> = (0..6)
        .map(|number| {
            let target = format!("/?{number}");
            let (seen, lines) = visits.visit(&target);
            let response = response(&seen, &lines, &target);
            response.split(':').next().unwrap_or_default().to_owned()
        })
        .collect();
    visits.found(&key("six-returns"), six.join(", "))
}

/// How requests for a target came, and what became of them.
fn response(seen: &[Seen], lines: &[Line], target: &str) -> String {
    let asked: Vec<&Line> = lines.iter().filter(|line| line.target == target).collect();
    let mut words = Vec::new();
    for line in &asked {
        let on = seen.iter().find(|seen| seen.facts.client == line.client);
        let on = on.unwrap_or_else(|| panic!("no packets of {line:?}"));
        let early = match (line.early, on.early()) {
            (true, Early::Accepted) => "early",
            // What of it the packets do show does not gainsay the log.
            (true, Early::Unknown) => "early",
            (true, _) => panic!("early without early data in the packets: {on}, {line:?}"),
            (false, Early::Accepted | Early::Unknown) => "after early data",
            (false, Early::Refused) => "refused, and again after the handshake",
            (false, _) if on.resumed() => "resumed",
            (false, _) => "full",
        };
        let held = line.held.as_ref().map_or(String::new(), |why| format!(", held ({why})"));
        let status = line.status.map_or("no answer".to_owned(), |status| status.to_string());
        words.push(format!("{early}{held}: {status}"));
    }
    let connections: std::collections::BTreeSet<_> = asked.iter().map(|line| line.client).collect();
    let place = match (asked.len(), connections.len()) {
        (0, _) => return "does not ask".to_owned(),
        (1, _) => "",
        (_, 1) => " on one connection",
        _ => " on connections of their own",
    };
    words.join("; ") + place
}

/// Below `/late` nothing runs early, and whoever tries is told.
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
