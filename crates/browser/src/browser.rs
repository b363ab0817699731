//! One browser, whatever its make.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::chromium::Chromium;
use crate::firefox::Firefox;
use crate::{BrowserError, Installed, Make, Navigation, Picture, Place, Settings};

/// A browser that runs with a profile of its own. Dropped, it is killed with all its processes.
///
/// Every wait has a limit. A browser that does not answer within it is killed, and each call after
/// that fails.
pub struct Browser {
    make: Make,
    driver: Box<dyn Driver>,
}

/// What can be opened beside what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// One more tab.
    Tab,
    /// One more window of the same profile.
    Window,
    /// A private window: what it learns is its own.
    Private,
}

/// A tab or window that was opened by [`Browser::open_window`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowId(String);

impl Browser {
    /// Starts a browser whose files all lie in `profile`: new in an empty directory, and with what
    /// it knew in one that it had before. Waits until it takes commands.
    ///
    /// # Errors
    /// If it cannot be started, or is not ready within [`COMMAND_TIMEOUT`](crate::COMMAND_TIMEOUT).
    pub fn open(
        installed: &Installed,
        place: &dyn Place,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Self, BrowserError> {
        let driver: Box<dyn Driver> = match installed.make {
            Make::Chromium => Box::new(Chromium::open(installed, place, profile, settings)?),
            Make::Firefox => Box::new(Firefox::open(installed, place, profile, settings)?),
        };
        Ok(Self { make: installed.make, driver })
    }

    /// Makes a profile, and a command that starts the browser with it for a person: with a window,
    /// and without a driver. A page to open can be added as an argument.
    ///
    /// Firefox takes names for addresses only from its driver: here, all names lead to the first
    /// address of [`Settings::hosts`].
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn prepare(
        installed: &Installed,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Command, BrowserError> {
        match installed.make {
            Make::Chromium => Chromium::prepare(installed, profile, settings),
            Make::Firefox => Firefox::prepare(installed, profile, settings),
        }
    }

    /// Its make.
    pub fn make(&self) -> Make {
        self.make
    }

    /// Its process id as its place has it, and that of its process group.
    pub fn id(&self) -> u32 {
        self.driver.id()
    }

    /// Opens a page from an empty one, as by its address line, and waits for the load event and
    /// until the largest paint has settled.
    ///
    /// # Errors
    /// [`BrowserError::NotOpened`] where there is no page; the browser can go on. If it takes
    /// longer than `limit` the browser is killed.
    pub fn navigate(&mut self, url: &str, limit: Duration) -> Result<Navigation, BrowserError> {
        self.driver.navigate(url, limit)
    }

    /// The same, with pictures of how the page came to be. They cost the browser time.
    ///
    /// # Errors
    /// As of [`Browser::navigate`].
    pub fn film(
        &mut self,
        url: &str,
        limit: Duration,
    ) -> Result<(Navigation, Vec<Picture>), BrowserError> {
        self.driver.film(url, limit)
    }

    /// Closes all its connections to servers. It keeps the sessions that it could resume, and what
    /// it knows of HTTP/3.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn forget_connections(&mut self) -> Result<(), BrowserError> {
        self.driver.forget_connections()
    }

    /// A picture of what is seen of the page, a PNG.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        self.driver.screenshot()
    }

    /// What an expression comes to in the page; a promise is waited for.
    ///
    /// # Errors
    /// [`BrowserError::Script`] if it throws.
    pub fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        self.driver.evaluate(script)
    }

    /// A command of its own protocol, sent as it is: of the Chrome DevTools Protocol, for the page
    /// that is driven, or of WebDriver BiDi.
    ///
    /// # Errors
    /// [`BrowserError::Refused`] if it answers so.
    pub fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        self.driver.command(method, parameters)
    }

    /// Opens one more tab, which is driven from now on.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn new_tab(&mut self) -> Result<WindowId, BrowserError> {
        self.open_window(Window::Tab)
    }

    /// Opens a tab or window, which is driven from now on.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn open_window(&mut self, window: Window) -> Result<WindowId, BrowserError> {
        self.driver.open_window(window).map(WindowId)
    }

    /// The tab or window that is driven.
    pub fn window(&self) -> WindowId {
        WindowId(self.driver.window())
    }

    /// Drives another tab or window, which comes to the front.
    ///
    /// # Errors
    /// [`BrowserError::Refused`] if it has been closed.
    pub fn show(&mut self, window: &WindowId) -> Result<(), BrowserError> {
        self.driver.show(&window.0)
    }

    /// Ends it in good order, so that its profile can be opened again, and kills what is left of it
    /// after five seconds.
    ///
    /// # Errors
    /// If it cannot be ended.
    pub fn close(mut self) -> Result<(), BrowserError> {
        self.driver.close().map_err(|source| BrowserError::Lasting { browser: self.make, source })
    }
}

/// What each make does in its own way.
pub(crate) trait Driver: Send {
    fn id(&self) -> u32;
    fn navigate(&mut self, url: &str, limit: Duration) -> Result<Navigation, BrowserError>;
    fn film(
        &mut self,
        url: &str,
        limit: Duration,
    ) -> Result<(Navigation, Vec<Picture>), BrowserError>;
    fn forget_connections(&mut self) -> Result<(), BrowserError>;
    fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError>;
    fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError>;
    fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError>;
    fn open_window(&mut self, window: Window) -> Result<String, BrowserError>;
    fn window(&self) -> String;
    fn show(&mut self, window: &str) -> Result<(), BrowserError>;
    fn close(&mut self) -> io::Result<()>;
}
