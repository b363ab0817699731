//! Headless Chromium, controlled with the Chrome DevTools Protocol over pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::program::{Running, TEST_TIMEOUT, within};

/// Chromium with a new profile, killed when dropped.
pub(crate) struct Browser {
    _running: Running,
    commands: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// The URLs that it requested.
    pub(crate) requested: Vec<String>,
    /// Messages of its console, content security policy and scripts.
    pub(crate) console_messages: Vec<String>,
}

impl Browser {
    /// Starts it with an empty page. `rules` are those of `--host-resolver-rules`.
    pub(crate) fn open(dir: &Path, rules: &str) -> Self {
        let mut command = Command::new("sh");
        // It reads commands from descriptor 3 and writes to 4.
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"]);
        command.args(FLAGS).arg("--remote-debugging-pipe");
        command.arg(format!("--user-data-dir={}", dir.join("browser").display()));
        if !rules.is_empty() {
            command.arg(format!("--host-resolver-rules={rules}"));
        }
        // Keeps all its files below `dir`.
        command.arg("about:blank").env("HOME", dir).env_remove("DBUS_SESSION_BUS_ADDRESS");
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::start(&mut command);
        let commands = running.0.stdin.take().unwrap();
        let responses = running.0.stdout.take().unwrap();
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(responses).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            _running: running,
            commands,
            messages,
            last: 0,
            session: None,
            requested: Vec::new(),
            console_messages: Vec::new(),
        };
        browser.attach();
        browser
    }

    /// Attaches to a new page and subscribes to its events.
    fn attach(&mut self) {
        let made = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": made["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", target);
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        assert!(self.session.is_some(), "chromium has no page: {attached}");
        for domain in ["Page", "Network", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn go(&mut self, url: &str) {
        let result = self.call("Page.navigate", json!({ "url": url }));
        assert!(result["errorText"].is_null(), "{url}: {result}");
        self.wait_for_text("document.readyState", "complete");
    }

    /// The error with which a page fails to load.
    pub(crate) fn refusal(&mut self, url: &str) -> String {
        let result = self.call("Page.navigate", json!({ "url": url }));
        result["errorText"].as_str().unwrap_or_default().to_owned()
    }

    /// Evaluates an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        self.call("Runtime.evaluate", parameters)["result"]["value"].take()
    }

    /// Waits until the text of an expression contains `words`.
    pub(crate) fn wait_for_text(&mut self, expression: &str, words: &str) {
        let mut last = Value::Null;
        let matched = within(TEST_TIMEOUT, Duration::from_millis(50), || {
            last = self.eval(expression);
            last.as_str().is_some_and(|text| text.contains(words))
        });
        assert!(matched, "{expression} is not {words:?} but {last}; {:?}", self.console_messages);
    }

    /// Sends a command and waits for its result. Returns `null` if the page was closed meanwhile.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("chromium takes commands; see `make deps-test`");
        loop {
            let message = self.messages.recv_timeout(TEST_TIMEOUT);
            let mut message =
                message.unwrap_or_else(|_| panic!("chromium does not respond to {method}"));
            if message["id"] == self.last {
                return message["result"].take();
            }
            self.record_event(&message);
        }
    }

    fn record_event(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                self.requested.push(url.to_owned());
            }
            "Log.entryAdded" | "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" => {
                self.console_messages.push(parameters.to_string());
            }
            _ => {}
        }
    }
}

/// Disables background activity.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
];
