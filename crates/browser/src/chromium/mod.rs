//! Chromium, driven by the Chrome DevTools Protocol over pipes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::connection::{Connection, Event, Step};
use crate::driver::{Driver, Window};
use crate::navigation::{COLLECT, select_frames};
use crate::profile::{ProfileDirectory, add_certificates};
use crate::transport::Pipes;
use crate::{
    BrowserError, BrowserKind, COMMAND_TIMEOUT, Environment, Frame, Installed, Navigation, Settings,
};

mod flags;

/// A running Chromium.
pub(crate) struct Chromium {
    connection: Connection,
    /// The page that is driven.
    tab: Tab,
    /// The page `chrome://net-internals`, opened when it is first needed.
    net_internals: Option<Tab>,
    cache: bool,
}

/// A page and the session for its commands.
#[derive(Clone)]
struct Tab {
    target: String,
    session: String,
}

impl Chromium {
    pub(crate) fn open(
        installed: &Installed,
        environment: &dyn Environment,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Self, BrowserError> {
        let directory = ProfileDirectory::create(profile)?;
        let data = directory.path("chromium");
        prepare(&directory, &data, settings)?;
        // Chromium reads commands from descriptor 3, writes to 4, and ends when 3 is closed.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >\"$FIRSTFLIGHT_BROWSER_LOG\" 2>&1";
        let mut command = directory.shell(script, &installed.program, settings);
        command.args(flags::DRIVER_FLAGS).args(flags::all(&data, settings));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let fail = |source| BrowserError::Start { program: installed.program.clone(), source };
        let mut process = environment.start(command).map_err(fail)?;
        let (Some(commands), Some(responses)) = (process.stdin(), process.stdout()) else {
            return Err(fail(io::Error::other("the environment provides no pipes")));
        };
        let pipes = Pipes::new(commands, responses).map_err(fail)?;
        let mut connection = Connection::new(BrowserKind::Chromium, process, directory.log());
        connection.connect(Box::new(pipes));
        let tab = Tab { target: String::new(), session: String::new() };
        let mut chromium = Self { connection, tab, net_internals: None, cache: settings.cache };
        chromium.tab = chromium.first_tab()?;
        Ok(chromium)
    }

    /// Returns a command for a person: with a window, and without a driver.
    pub(crate) fn prepare(
        installed: &Installed,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Command, BrowserError> {
        let directory = ProfileDirectory::create(profile)?;
        let data = directory.path("chromium");
        prepare(&directory, &data, settings)?;
        let mut command = directory.interactive_command(&installed.program, settings);
        command.args(flags::all(&data, settings));
        Ok(command)
    }

    /// Opens the page to drive. The page that Chromium opens by itself loads its first URL late, which
    /// would interrupt a navigation.
    fn first_tab(&mut self) -> Result<Tab, BrowserError> {
        let step = Step::start("start", COMMAND_TIMEOUT);
        let parameters = json!({ "url": "about:blank", "newWindow": true });
        let created = self.connection.call("Target.createTarget", parameters, None, step)?;
        self.attach(created["targetId"].as_str().unwrap_or_default(), step)
    }

    fn attach(&mut self, target: &str, step: Step<'_>) -> Result<Tab, BrowserError> {
        let parameters = json!({ "targetId": target, "flatten": true });
        let attached = self.connection.call("Target.attachToTarget", parameters, None, step)?;
        let session = attached["sessionId"].as_str();
        let session =
            session.ok_or_else(|| self.connection.invalid_response(step.name(), "no session"))?;
        let tab = Tab { target: target.to_owned(), session: session.to_owned() };
        for (method, parameters) in [
            ("Page.enable", json!({})),
            ("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
            ("Network.enable", json!({})),
            ("Network.setCacheDisabled", json!({ "cacheDisabled": !self.cache })),
            // Otherwise Chromium requests it from each server, on an extra connection.
            ("Network.setBlockedURLs", json!({ "urls": ["*/favicon.ico"] })),
        ] {
            self.connection.call(method, parameters, Some(&tab.session), step)?;
        }
        Ok(tab)
    }

    /// Sends a command to the driven page.
    fn call_page(&mut self, method: &str, parameters: Value, step: Step<'_>) -> CommandResult {
        self.connection.call(method, parameters, Some(&self.tab.session), step)
    }

    /// Returns the page `chrome://net-internals`, whose script can close connections.
    fn net_internals(&mut self, step: Step<'_>) -> Result<Tab, BrowserError> {
        if let Some(tab) = &self.net_internals {
            return Ok(tab.clone());
        }
        let parameters = json!({ "url": "chrome://net-internals/#sockets", "background": true });
        let created = self.connection.call("Target.createTarget", parameters, None, step)?;
        let target = created["targetId"].as_str().unwrap_or_default().to_owned();
        let tab = self.attach(&target, step)?;
        self.net_internals = Some(tab.clone());
        Ok(tab)
    }

    /// Opens a page, and waits for its load event.
    fn load(&mut self, url: &str, step: Step<'_>) -> Result<(), BrowserError> {
        let navigated = self.call_page("Page.navigate", json!({ "url": url }), step)?;
        let Some(loader) = loader(url, &navigated)? else { return Ok(()) };
        self.connection
            .event(step, |event| (load_event_loader(event) == Some(loader.as_str())).then_some(()))
    }

    fn script(&mut self, script: &str, step: Step<'_>) -> CommandResult {
        let result = self.call_page("Runtime.evaluate", evaluation(script), step)?;
        evaluation_result(result)
    }

    fn open_blank_page(&mut self, step: Step<'_>) -> Result<(), BrowserError> {
        self.load("about:blank", step)?;
        self.connection.drop_events();
        Ok(())
    }

    fn collect(&mut self, step: Step<'_>) -> Result<Navigation, BrowserError> {
        let value = self.script(COLLECT, step)?;
        Navigation::read(value)
            .map_err(|reason| self.connection.invalid_response(step.name(), reason))
    }
}

impl Driver for Chromium {
    fn id(&self) -> u32 {
        self.connection.id()
    }

    fn navigate(&mut self, url: &str, timeout: Duration) -> Result<Navigation, BrowserError> {
        let step = format!("open {url}");
        let step = Step::start(&step, timeout);
        self.open_blank_page(step)?;
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
        self.open_blank_page(step)?;
        self.load_with_frames(url, step)
    }

    fn close_connections(&mut self) -> Result<(), BrowserError> {
        let step = Step::start("close its connections", COMMAND_TIMEOUT);
        let net_internals = self.net_internals(step)?;
        let page = std::mem::replace(&mut self.tab, net_internals);
        let done = self.script("chrome.send('flushSocketPools')", step);
        self.tab = page;
        done.map(drop)
    }

    fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        let step = Step::start("take a screenshot", COMMAND_TIMEOUT);
        let shot = self.call_page("Page.captureScreenshot", json!({ "format": "png" }), step)?;
        decode_base64(&shot["data"])
            .map_err(|reason| self.connection.invalid_response(step.name(), reason))
    }

    fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        self.script(script, Step::start("run a script in the page", COMMAND_TIMEOUT))
    }

    fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        let step = Step::start(method, COMMAND_TIMEOUT);
        let browser = method.starts_with("Target.") || method.starts_with("Browser.");
        let session = (!browser).then(|| self.tab.session.clone());
        self.connection.call(method, parameters, session.as_deref(), step)
    }

    fn open_window(&mut self, window: Window) -> Result<String, BrowserError> {
        let step = Step::start("open a window", COMMAND_TIMEOUT);
        let mut parameters = json!({ "url": "about:blank", "newWindow": window != Window::Tab });
        if window == Window::Private {
            let created =
                self.connection.call("Target.createBrowserContext", json!({}), None, step)?;
            parameters["browserContextId"] = created["browserContextId"].clone();
        }
        let created = self.connection.call("Target.createTarget", parameters, None, step)?;
        let target = created["targetId"].as_str();
        let target = target
            .ok_or_else(|| self.connection.invalid_response(step.name(), "no target"))?
            .to_owned();
        self.tab = self.attach(&target, step)?;
        Ok(target)
    }

    fn window(&self) -> String {
        self.tab.target.clone()
    }

    fn show(&mut self, window: &str) -> Result<(), BrowserError> {
        let step = Step::start("show a window", COMMAND_TIMEOUT);
        let parameters = json!({ "targetId": window });
        self.connection.call("Target.activateTarget", parameters, None, step)?;
        self.tab = self.attach(window, step)?;
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let step = Step::start("end", COMMAND_TIMEOUT);
        // The browser may end before it responds.
        let _ = self.connection.request("Browser.close", json!({}), None, step);
        self.connection.end(Duration::from_secs(5))
    }
}

type CommandResult = Result<Value, BrowserError>;

/// Parameters of `Runtime.evaluate`.
fn evaluation(script: &str) -> Value {
    json!({ "expression": script, "returnByValue": true, "awaitPromise": true })
}

/// Returns the value in a result of `Runtime.evaluate`.
fn evaluation_result(mut result: Value) -> CommandResult {
    if let Some(thrown) = result.get("exceptionDetails") {
        let description = thrown["exception"]["description"].as_str().or(thrown["text"].as_str());
        let reason = description.unwrap_or("an exception without a message").to_owned();
        return Err(BrowserError::Script { browser: BrowserKind::Chromium, reason });
    }
    Ok(result["result"]["value"].take())
}

/// Returns the loader in a result of `Page.navigate`; `None` if nothing has to be loaded.
fn loader(url: &str, navigated: &Value) -> Result<Option<String>, BrowserError> {
    match navigated["errorText"].as_str() {
        None => Ok(navigated["loaderId"].as_str().map(str::to_owned)),
        Some(reason) => Err(BrowserError::NavigationFailed {
            browser: BrowserKind::Chromium,
            url: url.to_owned(),
            reason: reason.to_owned(),
        }),
    }
}

/// Returns the loader if this is a load event.
fn load_event_loader(event: &Event) -> Option<&str> {
    let is_load = event.method == "Page.lifecycleEvent" && event.parameters["name"] == "load";
    is_load.then(|| event.parameters["loaderId"].as_str()).flatten()
}

/// Decodes an image.
fn decode_base64(text: &Value) -> Result<Vec<u8>, String> {
    let bytes = BASE64_STANDARD.decode(text.as_str().unwrap_or_default());
    bytes.map_err(|error| format!("an image that cannot be decoded ({error})"))
}

/// Writes the files of a profile.
fn prepare(
    directory: &ProfileDirectory,
    data: &Path,
    settings: &Settings,
) -> Result<(), BrowserError> {
    if settings.post_quantum == Some(false) {
        let what = "disable X25519MLKEM768";
        return Err(BrowserError::Unsupported { browser: BrowserKind::Chromium, what });
    }
    add_certificates(BrowserKind::Chromium, &directory.path(".pki/nssdb"), settings)?;
    let preferences = data.join("Default/Preferences");
    let write = || {
        fs::create_dir_all(data.join("Default"))?;
        // Preferences that Chromium has written stay.
        let known = fs::read(&preferences).unwrap_or_default();
        let mut all = serde_json::from_slice(&known).unwrap_or_default();
        merge(&mut all, flags::preferences(settings));
        fs::write(&preferences, all.to_string())
    };
    write().map_err(|source| BrowserError::File { verb: "write", path: preferences, source })
}

/// Sets the values of `new` in `all`, object by object.
fn merge(all: &mut Value, new: Value) {
    match (all, new) {
        (Value::Object(all), Value::Object(new)) => {
            for (name, value) in new {
                merge(all.entry(name).or_insert(Value::Null), value);
            }
        }
        (all, new) => *all = new,
    }
}

/// The frames and load events recorded so far.
#[derive(Default)]
struct RecordedFrames {
    /// The time, in milliseconds of Unix time, and a JPEG.
    frames: Vec<(f64, Vec<u8>)>,
    /// Loaders whose load event has arrived.
    loaded: Vec<String>,
}

impl Chromium {
    /// Opens a page and records frames until it has settled (`Page.startScreencast`).
    fn load_with_frames(
        &mut self,
        url: &str,
        step: Step<'_>,
    ) -> Result<(Navigation, Vec<Frame>), BrowserError> {
        let form = json!({ "format": "jpeg", "quality": 60, "maxWidth": 400, "maxHeight": 400 });
        self.call_page("Page.startScreencast", form, step)?;
        let mut recorded = RecordedFrames::default();
        let loaded = self.record_load(url, &mut recorded, step);
        // The screencast must be stopped, even if the page failed.
        let stopped = self.call_page("Page.stopScreencast", json!({}), step);
        let navigation = loaded?;
        stopped?;
        let frames = recorded.frames.into_iter();
        let frames = frames.map(|(at, jpeg)| Frame { at: at - navigation.origin, jpeg });
        let frames = select_frames(frames.collect());
        Ok((navigation, frames))
    }

    /// Loads a page, and waits for its last frame.
    fn record_load(
        &mut self,
        url: &str,
        recorded: &mut RecordedFrames,
        step: Step<'_>,
    ) -> Result<Navigation, BrowserError> {
        let navigated =
            self.call_with_frames("Page.navigate", json!({ "url": url }), recorded, step)?;
        if let Some(loader) = loader(url, &navigated)? {
            while !recorded.loaded.contains(&loader) {
                self.connection.receive(step)?;
                self.record_events(recorded, step)?;
            }
        }
        let value =
            self.call_with_frames("Runtime.evaluate", evaluation(COLLECT), recorded, step)?;
        let navigation = Navigation::read(evaluation_result(value)?)
            .map_err(|reason| self.connection.invalid_response(step.name(), reason))?;
        let delay = evaluation(LAST_FRAME_DELAY);
        self.call_with_frames("Runtime.evaluate", delay, recorded, step)?;
        Ok(navigation)
    }

    /// Sends a command, and records frames until it has a result.
    fn call_with_frames(
        &mut self,
        method: &str,
        parameters: Value,
        recorded: &mut RecordedFrames,
        step: Step<'_>,
    ) -> Result<Value, BrowserError> {
        let session = self.tab.session.clone();
        let id = self.connection.send(method, parameters, Some(&session), step)?;
        loop {
            let response = self.connection.receive(step)?;
            self.record_events(recorded, step)?;
            if let Some((_, outcome)) = response.filter(|(response_id, _)| *response_id == id) {
                return outcome.map_err(|reason| self.connection.refused(method, reason, step));
            }
        }
    }

    /// Processes queued events. Chromium sends the next frame after an acknowledgement.
    fn record_events(
        &mut self,
        recorded: &mut RecordedFrames,
        step: Step<'_>,
    ) -> Result<(), BrowserError> {
        while let Some(event) = self.connection.queued_event() {
            if let Some(loader) = load_event_loader(&event) {
                recorded.loaded.push(loader.to_owned());
            }
            if event.method != "Page.screencastFrame" {
                continue;
            }
            let at = event.parameters["metadata"]["timestamp"].as_f64().unwrap_or_default();
            let jpeg = decode_base64(&event.parameters["data"])
                .map_err(|reason| self.connection.invalid_response(step.name(), reason))?;
            recorded.frames.push((at * 1000.0, jpeg));
            let ack = json!({ "sessionId": event.parameters["sessionId"] });
            self.connection.send("Page.screencastFrameAck", ack, event.session.as_deref(), step)?;
        }
        Ok(())
    }
}

const LAST_FRAME_DELAY: &str = "new Promise((resolve) => setTimeout(resolve, 150))";

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_preferences_of_a_used_profile_are_updated() {
        let root = TempDir::new().unwrap();
        let directory = ProfileDirectory::create(root.path()).unwrap();
        let data = directory.path("chromium");
        let file = data.join("Default/Preferences");
        let read = || serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap();
        prepare(&directory, &data, &Settings::default()).unwrap();
        assert_eq!(read()["net"]["network_prediction_options"], 2);
        let used = json!({ "net": { "network_prediction_options": 2, "other": 1 }, "tabs": [7] });
        fs::write(&file, used.to_string()).unwrap();
        let settings = Settings { speculation: true, ..Settings::default() };
        prepare(&directory, &data, &settings).unwrap();
        assert_eq!(read()["net"], json!({ "network_prediction_options": 0, "other": 1 }));
        assert_eq!((&read()["tabs"], &read()["signin"]["allowed"]), (&json!([7]), &json!(false)));
        // An invalid file, which Chromium could not read either.
        fs::write(&file, "{").unwrap();
        prepare(&directory, &data, &settings).unwrap();
        assert_eq!(read()["net"], json!({ "network_prediction_options": 0 }));
    }
}
