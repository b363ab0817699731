//! Chromium, driven by the Chrome DevTools Protocol over pipes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::browser::{Driver, Window};
use crate::dialogue::Event;
use crate::home::HomeDirectory;
use crate::line::{Line, Wait};
use crate::navigation::COLLECT;
use crate::pipes::Pipes;
use crate::{BrowserError, COMMAND_TIMEOUT, Installed, Make, Navigation, Picture, Place, Settings};

mod film;
mod flags;

/// A Chromium that runs.
pub(crate) struct Chromium {
    line: Line,
    /// The page that is driven.
    tab: Tab,
    /// Its page about its own network, once it was needed.
    network: Option<Tab>,
    cache: bool,
}

/// A page and the session in which it is spoken to.
#[derive(Clone)]
struct Tab {
    target: String,
    session: String,
}

impl Chromium {
    pub(crate) fn open(
        installed: &Installed,
        place: &dyn Place,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Self, BrowserError> {
        let home = HomeDirectory::make(profile)?;
        let data = home.path("chromium");
        prepare(&home, &data, settings)?;
        // It reads commands from descriptor 3 and writes to 4, and ends when 3 does.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >\"$FIRSTFLIGHT_BROWSER_LOG\" 2>&1";
        let mut command = home.shell(script, &installed.program, settings);
        command.args(flags::DRIVEN).args(flags::all(&data, settings));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let fail = |source| BrowserError::Start { program: installed.program.clone(), source };
        let mut running = place.start(command).map_err(fail)?;
        let (Some(commands), Some(responses)) = (running.stdin(), running.stdout()) else {
            return Err(fail(io::Error::other("its place gives no pipes to it")));
        };
        let pipes = Pipes::new(commands, responses).map_err(fail)?;
        let mut line = Line::new(Make::Chromium, running, home.log());
        line.connect(Box::new(pipes));
        let tab = Tab { target: String::new(), session: String::new() };
        let mut chromium = Self { line, tab, network: None, cache: settings.cache };
        chromium.tab = chromium.first_tab()?;
        Ok(chromium)
    }

    /// The same for a person: with a window, and without a driver.
    pub(crate) fn prepare(
        installed: &Installed,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Command, BrowserError> {
        let home = HomeDirectory::make(profile)?;
        let data = home.path("chromium");
        prepare(&home, &data, settings)?;
        let mut command = home.plain(&installed.program, settings);
        command.args(flags::all(&data, settings));
        Ok(command)
    }

    /// A page of our own. One that it opened by itself would go to its first URL when we are
    /// already somewhere else.
    fn first_tab(&mut self) -> Result<Tab, BrowserError> {
        let wait = Wait::start("start", COMMAND_TIMEOUT);
        let parameters = json!({ "url": "about:blank", "newWindow": true });
        let made = self.line.call("Target.createTarget", parameters, None, wait)?;
        self.attach(made["targetId"].as_str().unwrap_or_default(), wait)
    }

    fn attach(&mut self, target: &str, wait: Wait<'_>) -> Result<Tab, BrowserError> {
        let parameters = json!({ "targetId": target, "flatten": true });
        let attached = self.line.call("Target.attachToTarget", parameters, None, wait)?;
        let session = attached["sessionId"].as_str();
        let session = session.ok_or_else(|| self.line.garbled(wait.step(), "no session"))?;
        let tab = Tab { target: target.to_owned(), session: session.to_owned() };
        for (method, parameters) in [
            ("Page.enable", json!({})),
            ("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
            ("Network.enable", json!({})),
            ("Network.setCacheDisabled", json!({ "cacheDisabled": !self.cache })),
            // It would ask each server for one, on a connection that no page needs.
            ("Network.setBlockedURLs", json!({ "urls": ["*/favicon.ico"] })),
        ] {
            self.line.call(method, parameters, Some(&tab.session), wait)?;
        }
        Ok(tab)
    }

    fn page(&mut self, method: &str, parameters: Value, wait: Wait<'_>) -> Answer {
        self.line.call(method, parameters, Some(&self.tab.session), wait)
    }

    /// Its page about its own network: what a person would open for the buttons on it.
    fn network(&mut self, wait: Wait<'_>) -> Result<Tab, BrowserError> {
        if let Some(tab) = &self.network {
            return Ok(tab.clone());
        }
        let parameters = json!({ "url": "chrome://net-internals/#sockets", "background": true });
        let made = self.line.call("Target.createTarget", parameters, None, wait)?;
        let target = made["targetId"].as_str().unwrap_or_default().to_owned();
        let tab = self.attach(&target, wait)?;
        self.network = Some(tab.clone());
        Ok(tab)
    }

    /// Opens a page, and waits for the load event of it.
    fn load(&mut self, url: &str, wait: Wait<'_>) -> Result<(), BrowserError> {
        let went = self.page("Page.navigate", json!({ "url": url }), wait)?;
        let Some(loader) = loader(url, &went)? else { return Ok(()) };
        self.line.event(wait, |event| (loaded(event) == Some(loader.as_str())).then_some(()))
    }

    fn script(&mut self, script: &str, wait: Wait<'_>) -> Answer {
        let result = self.page("Runtime.evaluate", evaluation(script), wait)?;
        comes_to(result)
    }

    fn blank(&mut self, wait: Wait<'_>) -> Result<(), BrowserError> {
        self.load("about:blank", wait)?;
        self.line.forget();
        Ok(())
    }

    fn collect(&mut self, wait: Wait<'_>) -> Result<Navigation, BrowserError> {
        let value = self.script(COLLECT, wait)?;
        Navigation::read(value).map_err(|reason| self.line.garbled(wait.step(), reason))
    }
}

impl Driver for Chromium {
    fn id(&self) -> u32 {
        self.line.id()
    }

    fn navigate(&mut self, url: &str, limit: Duration) -> Result<Navigation, BrowserError> {
        let step = format!("open {url}");
        let wait = Wait::start(&step, limit);
        self.blank(wait)?;
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
        self.blank(wait)?;
        self.filmed(url, wait)
    }

    fn forget_connections(&mut self) -> Result<(), BrowserError> {
        let wait = Wait::start("close its connections", COMMAND_TIMEOUT);
        let network = self.network(wait)?;
        let page = std::mem::replace(&mut self.tab, network);
        let done = self.script("chrome.send('flushSocketPools')", wait);
        self.tab = page;
        done.map(drop)
    }

    fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        let wait = Wait::start("take a picture of the page", COMMAND_TIMEOUT);
        let shot = self.page("Page.captureScreenshot", json!({ "format": "png" }), wait)?;
        decoded(&shot["data"]).map_err(|reason| self.line.garbled(wait.step(), reason))
    }

    fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        self.script(script, Wait::start("run a script in the page", COMMAND_TIMEOUT))
    }

    fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        let wait = Wait::start(method, COMMAND_TIMEOUT);
        let browser = method.starts_with("Target.") || method.starts_with("Browser.");
        let session = (!browser).then(|| self.tab.session.clone());
        self.line.call(method, parameters, session.as_deref(), wait)
    }

    fn open_window(&mut self, window: Window) -> Result<String, BrowserError> {
        let wait = Wait::start("open a window", COMMAND_TIMEOUT);
        let mut parameters = json!({ "url": "about:blank", "newWindow": window != Window::Tab });
        if window == Window::Private {
            let made = self.line.call("Target.createBrowserContext", json!({}), None, wait)?;
            parameters["browserContextId"] = made["browserContextId"].clone();
        }
        let made = self.line.call("Target.createTarget", parameters, None, wait)?;
        let target = made["targetId"].as_str();
        let target = target.ok_or_else(|| self.line.garbled(wait.step(), "no target"))?.to_owned();
        self.tab = self.attach(&target, wait)?;
        Ok(target)
    }

    fn window(&self) -> String {
        self.tab.target.clone()
    }

    fn show(&mut self, window: &str) -> Result<(), BrowserError> {
        let wait = Wait::start("show a window", COMMAND_TIMEOUT);
        let parameters = json!({ "targetId": window });
        self.line.call("Target.activateTarget", parameters, None, wait)?;
        self.tab = self.attach(window, wait)?;
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let wait = Wait::start("end", COMMAND_TIMEOUT);
        // Its response may come, or its end first.
        let _ = self.line.ask("Browser.close", json!({}), None, wait);
        self.line.end(Duration::from_secs(5))
    }
}

type Answer = Result<Value, BrowserError>;

/// Parameters of `Runtime.evaluate`.
fn evaluation(script: &str) -> Value {
    json!({ "expression": script, "returnByValue": true, "awaitPromise": true })
}

/// The value in a result of `Runtime.evaluate`.
fn comes_to(mut result: Value) -> Answer {
    if let Some(thrown) = result.get("exceptionDetails") {
        let words = thrown["exception"]["description"].as_str().or(thrown["text"].as_str());
        let reason = words.unwrap_or("an exception without words").to_owned();
        return Err(BrowserError::Script { browser: Make::Chromium, reason });
    }
    Ok(result["result"]["value"].take())
}

/// What loads a page, by the result of `Page.navigate`; `None` where nothing has to be loaded.
fn loader(url: &str, went: &Value) -> Result<Option<String>, BrowserError> {
    match went["errorText"].as_str() {
        None => Ok(went["loaderId"].as_str().map(str::to_owned)),
        Some(reason) => Err(BrowserError::NotOpened {
            browser: Make::Chromium,
            url: url.to_owned(),
            reason: reason.to_owned(),
        }),
    }
}

/// Which loader's load event this is.
fn loaded(event: &Event) -> Option<&str> {
    let is_load = event.method == "Page.lifecycleEvent" && event.parameters["name"] == "load";
    is_load.then(|| event.parameters["loaderId"].as_str()).flatten()
}

/// A picture's bytes.
fn decoded(text: &Value) -> Result<Vec<u8>, String> {
    let bytes = BASE64_STANDARD.decode(text.as_str().unwrap_or_default());
    bytes.map_err(|error| format!("a picture that cannot be read ({error})"))
}

/// Files of a profile before it is first used.
fn prepare(home: &HomeDirectory, data: &Path, settings: &Settings) -> Result<(), BrowserError> {
    if settings.post_quantum == Some(false) {
        let what = "be kept from offering X25519MLKEM768";
        return Err(BrowserError::Unable { browser: Make::Chromium, what });
    }
    crate::trust::tell(Make::Chromium, &home.path(".pki/nssdb"), settings)?;
    let preferences = data.join("Default/Preferences");
    if preferences.exists() {
        return Ok(());
    }
    let write = || {
        fs::create_dir_all(data.join("Default"))?;
        fs::write(&preferences, flags::preferences(settings).to_string())
    };
    write().map_err(|source| BrowserError::File { verb: "write", path: preferences, source })
}
