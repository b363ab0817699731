//! Headless Firefox, controlled with the Marionette protocol.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::program::{Running, TEST_TIMEOUT, text, within};

/// Firefox with a new profile, killed when dropped.
pub(crate) struct Firefox {
    _running: Running,
    stream: TcpStream,
    last: u64,
}

/// A profile at the default location.
const PROFILE: &str = ".mozilla/firefox/test.default";

/// The error for a certificate that it does not trust.
pub(crate) const INSECURE: &str = "insecure certificate";

impl Firefox {
    /// Starts it with this home directory. `names` resolve to this machine; other names are blocked.
    pub(crate) fn open(home: &Path, names: &str) -> Self {
        let profile = home.join(PROFILE);
        fs::create_dir_all(&profile).unwrap();
        fs::write(profile.join("user.js"), preferences(names)).unwrap();
        let port_file = profile.join("MarionetteActivePort");
        let _ = fs::remove_file(&port_file);
        let mut command = Command::new("firefox-esr");
        command.args(["--headless", "--marionette", "--no-remote", "--profile"]).arg(&profile);
        command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
        command.env_remove("DBUS_SESSION_BUS_ADDRESS").env("MOZ_CRASHREPORTER_DISABLE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running::start(&mut command);
        let mut stream = None;
        within(TEST_TIMEOUT, Duration::from_millis(50), || {
            let port = text(&port_file).trim().parse::<u16>().ok();
            stream = port.and_then(|port| TcpStream::connect(("127.0.0.1", port)).ok());
            stream.is_some()
        });
        let stream = stream.expect("firefox listens for its driver");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut firefox = Self { _running: running, stream, last: 0 };
        firefox.message();
        firefox.call("WebDriver:NewSession", json!({})).expect("a session");
        firefox
    }

    /// Opens a page and waits until it is loaded. Returns its text.
    ///
    /// # Errors
    /// If the page fails to load.
    pub(crate) fn go(&mut self, url: &str) -> Result<String, String> {
        self.call("WebDriver:Navigate", json!({ "url": url }))?;
        let script = json!({ "script": "return document.body.innerText", "args": [] });
        let text = self.call("WebDriver:ExecuteScript", script)?;
        Ok(text["value"].as_str().unwrap_or_default().to_owned())
    }

    fn call(&mut self, name: &str, parameters: Value) -> Result<Value, String> {
        self.last += 1;
        let command = json!([0, self.last, name, parameters]).to_string();
        let command = format!("{}:{command}", command.len());
        self.stream.write_all(command.as_bytes()).expect("firefox takes commands");
        loop {
            // The kind of message, its number, an error and a result.
            let mut response = self.message();
            if response[1] == self.last {
                return match response[2]["error"].as_str() {
                    Some(error) => Err(error.to_owned()),
                    None => Ok(response[3].take()),
                };
            }
        }
    }

    /// The next message: its length in decimal, a colon, and JSON.
    fn message(&mut self) -> Value {
        let mut length = 0;
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("firefox responds");
            match byte[0] {
                b':' => break,
                digit => length = length * 10 + usize::from(digit - b'0'),
            }
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).expect("firefox responds");
        serde_json::from_slice(&bytes).expect("firefox responds with JSON")
    }
}

/// Sends requests to the internet to a proxy that does not exist.
fn preferences(names: &str) -> String {
    let near = if names.is_empty() { String::new() } else { format!(", {names}") };
    format!(
        r#"user_pref("marionette.port", 0);
user_pref("network.dns.localDomains", "{names}");
user_pref("network.proxy.type", 1);
user_pref("network.proxy.http", "127.0.0.1");
user_pref("network.proxy.http_port", 9);
user_pref("network.proxy.ssl", "127.0.0.1");
user_pref("network.proxy.ssl_port", 9);
user_pref("network.proxy.no_proxies_on", "localhost, 127.0.0.1{near}");
user_pref("network.trr.mode", 5);
"#
    )
}
