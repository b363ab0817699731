//! Real browsers of Debian with a small server on this machine.

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
    Browser, BrowserError, BrowserKind, Installed, LocalMachine, Settings, Window,
};
use processes::processes_in;
use serde_json::json;
use server::{NAME, Server};
use tempfile::TempDir;

#[test]
fn firefox_visits_and_returns() {
    visits_and_returns(BrowserKind::Firefox);
}

#[test]
fn chromium_visits_and_returns() {
    visits_and_returns(BrowserKind::Chromium);
}

#[test]
fn firefox_ends_with_its_handle() {
    ends_with_its_handle(BrowserKind::Firefox);
}

#[test]
fn chromium_ends_with_its_handle() {
    ends_with_its_handle(BrowserKind::Chromium);
}

/// All calls of a browser, and an ordinary close.
fn visits_and_returns(kind: BrowserKind) {
    let bench = TestBench::new();
    let mut browser = bench.open(kind, true);
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
    assert!(page.opened_connection());
    assert_eq!(first.resources.len(), 1, "{:?}", first.resources);
    assert!(first.resources[0].name.ends_with("/picture"));
    assert!(first.largest_contentful_paint.unwrap() > page.response_start);
    assert_eq!(bench.server.requests("/").len(), 1);
    assert!(!bench.server.requests("/")[0].early);
    assert_eq!(bench.server.requests("/favicon.ico"), []);

    // On the existing connection, and without the cache.
    let second = browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert!(!second.page.opened_connection() && second.kind == "navigate", "{second:?}");
    assert_eq!(bench.server.requests("/picture").len(), 2);

    // On a new connection, with a ticket.
    browser.close_connections().unwrap();
    let third = browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert!(third.page.opened_connection(), "{:?}", third.page);
    let request = bench.server.requests("/").pop().unwrap();
    assert!(request.resumed && request.early, "{request:?}");

    assert_eq!(browser.evaluate("document.title").unwrap(), json!("A page"));
    assert_eq!(browser.evaluate("fetch('/nothing').then(r => r.status)").unwrap(), json!(404));
    let thrown = browser.evaluate("no.such.thing").unwrap_err();
    assert!(matches!(thrown, BrowserError::Script { .. }), "{thrown}");
    assert!(browser.screenshot().unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));

    let (slow, frames) =
        browser.navigate_with_frames(&bench.server.url("/slow"), TEST_TIMEOUT).unwrap();
    assert!(frames.len() > 1, "{} frames", frames.len());
    assert!(frames.iter().all(|frame| frame.jpeg.starts_with(b"\xff\xd8\xff")));
    assert!(frames.is_sorted_by(|a, b| a.at < b.at));
    assert!(frames[0].at < slow.load_event, "{} {slow:?}", frames[0].at);

    let missing = browser.navigate(&bench.server.url("/nothing"), TEST_TIMEOUT).unwrap();
    assert_eq!(missing.status(), 404);
    // Port 1 is closed, and other hosts are not resolved.
    for url in [format!("https://{NAME}:1/"), "https://example.com/".to_owned()] {
        let refused = browser.navigate(&url, TEST_TIMEOUT).unwrap_err();
        assert!(matches!(refused, BrowserError::NavigationFailed { .. }), "{refused}");
    }

    let first_window = browser.window();
    let private_window = browser.open_window(Window::Private).unwrap();
    assert_ne!(first_window, private_window);
    browser.navigate(&url, TEST_TIMEOUT).unwrap();
    assert!(!bench.server.requests("/").pop().unwrap().resumed, "it has a ticket");
    browser.show(&first_window).unwrap();
    browser.new_tab().unwrap();
    assert_eq!(browser.navigate(&url, TEST_TIMEOUT).unwrap().status(), 200);

    browser.close().unwrap();
    bench.wait_until_exited();
}

/// No process is left after a drop, a hang or a panic.
fn ends_with_its_handle(kind: BrowserKind) {
    let bench = TestBench::new();
    let browser = bench.open(kind, false);
    assert!(processes_in(&bench.home()).len() > 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _browser = browser;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    bench.wait_until_exited();

    // The same profile again: its tickets may be used, but early data is disabled.
    let mut browser = bench.open(kind, false);
    let url = bench.server.url("/");
    for _ in 0..2 {
        browser.navigate(&url, TEST_TIMEOUT).unwrap();
        browser.close_connections().unwrap();
    }
    assert!(bench.server.requests("/").iter().all(|request| !request.early));
    assert!(bench.server.requests("/")[1].resumed);

    let timeout = Duration::from_secs(2);
    let timed_out = browser.navigate(&bench.server.url("/never"), timeout).unwrap_err();
    assert!(matches!(timed_out, BrowserError::TimedOut { .. }), "{timed_out}");
    assert!(timed_out.to_string().contains("/never within 2 s and was killed"), "{timed_out}");
    bench.wait_until_exited();
    let exited = browser.navigate(&url, TEST_TIMEOUT).unwrap_err();
    assert!(matches!(exited, BrowserError::Exited { .. }), "{exited}");
}

/// The process that started the browser is killed, and cannot end it.
#[test]
fn browsers_end_when_their_starter_is_killed() {
    for kind in BrowserKind::ALL {
        let bench = TestBench::new();
        let mut starter = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "starts_a_browser_and_waits"])
            .env(HOME_VARIABLE, bench.home())
            .env(KIND_VARIABLE, kind.name())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = bench.home().join("ready");
        let end = Instant::now() + TEST_TIMEOUT;
        while !ready.exists() && Instant::now() < end {
            sleep(Duration::from_millis(20));
        }
        let started = processes_in(&bench.home()).len();
        starter.kill().unwrap();
        starter.wait().unwrap();
        assert!(ready.exists() && started > 3, "{kind} did not start: {started} processes");
        bench.wait_until_exited();
    }
}

/// The process that the previous test starts.
#[test]
#[ignore = "is started by another test"]
fn starts_a_browser_and_waits() {
    let Some(home) = env::var_os(HOME_VARIABLE).map(PathBuf::from) else { return };
    let kind = env::var(KIND_VARIABLE).unwrap().parse().unwrap();
    let installed = Installed::find(kind).unwrap();
    let settings = Settings::default();
    let _browser = Browser::open(&installed, &LocalMachine, &home, &settings).unwrap();
    fs::write(home.join("ready"), "").unwrap();
    sleep(10 * TEST_TIMEOUT);
}

const HOME_VARIABLE: &str = "FIRSTFLIGHT_TEST_HOME";
const KIND_VARIABLE: &str = "FIRSTFLIGHT_TEST_KIND";

#[test]
fn a_program_that_is_not_a_browser_is_reported() {
    let directory = TempDir::new().unwrap();
    let missing = Installed::at(Path::new("/nowhere/firefox")).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/firefox"), "{missing}");
    let other = Installed::at(Path::new("/bin/true")).unwrap_err();
    assert!(other.to_string().contains("name a Firefox or a Chromium"), "{other}");

    for kind in BrowserKind::ALL {
        let version = if kind == BrowserKind::Firefox { "Mozilla Firefox 1" } else { "Chromium 1" };
        let program = script(
            directory.path(),
            &format!("[ \"$1\" != --version ] || exec echo {version}; echo no screen >&2; exit 3"),
        );
        let installed = Installed::at(&program).unwrap();
        assert_eq!((installed.kind, &*installed.version), (kind, version));
        let profile = directory.path().join(kind.name());
        let exited = Browser::open(&installed, &LocalMachine, &profile, &Settings::default());
        let exited = exited.err().expect("it does not run");
        assert!(exited.to_string().contains("its last output was: no screen"), "{exited}");
    }
}

fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("program");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A server and a directory for profiles.
struct TestBench {
    directory: TempDir,
    server: Server,
}

impl TestBench {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let server = Server::start(directory.path());
        Self { directory, server }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Waits until no process of the profile is left. Crash handlers end after the browser.
    fn wait_until_exited(&self) {
        let end = Instant::now() + TEST_TIMEOUT;
        let mut left = processes_in(&self.home());
        while !left.is_empty() {
            assert!(Instant::now() < end, "still there: {left:?}");
            sleep(Duration::from_millis(20));
            left = processes_in(&self.home());
        }
    }

    fn open(&self, kind: BrowserKind, early_data: bool) -> Browser {
        let installed = Installed::find(kind).expect("`make deps-test` installs it");
        let settings = Settings {
            early_data,
            trust: vec![self.server.trust.clone()],
            hosts: vec![(NAME.to_owned(), self.server.address.ip())],
            ..Settings::default()
        };
        Browser::open(&installed, &LocalMachine, &self.home(), &settings).unwrap()
    }
}

/// For a machine that is busy with other tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
