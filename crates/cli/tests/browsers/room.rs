//! A browser, three servers that watch it, and what one visit after another came to.

use std::time::Duration;

use firstflight_browser::{Browser, Installed, Make, Settings};

use crate::findings::found;
use crate::seen::{Early, Seen, joined};
use crate::stage::Stage;
use crate::within;
use crate::witness::{Manner, Request, Tls, Witness};

/// A browser and the servers that it visits: `www.site.test` and `beside.site.test` are the first,
/// `other.test` the second and `third.test` the last.
pub(crate) struct Room {
    // Dropped first: its profile lies in the stage's directory.
    browser: Option<Browser>,
    pub(crate) witnesses: Vec<Witness>,
    pub(crate) stage: Stage,
    pub(crate) installed: Installed,
    /// All that was seen so far, for the findings.
    seen: Vec<Seen>,
}

/// The most that one visit takes, on a machine with much else to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

impl Room {
    pub(crate) fn new(installed: &Installed, tls: &Tls) -> Self {
        Self::with(installed, tls, |_| ())
    }

    /// The same with other settings of the browser.
    pub(crate) fn with(
        installed: &Installed,
        tls: &Tls,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let stage = Stage::new();
        let witnesses: Vec<Witness> = (0..3).map(|path| stage.witness(path, tls)).collect();
        for witness in &witnesses {
            witness.manner(|manner| manner.pages.extend(pages()));
        }
        let mut settings = stage.settings();
        change(&mut settings);
        let browser = stage.open(installed, "profile", &settings);
        Self {
            browser: Some(browser),
            witnesses,
            stage,
            installed: installed.clone(),
            seen: Vec::new(),
        }
    }

    pub(crate) fn make(&self) -> Make {
        self.installed.make
    }

    /// Changes how the first server treats clients.
    pub(crate) fn manner(&self, change: impl FnOnce(&mut Manner)) {
        self.witnesses[0].manner(change);
    }

    /// All servers' TLS is like this from now on; tickets stay good.
    pub(crate) fn becomes(&self, tls: &Tls) {
        self.witnesses.iter().for_each(|witness| witness.becomes(tls));
    }

    /// Opens a page, ends all connections, and says which there were.
    pub(crate) fn visit(&mut self, url: &str) -> Vec<Seen> {
        self.go(url);
        self.end()
    }

    /// The browser itself.
    pub(crate) fn browser(&mut self) -> &mut Browser {
        self.browser.as_mut().expect("it is open")
    }

    /// Ends the browser, and starts it again with the same profile.
    pub(crate) fn reopen(&mut self) {
        self.browser.take().expect("it is open").close().unwrap();
        let settings = self.stage.settings();
        self.browser = Some(self.stage.open(&self.installed, "profile", &settings));
    }

    /// Opens a page, as by the address line.
    pub(crate) fn go(&mut self, url: &str) {
        if let Err(error) = self.browser().navigate(url, LIMIT) {
            panic!("{}: {url}: {error}; {:?}", self.make(), self.heard());
        }
    }

    /// Runs a script in the page.
    pub(crate) fn run(&mut self, script: &str) -> serde_json::Value {
        let value = self.browser().evaluate(script);
        value.unwrap_or_else(|error| panic!("{}: {script}: {error}", self.make()))
    }

    /// Runs a script in the page, waits until this was requested, ends all connections and says
    /// which there were.
    pub(crate) fn act(&mut self, script: &str, target: &str) -> Vec<Seen> {
        self.run(script);
        self.wait_for(target);
        self.end()
    }

    /// Waits until some server was requested this, and answered other than 425.
    pub(crate) fn wait_for(&self, target: &str) {
        let served = |request: &Request| request.target == target && request.status == 200;
        let came = within(|| self.heard().iter().any(served));
        assert!(came, "{}: nobody asked for {target}; {:?}", self.make(), self.heard());
    }

    /// The requests since connections were last ended.
    pub(crate) fn heard(&self) -> Vec<Request> {
        let heard = self.witnesses.iter().flat_map(Witness::heard);
        heard.flat_map(|heard| heard.requests).collect()
    }

    /// Ends all connections and says which there were since it last did.
    pub(crate) fn end(&mut self) -> Vec<Seen> {
        // Answers are on the way, and what comes of them.
        std::thread::sleep(Duration::from_millis(100));
        self.witnesses.iter().for_each(Witness::hang_up);
        let secrets: String = self.witnesses.iter().map(Witness::secrets).collect();
        let heard = self.witnesses.iter().flat_map(Witness::take).collect();
        let seen = joined(self.stage.packets(&secrets), heard);
        self.seen.extend(seen.iter().cloned());
        seen
    }

    /// Takes down what all since the last finding came to.
    pub(crate) fn found(&mut self, habit: &str, response: impl AsRef<str>) -> Result<(), String> {
        found(&self.installed, habit, response.as_ref(), &std::mem::take(&mut self.seen))
    }
}

/// What witnesses serve, whoever asks.
fn pages() -> Vec<(&'static str, (&'static str, String))> {
    let html = |body: &str| {
        // Without an icon nobody asks for one.
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

/// The connection on which this was requested, that is the only one.
pub(crate) fn on<'a>(seen: &'a [Seen], target: &str) -> &'a Seen {
    let all: Vec<&Seen> = seen.iter().filter(|seen| seen.asked(target)).collect();
    match all[..] {
        [one] => one,
        _ => panic!("{target} was asked on {} connections: {}", all.len(), words(seen)),
    }
}

/// How a request came: early, or on what kind of connection.
pub(crate) fn how(seen: &[Seen], target: &str) -> &'static str {
    let seen = on(seen, target);
    let early = seen.requests().iter().any(|request| request.target == target && request.early);
    match (early, seen.early()) {
        (true, Early::Accepted) => "early",
        (true, _) => panic!("early without early data in the packets: {seen}"),
        (false, Early::Accepted) => "after early data",
        (false, Early::Refused) => "refused, and again after the handshake",
        (false, _) if seen.announced_early() => "after early data announced and not sent",
        (false, _) if seen.resumed() => "resumed",
        (false, _) => "full",
    }
}

/// All connections in words.
pub(crate) fn words(seen: &[Seen]) -> String {
    seen.iter().map(|seen| format!("\n  {seen}")).collect()
}
