//! Real browsers, each make as Debian has it, before a small server on this machine.

mod processes;
mod server;

use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use firstflight_browser::{
    Browser, BrowserError, Installed, Make, OnThisMachine, Settings, Window,
};
use processes::below;
use serde_json::json;
use server::{NAME, Server};
use tempfile::TempDir;

#[test]
fn firefox_visits_and_returns() {
    visits_and_returns(Make::Firefox);
}

#[test]
fn chromium_visits_and_returns() {
    visits_and_returns(Make::Chromium);
}

#[test]
fn firefox_ends_with_its_handle() {
    ends_with_its_handle(Make::Firefox);
}

#[test]
fn chromium_ends_with_its_handle() {
    ends_with_its_handle(Make::Chromium);
}

/// One browser through everything that it can be told, and its ordinary end.
fn visits_and_returns(make: Make) {
    let bench = Bench::new();
    let mut browser = bench.open(make, true);
    let url = bench.server.url("/");

    let first = browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert_eq!((first.status(), first.protocol(), &*first.kind), (200, "http/1.1", "navigate"));
    let page = &first.page;
    let order = [
        page.connect_start,
        page.secure_connection_start,
        page.connect_end,
        page.request_start,
        page.response_start,
        page.response_end,
        first.load_event,
        first.load_event_end,
    ];
    assert!(order.is_sorted() && order[0] > 0.0, "{order:?}");
    assert!(page.connected_anew());
    assert_eq!(first.resources.len(), 1, "{:?}", first.resources);
    assert!(first.resources[0].name.ends_with("/picture"));
    assert!(first.largest_contentful_paint.unwrap() > page.response_start);
    assert_eq!(bench.server.asked("/").len(), 1);
    assert!(!bench.server.asked("/")[0].early);
    assert_eq!(bench.server.asked("/favicon.ico"), []);

    // On the connection that is there, and past the cache.
    let second = browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert!(!second.page.connected_anew() && second.kind == "navigate", "{second:?}");
    assert_eq!(bench.server.asked("/picture").len(), 2);

    // On a new one, for which it has a ticket.
    browser.forget_connections().unwrap();
    let third = browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert!(third.page.connected_anew(), "{:?}", third.page);
    let asked = bench.server.asked("/").pop().unwrap();
    assert!(asked.resumed && asked.early, "{asked:?}");

    assert_eq!(browser.evaluate("document.title").unwrap(), json!("A page"));
    assert_eq!(browser.evaluate("fetch('/nothing').then(r => r.status)").unwrap(), json!(404));
    let thrown = browser.evaluate("no.such.thing").unwrap_err();
    assert!(matches!(thrown, BrowserError::Script { .. }), "{thrown}");
    assert!(browser.screenshot().unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));

    let (slow, pictures) = browser.film(&bench.server.url("/slow"), TEST_TIMEOUT).unwrap();
    assert!(pictures.len() > 1, "{} pictures", pictures.len());
    assert!(pictures.iter().all(|picture| picture.jpeg.starts_with(b"\xff\xd8\xff")));
    assert!(pictures.is_sorted_by(|a, b| a.at < b.at));
    assert!(pictures[0].at < slow.load_event, "{} {slow:?}", pictures[0].at);

    let missing = browser.navigate(&bench.server.url("/nothing"), TEST_TIMEOUT).unwrap();
    assert_eq!(missing.status(), 404);
    // Nobody listens there, and nothing but the named hosts leads anywhere.
    for url in [format!("https://{NAME}:1/"), "https://example.com/".to_owned()] {
        let refused = browser.navigate(&url, TEST_TIMEOUT).unwrap_err();
        assert!(matches!(refused, BrowserError::NotOpened { .. }), "{refused}");
    }

    let here = browser.window();
    let other = browser.open_window(Window::Private).unwrap();
    assert_ne!(here, other);
    browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert!(!bench.server.asked("/").pop().unwrap().resumed, "it is known to the server");
    browser.show(&here).unwrap();
    browser.new_tab().unwrap();
    assert_eq!(browser.navigate(&url, TEST_TIMEOUT).unwrap().status(), 200);

    browser.close().unwrap();
    bench.is_left_alone();
}

/// What is dropped, what hangs and what is left behind by a panic: nothing of it runs on.
fn ends_with_its_handle(make: Make) {
    let bench = Bench::new();
    let browser = bench.open(make, false);
    assert!(below(&bench.home()).len() > 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _browser = browser;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    bench.is_left_alone();

    // The same profile again; its tickets may be used, early data may not.
    let mut browser = bench.open(make, false);
    let url = bench.server.url("/");
    for _ in 0..2 {
        browser.navigate(&url, TEST_TIMEOUT).unwrap();
        browser.forget_connections().unwrap();
    }
    assert!(bench.server.asked("/").iter().all(|asked| !asked.early));
    assert!(bench.server.asked("/")[1].resumed);

    let limit = Duration::from_secs(2);
    let silent = browser.navigate(&bench.server.url("/never"), limit).unwrap_err();
    assert!(matches!(silent, BrowserError::Silent { .. }), "{silent}");
    assert!(silent.to_string().contains("/never within 2 s and was killed"), "{silent}");
    bench.is_left_alone();
    let gone = browser.navigate(&url, TEST_TIMEOUT).unwrap_err();
    assert!(matches!(gone, BrowserError::Gone { .. }), "{gone}");
}

/// Whoever started it was killed, and could end nothing.
#[test]
fn browsers_end_when_their_starter_is_killed() {
    for make in Make::ALL {
        let bench = Bench::new();
        let mut starter = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "starts_a_browser_and_waits"])
            .env(STARTER, bench.home())
            .env(STARTED, make.name())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = bench.home().join("ready");
        let end = Instant::now() + TEST_TIMEOUT;
        while !ready.exists() && Instant::now() < end {
            sleep(Duration::from_millis(20));
        }
        let started = below(&bench.home()).len();
        starter.kill().unwrap();
        starter.wait().unwrap();
        assert!(ready.exists() && started > 3, "{make} did not start: {started} processes");
        bench.is_left_alone();
    }
}

/// A process of the test before it.
#[test]
#[ignore = "is started by another test"]
fn starts_a_browser_and_waits() {
    let Some(home) = env::var_os(STARTER).map(PathBuf::from) else { return };
    let make = env::var(STARTED).unwrap().parse().unwrap();
    let installed = Installed::find(make).unwrap();
    let settings = Settings::default();
    let _browser = Browser::open(&installed, &OnThisMachine, &home, &settings).unwrap();
    fs::write(home.join("ready"), "").unwrap();
    sleep(10 * TEST_TIMEOUT);
}

const STARTER: &str = "FIRSTFLIGHT_TEST_HOME";
const STARTED: &str = "FIRSTFLIGHT_TEST_MAKE";

#[test]
fn a_program_that_is_none_is_named() {
    let directory = TempDir::new().unwrap();
    let missing = Installed::at(Path::new("/nowhere/firefox")).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/firefox"), "{missing}");
    let other = Installed::at(Path::new("/bin/true")).unwrap_err();
    assert!(other.to_string().contains("name a Firefox or a Chromium"), "{other}");

    for make in Make::ALL {
        let says = if make == Make::Firefox { "Mozilla Firefox 1" } else { "Chromium 1" };
        let program = script(
            directory.path(),
            &format!("[ \"$1\" != --version ] || exec echo {says}; echo no screen >&2; exit 3"),
        );
        let installed = Installed::at(&program).unwrap();
        assert_eq!((installed.make, &*installed.version), (make, says));
        let profile = directory.path().join(make.name());
        let gone = Browser::open(&installed, &OnThisMachine, &profile, &Settings::default());
        let gone = gone.err().expect("it does not run");
        assert!(gone.to_string().contains("it said last: no screen"), "{gone}");
    }
}

fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("program");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A server and a directory for profiles.
struct Bench {
    directory: TempDir,
    server: Server,
}

impl Bench {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let server = Server::start(directory.path());
        Self { directory, server }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Waits until no process is left there. The last of them end by themselves when they see that
    /// they are alone.
    fn is_left_alone(&self) {
        let end = Instant::now() + TEST_TIMEOUT;
        let mut left = below(&self.home());
        while !left.is_empty() {
            assert!(Instant::now() < end, "still there: {left:?}");
            sleep(Duration::from_millis(20));
            left = below(&self.home());
        }
    }

    fn open(&self, make: Make, early_data: bool) -> Browser {
        let installed = Installed::find(make).expect("`make deps-test` installs it");
        let settings = Settings {
            early_data,
            trust: vec![self.server.trust.clone()],
            hosts: vec![(NAME.to_owned(), self.server.address.ip())],
            ..Settings::default()
        };
        Browser::open(&installed, &OnThisMachine, &self.home(), &settings).unwrap()
    }
}

/// Of a machine that is busy with other tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
