//! Firefox, driven by WebDriver BiDi over a WebSocket.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::browser::{Driver, Window};
use crate::dialogue::Outcome;
use crate::home::HomeDirectory;
use crate::line::{Line, Wait};
use crate::navigation::{COLLECT, strip};
use crate::socket::Socket;
use crate::{
    BrowserError, COMMAND_TIMEOUT, Installed, Make, Navigation, Picture, Place, Quic, Settings,
};

mod preferences;

/// A Firefox that runs.
pub(crate) struct Firefox {
    line: Line,
    /// The page that is driven: its browsing context.
    tab: String,
    /// Closed by the kernel when this process ends, which ends the browser too.
    _alive: Option<Box<dyn Write + Send>>,
}

impl Firefox {
    pub(crate) fn open(
        installed: &Installed,
        place: &dyn Place,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Self, BrowserError> {
        let wait = Wait::start("start", COMMAND_TIMEOUT);
        let home = HomeDirectory::make(profile)?;
        let data = home.path("firefox");
        prepare(&data, settings, &[])?;
        let address_file = data.join(ADDRESS);
        // What an earlier run left would be taken for this one's.
        let _ = fs::remove_file(&address_file);
        let mut command = home.shell(WATCHED, &installed.program, settings);
        command.args(["--headless", "--no-remote", "--remote-debugging-port=0"]);
        command.args(["--remote-allow-system-access", "--profile"]).arg(&data).arg("about:blank");
        command.envs(ENVIRONMENT);
        command.envs([("MOZ_HEADLESS_WIDTH", "1280"), ("MOZ_HEADLESS_HEIGHT", "800")]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let fail = |source| BrowserError::Start { program: installed.program.clone(), source };
        let mut running = place.start(command).map_err(fail)?;
        let alive = running.stdin();
        let mut line = Line::new(Make::Firefox, running, home.log());
        let address = listening(&mut line, &address_file, wait)?;
        let socket = Socket::open(place, address, "/session", wait.left()).map_err(fail)?;
        line.connect(Box::new(socket));
        line.call("session.new", json!({ "capabilities": {} }), None, wait)?;
        let mut firefox = Self { line, tab: String::new(), _alive: alive };
        firefox.tab = firefox.first("content", wait)?;
        firefox.name_hosts(settings, wait)?;
        if settings.quic != Quic::Off {
            firefox.inside(KNOW_SERVICES, wait)?;
        }
        Ok(firefox)
    }

    /// The same for a person: with a window, and without a driver.
    pub(crate) fn prepare(
        installed: &Installed,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Command, BrowserError> {
        let home = HomeDirectory::make(profile)?;
        let data = home.path("firefox");
        let address = settings.hosts.first().map(|(_, address)| address.to_string());
        let address = address.map(|address| ("network.dns.forceResolve", json!(address)));
        prepare(&data, settings, address.as_slice())?;
        let mut command = home.plain(&installed.program, settings);
        command.args(["--no-remote", "--profile"]).arg(&data);
        command.envs(ENVIRONMENT);
        Ok(command)
    }

    /// The first browsing context of the pages (`content`) or of the browser itself (`chrome`).
    fn first(&mut self, scope: &str, wait: Wait<'_>) -> Result<String, BrowserError> {
        let tree = json!({ "moz:scope": scope, "maxDepth": 0 });
        let tree = self.line.call("browsingContext.getTree", tree, None, wait)?;
        let context = tree["contexts"][0]["context"].as_str();
        context
            .map(str::to_owned)
            .ok_or_else(|| self.line.garbled(wait.step(), format!("no {scope} window")))
    }

    /// Lets names lead where they should. A preference could only name one address for all.
    fn name_hosts(&mut self, settings: &Settings, wait: Wait<'_>) -> Result<(), BrowserError> {
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
        self.inside(&script, wait).map(drop)
    }

    /// Runs a script with the rights of the browser itself.
    fn inside(&mut self, script: &str, wait: Wait<'_>) -> Answer {
        let window = self.first("chrome", wait)?;
        self.script(script, &window, wait)
    }

    /// Runs a script in a window; its value goes by JSON, as the other protocol has it.
    fn script(&mut self, script: &str, window: &str, wait: Wait<'_>) -> Answer {
        let parameters = json!({
            "expression": format!("(async () => JSON.stringify(await ({script})))()"),
            "target": { "context": window },
            "awaitPromise": true,
        });
        let result = self.line.call("script.evaluate", parameters, None, wait)?;
        if let Some(thrown) = result.get("exceptionDetails") {
            let words = thrown["text"].as_str().unwrap_or("an exception without words");
            return Err(BrowserError::Script { browser: Make::Firefox, reason: words.to_owned() });
        }
        match result["result"]["value"].as_str() {
            None => Ok(Value::Null),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| self.line.garbled(wait.step(), error.to_string())),
        }
    }

    fn going(&self, url: &str) -> Value {
        json!({ "context": self.tab, "url": url, "wait": "complete" })
    }

    fn went(url: &str, outcome: Outcome) -> Result<(), BrowserError> {
        outcome.map(drop).map_err(|reason| BrowserError::NotOpened {
            browser: Make::Firefox,
            url: url.to_owned(),
            reason: tidy(&reason).to_owned(),
        })
    }

    fn load(&mut self, url: &str, wait: Wait<'_>) -> Result<(), BrowserError> {
        let parameters = self.going(url);
        let outcome = self.line.ask("browsingContext.navigate", parameters, None, wait)?;
        self.line.forget();
        Self::went(url, outcome)
    }

    fn collect(&mut self, wait: Wait<'_>) -> Result<Navigation, BrowserError> {
        let tab = self.tab.clone();
        let value = self.script(COLLECT, &tab, wait)?;
        Navigation::read(value).map_err(|reason| self.line.garbled(wait.step(), reason))
    }
}

impl Driver for Firefox {
    fn id(&self) -> u32 {
        self.line.id()
    }

    fn navigate(&mut self, url: &str, limit: Duration) -> Result<Navigation, BrowserError> {
        let step = format!("open {url}");
        let wait = Wait::start(&step, limit);
        self.load("about:blank", wait)?;
        self.load(url, wait)?;
        self.collect(wait)
    }

    fn film(
        &mut self,
        url: &str,
        limit: Duration,
    ) -> Result<(Navigation, Vec<Picture>), BrowserError> {
        let step = format!("open {url} before a camera");
        let wait = Wait::start(&step, limit);
        self.load("about:blank", wait)?;
        self.inside(CAMERA, wait)?;
        let loaded = self.load(url, wait);
        let navigation = loaded.and_then(|()| self.collect(wait));
        // It runs until it is stopped, whatever became of the page.
        let frames = self.inside("globalThis.firstflightCamera.stop()", wait)?;
        let navigation = navigation?;
        let mut pictures = Vec::new();
        for frame in frames.as_array().into_iter().flatten() {
            let at = frame["at"].as_f64().unwrap_or_default() - navigation.origin;
            let jpeg = BASE64_STANDARD.decode(frame["jpeg"].as_str().unwrap_or_default());
            let jpeg = jpeg
                .map_err(|error| self.line.garbled(wait.step(), format!("a picture: {error}")))?;
            pictures.push(Picture { at, jpeg });
        }
        Ok((navigation, strip(pictures)))
    }

    fn forget_connections(&mut self) -> Result<(), BrowserError> {
        let wait = Wait::start("close its connections", COMMAND_TIMEOUT);
        let script = r#"Services.obs.notifyObservers(null, "net:cancel-all-connections")"#;
        self.inside(script, wait).map(drop)
    }

    fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        let wait = Wait::start("take a picture of the page", COMMAND_TIMEOUT);
        let form = json!({ "context": self.tab, "format": { "type": "image/png" } });
        let shot = self.line.call("browsingContext.captureScreenshot", form, None, wait)?;
        BASE64_STANDARD
            .decode(shot["data"].as_str().unwrap_or_default())
            .map_err(|error| self.line.garbled(wait.step(), format!("a picture: {error}")))
    }

    fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        let tab = self.tab.clone();
        self.script(script, &tab, Wait::start("run a script in the page", COMMAND_TIMEOUT))
    }

    fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        self.line.call(method, parameters, None, Wait::start(method, COMMAND_TIMEOUT))
    }

    fn open_window(&mut self, window: Window) -> Result<String, BrowserError> {
        let wait = Wait::start("open a window", COMMAND_TIMEOUT);
        let kind = if window == Window::Tab { "tab" } else { "window" };
        let mut parameters = json!({ "type": kind });
        if window == Window::Private {
            let made = self.line.call("browser.createUserContext", json!({}), None, wait)?;
            parameters["userContext"] = made["userContext"].clone();
        }
        let made = self.line.call("browsingContext.create", parameters, None, wait)?;
        let tab = made["context"].as_str();
        self.tab = tab.ok_or_else(|| self.line.garbled(wait.step(), "no context"))?.to_owned();
        Ok(self.tab.clone())
    }

    fn window(&self) -> String {
        self.tab.clone()
    }

    fn show(&mut self, window: &str) -> Result<(), BrowserError> {
        let wait = Wait::start("show a window", COMMAND_TIMEOUT);
        let parameters = json!({ "context": window });
        self.line.call("browsingContext.activate", parameters, None, wait)?;
        self.tab = window.to_owned();
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let wait = Wait::start("end", COMMAND_TIMEOUT);
        // Its response may come, or its end first.
        let _ = self.line.ask("browser.close", json!({}), None, wait);
        self.line.end(Duration::from_secs(5))
    }
}

type Answer = Result<Value, BrowserError>;

/// Files of a profile before it is used.
fn prepare(data: &Path, settings: &Settings, more: &[(&str, Value)]) -> Result<(), BrowserError> {
    let preferences = data.join("user.js");
    fs::create_dir_all(data)
        .and_then(|()| fs::write(&preferences, preferences::all(settings, more)))
        .map_err(|source| BrowserError::File { verb: "write", path: preferences, source })?;
    crate::trust::tell(Make::Firefox, data, settings)
}

/// Waits until it says where it listens.
fn listening(line: &mut Line, file: &Path, wait: Wait<'_>) -> Result<SocketAddr, BrowserError> {
    loop {
        if let Some(address) = fs::read(file).ok().and_then(|bytes| address(&bytes)) {
            return Ok(address);
        }
        if line.ended() {
            return Err(line.gone(wait));
        }
        if wait.left().is_zero() {
            return Err(line.silent(wait));
        }
        sleep(Duration::from_millis(10));
    }
}

/// What `WebDriverBiDiServer.json` says; `None` while it is being written.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let said: Value = serde_json::from_slice(bytes).ok()?;
    let host = said["ws_host"].as_str()?.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = said["ws_port"].as_u64().and_then(|port| u16::try_from(port).ok())?;
    (port != 0).then_some(SocketAddr::new(host, port))
}

/// The reason without what stands around it in each.
fn tidy(reason: &str) -> &str {
    reason.trim_start_matches("unknown error: ").trim()
}

/// What no preference can say: no reports of crashes; no sandbox, for it needs rights that nobody
/// has in a user namespace; and the server of remote settings, which is a preference, is obeyed.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("MOZ_CRASHREPORTER_DISABLE", "1"),
    ("MOZ_DISABLE_CONTENT_SANDBOX", "1"),
    ("MOZ_REMOTE_SETTINGS_DEVTOOLS", "1"),
];

/// Waits until it has read which servers speak HTTP/3. It starts with that at its first request,
/// and takes none for known until then, not even those that its preferences name. So it asks a port
/// of its own loopback where nobody listens, and then for all that it knows.
const KNOW_SERVICES: &str = r#"(async () => {
  await fetch("https://127.0.0.1:65535/").catch(() => {});
  return Cc["@mozilla.org/network/protocol;1?name=http"]
    .getService(Ci.nsIHttpProtocolHandler).altSvcCacheKeys.length;
})()"#;

/// Takes pictures of the page in front until it is stopped.
const CAMERA: &str = include_str!("firefox/camera.js");

/// Where it says, in its profile, at which port it listens.
const ADDRESS: &str = "WebDriverBiDiServer.json";

/// Ends the whole process group when the browser ends, or when whoever started it does.
const WATCHED: &str = r#"
{ "$0" "$@" </dev/null >"$FIRSTFLIGHT_BROWSER_LOG" 2>&1; kill -KILL 0; } &
read -r nothing
kill -KILL 0
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_when_it_is_whole() {
        let said = br#"{"ws_host":"127.0.0.1","ws_port":40123}"#;
        assert_eq!(address(said), Some("127.0.0.1:40123".parse().unwrap()));
        for part in [&b""[..], b"{", br#"{"ws_host":"127.0.0.1"}"#, br#"{"ws_port":99999}"#] {
            assert_eq!(address(part), None);
        }
    }
}
