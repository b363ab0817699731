//! Firefox, driven by WebDriver BiDi over a WebSocket.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::connection::{Connection, Outcome, Step};
use crate::driver::{Driver, Window};
use crate::navigation::{COLLECT, select_frames};
use crate::profile::{ProfileDirectory, add_certificates};
use crate::transport::Socket;
use crate::{
    BrowserError, BrowserKind, COMMAND_TIMEOUT, Environment, Frame, Installed, Navigation, Quic,
    Settings,
};

mod preferences;

/// A running Firefox.
pub(crate) struct Firefox {
    connection: Connection,
    /// The browsing context of the driven page.
    tab: String,
    /// Kept open, because the browser ends when this pipe is closed.
    _alive: Option<ChildStdin>,
}

impl Firefox {
    pub(crate) fn open(
        installed: &Installed,
        environment: &dyn Environment,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Self, BrowserError> {
        let step = Step::start("start", COMMAND_TIMEOUT);
        let directory = ProfileDirectory::create(profile)?;
        let data = directory.path("firefox");
        prepare(&data, settings, &[])?;
        let address_file = data.join(ADDRESS_FILE);
        // Remove the file of an earlier run.
        let _ = fs::remove_file(&address_file);
        let mut command = directory.shell(SUPERVISED_SCRIPT, &installed.program, settings);
        command.args(["--headless", "--no-remote", "--remote-debugging-port=0"]);
        command.args(["--remote-allow-system-access", "--profile"]).arg(&data).arg("about:blank");
        command.envs(ENVIRONMENT);
        command.envs([("MOZ_HEADLESS_WIDTH", "1280"), ("MOZ_HEADLESS_HEIGHT", "800")]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let fail = |source| BrowserError::Start { program: installed.program.clone(), source };
        let mut process = environment.start(command).map_err(fail)?;
        let alive = process.stdin();
        let mut connection = Connection::new(BrowserKind::Firefox, process, directory.log());
        let address = wait_for_address(&mut connection, &address_file, step)?;
        let socket =
            Socket::open(environment, address, "/session", step.remaining()).map_err(fail)?;
        connection.connect(Box::new(socket));
        connection.call("session.new", json!({ "capabilities": {} }), None, step)?;
        let mut firefox = Self { connection, tab: String::new(), _alive: alive };
        firefox.tab = firefox.first_context("content", step)?;
        firefox.set_host_addresses(settings, step)?;
        if settings.quic != Quic::Off {
            firefox.run_privileged(LOAD_ALT_SVC, step)?;
        }
        Ok(firefox)
    }

    /// Returns a command for a person: with a window, and without a driver.
    pub(crate) fn prepare(
        installed: &Installed,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Command, BrowserError> {
        let directory = ProfileDirectory::create(profile)?;
        let data = directory.path("firefox");
        let address = settings.hosts.first().map(|(_, address)| address.to_string());
        let address = address.map(|address| ("network.dns.forceResolve", json!(address)));
        prepare(&data, settings, address.as_slice())?;
        let mut command = directory.interactive_command(&installed.program, settings);
        command.args(["--no-remote", "--profile"]).arg(&data);
        command.envs(ENVIRONMENT);
        Ok(command)
    }

    /// Returns the first browsing context of pages (`content`) or of the browser itself (`chrome`).
    fn first_context(&mut self, scope: &str, step: Step<'_>) -> Result<String, BrowserError> {
        let tree = json!({ "moz:scope": scope, "maxDepth": 0 });
        let tree = self.connection.call("browsingContext.getTree", tree, None, step)?;
        let context = tree["contexts"][0]["context"].as_str();
        context.map(str::to_owned).ok_or_else(|| {
            self.connection.invalid_response(step.name(), format!("no {scope} window"))
        })
    }

    /// Sets the addresses of names. A preference allows only one address for all names.
    fn set_host_addresses(
        &mut self,
        settings: &Settings,
        step: Step<'_>,
    ) -> Result<(), BrowserError> {
        if settings.hosts.is_empty() {
            return Ok(());
        }
        let hosts: Vec<_> =
            settings.hosts.iter().map(|(name, address)| (name, address.to_string())).collect();
        let script = format!(
            r#"(() => {{
  const names = Cc["@mozilla.org/network/native-dns-override;1"]
    .getService(Ci.nsINativeDNSResolverOverride);
  for (const [name, address] of {}) names.addIPOverride(name, address);
}})()"#,
            json!(hosts)
        );
        self.run_privileged(&script, step).map(drop)
    }

    /// Runs a script with the privileges of the browser itself.
    fn run_privileged(&mut self, script: &str, step: Step<'_>) -> CommandResult {
        let window = self.first_context("chrome", step)?;
        self.script(script, &window, step)
    }

    /// Runs a script in a window. Returns its value as JSON, like the Chrome DevTools Protocol.
    fn script(&mut self, script: &str, window: &str, step: Step<'_>) -> CommandResult {
        let parameters = json!({
            "expression": format!("(async () => JSON.stringify(await ({script})))()"),
            "target": { "context": window },
            "awaitPromise": true,
        });
        let result = self.connection.call("script.evaluate", parameters, None, step)?;
        if let Some(thrown) = result.get("exceptionDetails") {
            let description = thrown["text"].as_str().unwrap_or("an exception without a message");
            return Err(BrowserError::Script {
                browser: BrowserKind::Firefox,
                reason: description.to_owned(),
            });
        }
        match result["result"]["value"].as_str() {
            None => Ok(Value::Null),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| self.connection.invalid_response(step.name(), error.to_string())),
        }
    }

    fn navigation_parameters(&self, url: &str) -> Value {
        json!({ "context": self.tab, "url": url, "wait": "complete" })
    }

    fn navigation_result(url: &str, outcome: Outcome) -> Result<(), BrowserError> {
        outcome.map(drop).map_err(|reason| BrowserError::NavigationFailed {
            browser: BrowserKind::Firefox,
            url: url.to_owned(),
            reason: strip_error_prefix(&reason).to_owned(),
        })
    }

    fn load(&mut self, url: &str, step: Step<'_>) -> Result<(), BrowserError> {
        let parameters = self.navigation_parameters(url);
        let outcome =
            self.connection.request("browsingContext.navigate", parameters, None, step)?;
        self.connection.drop_events();
        Self::navigation_result(url, outcome)
    }

    fn collect(&mut self, step: Step<'_>) -> Result<Navigation, BrowserError> {
        let tab = self.tab.clone();
        let value = self.script(COLLECT, &tab, step)?;
        Navigation::read(value)
            .map_err(|reason| self.connection.invalid_response(step.name(), reason))
    }
}

impl Driver for Firefox {
    fn id(&self) -> u32 {
        self.connection.id()
    }

    fn navigate(&mut self, url: &str, timeout: Duration) -> Result<Navigation, BrowserError> {
        let step = format!("open {url}");
        let step = Step::start(&step, timeout);
        self.load("about:blank", step)?;
        self.load(url, step)?;
        self.collect(step)
    }

    fn navigate_with_frames(
        &mut self,
        url: &str,
        timeout: Duration,
    ) -> Result<(Navigation, Vec<Frame>), BrowserError> {
        let step = format!("record {url}");
        let step = Step::start(&step, timeout);
        self.load("about:blank", step)?;
        self.run_privileged(FRAME_RECORDER, step)?;
        let loaded = self.load(url, step);
        let navigation = loaded.and_then(|()| self.collect(step));
        // The recorder must be stopped, even if the page failed.
        let recorded = self.run_privileged("globalThis.firstflightFrameRecorder.stop()", step)?;
        let navigation = navigation?;
        let mut frames = Vec::new();
        for frame in recorded.as_array().into_iter().flatten() {
            let at = frame["at"].as_f64().unwrap_or_default() - navigation.origin;
            let jpeg = BASE64_STANDARD.decode(frame["jpeg"].as_str().unwrap_or_default());
            let jpeg = jpeg.map_err(|error| {
                self.connection.invalid_response(step.name(), format!("an image: {error}"))
            })?;
            frames.push(Frame { at, jpeg });
        }
        Ok((navigation, select_frames(frames)))
    }

    fn close_connections(&mut self) -> Result<(), BrowserError> {
        let step = Step::start("close its connections", COMMAND_TIMEOUT);
        let script = r#"Services.obs.notifyObservers(null, "net:cancel-all-connections")"#;
        self.run_privileged(script, step).map(drop)
    }

    fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        let step = Step::start("take a screenshot", COMMAND_TIMEOUT);
        let form = json!({ "context": self.tab, "format": { "type": "image/png" } });
        let shot = self.connection.call("browsingContext.captureScreenshot", form, None, step)?;
        BASE64_STANDARD.decode(shot["data"].as_str().unwrap_or_default()).map_err(|error| {
            self.connection.invalid_response(step.name(), format!("an image: {error}"))
        })
    }

    fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        let tab = self.tab.clone();
        self.script(script, &tab, Step::start("run a script in the page", COMMAND_TIMEOUT))
    }

    fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        self.connection.call(method, parameters, None, Step::start(method, COMMAND_TIMEOUT))
    }

    fn open_window(&mut self, window: Window) -> Result<String, BrowserError> {
        let step = Step::start("open a window", COMMAND_TIMEOUT);
        let kind = if window == Window::Tab { "tab" } else { "window" };
        let mut parameters = json!({ "type": kind });
        if window == Window::Private {
            // A container, not a private window.
            let created =
                self.connection.call("browser.createUserContext", json!({}), None, step)?;
            parameters["userContext"] = created["userContext"].clone();
        }
        let created = self.connection.call("browsingContext.create", parameters, None, step)?;
        let tab = created["context"].as_str();
        self.tab = tab
            .ok_or_else(|| self.connection.invalid_response(step.name(), "no context"))?
            .to_owned();
        Ok(self.tab.clone())
    }

    fn window(&self) -> String {
        self.tab.clone()
    }

    fn show(&mut self, window: &str) -> Result<(), BrowserError> {
        let step = Step::start("show a window", COMMAND_TIMEOUT);
        let parameters = json!({ "context": window });
        self.connection.call("browsingContext.activate", parameters, None, step)?;
        self.tab = window.to_owned();
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let step = Step::start("end", COMMAND_TIMEOUT);
        // The browser may end before it responds.
        let _ = self.connection.request("browser.close", json!({}), None, step);
        self.connection.end(Duration::from_secs(5))
    }
}

type CommandResult = Result<Value, BrowserError>;

/// Writes the files of a profile.
fn prepare(data: &Path, settings: &Settings, extra: &[(&str, Value)]) -> Result<(), BrowserError> {
    let preferences = data.join("user.js");
    fs::create_dir_all(data)
        .and_then(|()| fs::write(&preferences, preferences::all(settings, extra)))
        .map_err(|source| BrowserError::File { verb: "write", path: preferences, source })?;
    add_certificates(BrowserKind::Firefox, data, settings)
}

/// Waits until Firefox has written its address.
fn wait_for_address(
    connection: &mut Connection,
    file: &Path,
    step: Step<'_>,
) -> Result<SocketAddr, BrowserError> {
    loop {
        if let Some(address) = fs::read(file).ok().and_then(|bytes| address(&bytes)) {
            return Ok(address);
        }
        if connection.has_ended() {
            return Err(connection.exited(step));
        }
        if step.remaining().is_zero() {
            return Err(connection.timed_out(step));
        }
        sleep(Duration::from_millis(10));
    }
}

/// Parses `WebDriverBiDiServer.json`. Returns `None` while the file is incomplete.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let json_text: Value = serde_json::from_slice(bytes).ok()?;
    let host = json_text["ws_host"].as_str()?.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = json_text["ws_port"].as_u64().and_then(|port| u16::try_from(port).ok())?;
    (port != 0).then_some(SocketAddr::new(host, port))
}

/// Removes the constant prefix of error messages.
fn strip_error_prefix(reason: &str) -> &str {
    reason.trim_start_matches("unknown error: ").trim()
}

/// Settings that have no preference: no crash reports; no sandbox, which needs privileges that do not
/// exist in a user namespace; and respect for the preference of the remote settings server.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("MOZ_CRASHREPORTER_DISABLE", "1"),
    ("MOZ_DISABLE_CONTENT_SANDBOX", "1"),
    ("MOZ_REMOTE_SETTINGS_DEVTOOLS", "1"),
];

/// Loads the list of HTTP/3 servers. Firefox loads it at its first request, and uses no HTTP/3 before,
/// not even for the servers in its preferences. So this script sends a request to a closed port on
/// loopback, and then reads the list.
const LOAD_ALT_SVC: &str = r#"(async () => {
  await fetch("https://127.0.0.1:65535/").catch(() => {});
  return Cc["@mozilla.org/network/protocol;1?name=http"]
    .getService(Ci.nsIHttpProtocolHandler).altSvcCacheKeys.length;
})()"#;

/// Records frames of the selected page until it is stopped.
const FRAME_RECORDER: &str = include_str!("record_frames.js");

/// The file in the profile with the address of Firefox.
const ADDRESS_FILE: &str = "WebDriverBiDiServer.json";

/// Ends the process group when the browser or its starter ends.
const SUPERVISED_SCRIPT: &str = r#"
{ "$0" "$@" </dev/null >"$FIRSTFLIGHT_BROWSER_LOG" 2>&1; kill -KILL 0; } &
read -r nothing
kill -KILL 0
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_address_file_is_ignored() {
        let json_text = br#"{"ws_host":"127.0.0.1","ws_port":40123}"#;
        assert_eq!(address(json_text), Some("127.0.0.1:40123".parse().unwrap()));
        for part in [&b""[..], b"{", br#"{"ws_host":"127.0.0.1"}"#, br#"{"ws_port":99999}"#] {
            assert_eq!(address(part), None);
        }
    }
}
