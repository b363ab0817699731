//! A browser that runs, and the wire on which it is told what to do.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde_json::Value;

use crate::dialogue::{CommandQueue, Event, Outcome};
use crate::{BrowserError, Make, Running};

/// Carries messages.
pub(crate) trait Wire: Send {
    /// Sends one.
    fn send(&mut self, message: &str) -> io::Result<()>;

    /// The next one; `None` if none came within that time. An error where none will come.
    fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>>;
}

/// A browser's process and its wire. What does not answer is killed.
pub(crate) struct Line {
    make: Make,
    running: Box<dyn Running>,
    wire: Option<Box<dyn Wire>>,
    dialogue: CommandQueue,
    /// Where its standard error goes.
    log: PathBuf,
}

/// A moment until which something has to happen, and what is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    step: &'a str,
    limit: Duration,
    end: Instant,
}

impl<'a> Wait<'a> {
    /// As long as `limit` from now, for a step in words that follow "did not".
    pub(crate) fn start(step: &'a str, limit: Duration) -> Self {
        Self { step, limit, end: Instant::now() + limit }
    }

    /// What is waited for.
    pub(crate) fn step(&self) -> &str {
        self.step
    }

    /// What is left of it.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

impl Line {
    pub(crate) fn new(make: Make, running: Box<dyn Running>, log: PathBuf) -> Self {
        Self { make, running, wire: None, dialogue: CommandQueue::default(), log }
    }

    /// Takes commands from now on.
    pub(crate) fn connect(&mut self, wire: Box<dyn Wire>) {
        self.wire = Some(wire);
    }

    /// Whether its process has ended.
    pub(crate) fn ended(&mut self) -> bool {
        // What cannot be asked is as good as gone.
        self.running.ended().unwrap_or(true)
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }

    /// Sends a command, and waits for its result.
    pub(crate) fn call(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
        wait: Wait<'_>,
    ) -> Result<Value, BrowserError> {
        self.ask(method, parameters, session, wait)?
            .map_err(|reason| self.refused(method, reason, wait))
    }

    /// The same; a refusal is a response too.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
        wait: Wait<'_>,
    ) -> Result<Outcome, BrowserError> {
        let id = self.send(method, parameters, session, wait)?;
        loop {
            match self.hear(wait)? {
                Some((answered, outcome)) if answered == id => return Ok(outcome),
                // A response that somebody gave up on, or an event, which is kept.
                _ => {}
            }
        }
    }

    /// Sends a command, and gives its number; its response is found by [`Line::hear`].
    pub(crate) fn send(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
        wait: Wait<'_>,
    ) -> Result<u64, BrowserError> {
        let (id, text) = self.dialogue.command(method, parameters, session);
        match wire(&mut self.wire).and_then(|wire| wire.send(&text)) {
            Ok(()) => Ok(id),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.silent(wait)),
            Err(_) => Err(self.gone(wait)),
        }
    }

    /// The next response; `None` for an event, which is kept.
    pub(crate) fn hear(&mut self, wait: Wait<'_>) -> Result<Option<(u64, Outcome)>, BrowserError> {
        match wire(&mut self.wire).and_then(|wire| wire.receive(wait.left())) {
            Ok(Some(message)) => {
                self.dialogue.hear(&message).map_err(|reason| self.garbled(wait.step, reason))
            }
            Ok(None) => Err(self.silent(wait)),
            Err(_) => Err(self.gone(wait)),
        }
    }

    /// Waits for an event that is wanted; others before it are dropped.
    pub(crate) fn event<T>(
        &mut self,
        wait: Wait<'_>,
        mut wanted: impl FnMut(&Event) -> Option<T>,
    ) -> Result<T, BrowserError> {
        loop {
            while let Some(event) = self.dialogue.event() {
                if let Some(found) = wanted(&event) {
                    return Ok(found);
                }
            }
            self.hear(wait)?;
        }
    }

    /// The next event that is there already.
    pub(crate) fn kept_event(&mut self) -> Option<Event> {
        self.dialogue.event()
    }

    /// Drops events of what is over.
    pub(crate) fn forget(&mut self) {
        self.dialogue.forget();
    }

    /// Ends it: waits that long for it to end by itself, and kills what is left.
    pub(crate) fn end(&mut self, patience: Duration) -> io::Result<()> {
        let end = Instant::now() + patience;
        while !self.running.ended()? && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.running.kill()
    }

    pub(crate) fn refused(&self, method: &str, reason: String, wait: Wait<'_>) -> BrowserError {
        let step = format!("{} ({method})", wait.step);
        BrowserError::Refused { browser: self.make, step, reason }
    }

    pub(crate) fn garbled(&self, step: &str, reason: impl Into<String>) -> BrowserError {
        BrowserError::Garbled { browser: self.make, step: step.to_owned(), reason: reason.into() }
    }

    /// It hangs: nothing is waited for any more.
    pub(crate) fn silent(&mut self, wait: Wait<'_>) -> BrowserError {
        // What cannot be killed cannot be helped either.
        let _ = self.running.kill();
        BrowserError::Silent {
            browser: self.make,
            step: wait.step.to_owned(),
            limit: wait.limit,
            last: last_words(&self.log),
        }
    }

    pub(crate) fn gone(&mut self, wait: Wait<'_>) -> BrowserError {
        let _ = self.running.kill();
        BrowserError::Gone {
            browser: self.make,
            step: wait.step.to_owned(),
            last: last_words(&self.log),
        }
    }
}

/// The wire, once there is one.
fn wire(wire: &mut Option<Box<dyn Wire>>) -> io::Result<&mut (dyn Wire + 'static)> {
    wire.as_deref_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The end of what it wrote to standard error, as the end of a sentence.
pub(crate) fn last_words(log: &std::path::Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("; it said last: {}", line.chars().take(200).collect::<String>()),
        None => String::new(),
    }
}
