//! A running browser and the connection that carries its commands.
//!
//! Both protocols send JSON objects with a number:
//!
//! - Chrome DevTools Protocol: `{id, method, params, sessionId?}` with the response `{id, result}` or
//!   `{id, error: {code, message}}`; events are `{method, params, sessionId?}`.
//! - WebDriver BiDi: the same, with `type`, and `{id, error, message}` for an error.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde_json::{Value, json};

use crate::transport::Transport;
use crate::{BrowserError, BrowserKind, BrowserProcess};

/// A browser process and its transport. A browser that does not respond is killed.
pub(crate) struct Connection {
    kind: BrowserKind,
    process: Box<dyn BrowserProcess>,
    transport: Option<Box<dyn Transport>>,
    codec: MessageCodec,
    /// The file with the browser's standard error.
    log: PathBuf,
}

/// What is requested of the browser, with its deadline.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    name: &'a str,
    timeout: Duration,
    deadline: Instant,
}

impl<'a> Step<'a> {
    /// Starts a step with a timeout. The name completes a sentence after "did not".
    pub(crate) fn start(name: &'a str, timeout: Duration) -> Self {
        Self { name, timeout, deadline: Instant::now() + timeout }
    }

    /// The name of the step.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// The time until the deadline.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl Connection {
    pub(crate) fn new(kind: BrowserKind, process: Box<dyn BrowserProcess>, log: PathBuf) -> Self {
        Self { kind, process, transport: None, codec: MessageCodec::default(), log }
    }

    /// Sets the transport for commands.
    pub(crate) fn connect(&mut self, transport: Box<dyn Transport>) {
        self.transport = Some(transport);
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        // An error counts as ended.
        self.process.has_ended().unwrap_or(true)
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command and waits for its result. An error response is an error.
    pub(crate) fn call(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
        step: Step<'_>,
    ) -> Result<Value, BrowserError> {
        self.request(method, parameters, session, step)?
            .map_err(|reason| self.refused(method, reason, step))
    }

    /// Sends a command and waits for its response, which may be an error.
    pub(crate) fn request(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
        step: Step<'_>,
    ) -> Result<Outcome, BrowserError> {
        let id = self.send(method, parameters, session, step)?;
        loop {
            match self.receive(step).map_err(|error| error.during(method))? {
                Some((response_id, outcome)) if response_id == id => return Ok(outcome),
                // An event, or the response to an abandoned command.
                _ => {}
            }
        }
    }

    /// Sends a command and returns its number. [`Connection::receive`] returns the response.
    pub(crate) fn send(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
        step: Step<'_>,
    ) -> Result<u64, BrowserError> {
        let (id, text) = self.codec.encode(method, parameters, session);
        match transport(&mut self.transport)
            .and_then(|transport| transport.send(&text, step.remaining()))
        {
            Ok(()) => Ok(id),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.timed_out(step)),
            Err(_) => Err(self.exited(step)),
        }
    }

    /// Receives a message. Returns a response, or `None` for an event, which is queued.
    pub(crate) fn receive(
        &mut self,
        step: Step<'_>,
    ) -> Result<Option<(u64, Outcome)>, BrowserError> {
        match transport(&mut self.transport)
            .and_then(|transport| transport.receive(step.remaining()))
        {
            Ok(Some(message)) => self
                .codec
                .parse(&message)
                .map_err(|reason| self.invalid_response(step.name, reason)),
            Ok(None) => Err(self.timed_out(step)),
            Err(_) => Err(self.exited(step)),
        }
    }

    /// Waits for the first event for which `select` returns a value. Drops earlier events.
    pub(crate) fn event<T>(
        &mut self,
        step: Step<'_>,
        mut select: impl FnMut(&Event) -> Option<T>,
    ) -> Result<T, BrowserError> {
        loop {
            while let Some(event) = self.codec.next_event() {
                if let Some(found) = select(&event) {
                    return Ok(found);
                }
            }
            self.receive(step)?;
        }
    }

    /// Returns the next queued event.
    pub(crate) fn queued_event(&mut self) -> Option<Event> {
        self.codec.next_event()
    }

    /// Drops all queued events.
    pub(crate) fn drop_events(&mut self) {
        self.codec.clear();
    }

    /// Waits for the process to end, and kills it after the timeout.
    pub(crate) fn end(&mut self, timeout: Duration) -> io::Result<()> {
        let end = Instant::now() + timeout;
        while !self.process.has_ended()? && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process.kill()
    }

    pub(crate) fn refused(&self, method: &str, reason: String, step: Step<'_>) -> BrowserError {
        let step = format!("{} ({method})", step.name);
        BrowserError::Refused { browser: self.kind, step, reason }
    }

    pub(crate) fn invalid_response(&self, step: &str, reason: impl Into<String>) -> BrowserError {
        BrowserError::InvalidResponse {
            browser: self.kind,
            step: step.to_owned(),
            reason: reason.into(),
        }
    }

    /// Kills a browser that hangs.
    pub(crate) fn timed_out(&mut self, step: Step<'_>) -> BrowserError {
        // A failure to kill cannot be handled.
        let _ = self.process.kill();
        BrowserError::TimedOut {
            browser: self.kind,
            step: step.name.to_owned(),
            command: String::new(),
            timeout: step.timeout,
            log: last_log_line(&self.log),
        }
    }

    pub(crate) fn exited(&mut self, step: Step<'_>) -> BrowserError {
        let _ = self.process.kill();
        BrowserError::Exited {
            browser: self.kind,
            step: step.name.to_owned(),
            log: last_log_line(&self.log),
        }
    }
}

/// Returns the transport, if it is set.
fn transport(
    transport: &mut Option<Box<dyn Transport>>,
) -> io::Result<&mut (dyn Transport + 'static)> {
    transport.as_deref_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The last line of a log, as the end of a sentence.
pub(crate) fn last_log_line(log: &std::path::Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => {
            format!("; its last output was: {}", line.chars().take(200).collect::<String>())
        }
        None => String::new(),
    }
}

/// Encodes and numbers commands. Separates responses from events, which it queues.
#[derive(Debug, Default)]
pub(crate) struct MessageCodec {
    last_id: u64,
    events: VecDeque<Event>,
}

/// An event of the browser.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// The name, such as `Page.loadEventFired`.
    pub method: String,
    /// The parameters.
    pub parameters: Value,
    /// The session of its page (CDP).
    pub session: Option<String>,
}

/// The result in a response, or its error message.
pub(crate) type Outcome = Result<Value, String>;

impl MessageCodec {
    /// Encodes a command. Returns its number and its text.
    pub(crate) fn encode(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
    ) -> (u64, String) {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = session {
            command["sessionId"] = json!(session);
        }
        (self.last_id, command.to_string())
    }

    /// Parses a message. Returns the number and outcome of a response, and queues an event.
    ///
    /// # Errors
    /// If the message is neither.
    pub(crate) fn parse(&mut self, message: &[u8]) -> Result<Option<(u64, Outcome)>, String> {
        let mut message: Value = serde_json::from_slice(message)
            .map_err(|error| format!("a message that is not JSON ({error})"))?;
        if let Some(id) = message["id"].as_u64() {
            return Ok(Some((id, outcome(&mut message))));
        }
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            // The BiDi response to a command that could not be parsed.
            return Err(match message["error"].as_str() {
                Some(error) => format!("{error}: {}", message["message"]),
                None => "a message that is neither a response nor an event".to_owned(),
            });
        };
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            method,
            parameters: message["params"].take(),
            session: message["sessionId"].as_str().map(str::to_owned),
        });
        Ok(None)
    }

    /// Takes the oldest event.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Drops all queued events.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
    }
}

fn outcome(message: &mut Value) -> Outcome {
    match message.get("error") {
        None => Ok(message["result"].take()),
        // BiDi: a code and a message.
        Some(Value::String(code)) => {
            Err(format!("{code}: {}", message["message"].as_str().unwrap_or_default()))
        }
        Some(error) => {
            let text = error["message"].as_str().unwrap_or("an error without a message");
            let extra = error["data"].as_str().map(|data| format!(" ({data})"));
            Err(format!("{text}{}", extra.unwrap_or_default()))
        }
    }
}

/// Limits the memory for the events of a page.
const MAX_EVENTS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_numbered_and_responses_have_their_number() {
        let mut codec = MessageCodec::default();
        let (first, text) = codec.encode("Page.enable", json!({}), Some("S"));
        let sent: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(sent, json!({"id":1,"method":"Page.enable","params":{},"sessionId":"S"}));
        let (second, text) = codec.encode("session.status", json!({}), None);
        assert!(!text.contains("sessionId"));
        assert_eq!((first, second), (1, 2));

        let response = codec.parse(br#"{"id":2,"result":{"ready":true}}"#).unwrap();
        assert_eq!(response, Some((2, Ok(json!({"ready":true})))));
    }

    #[test]
    fn error_responses_of_both_protocols_are_parsed() {
        let mut codec = MessageCodec::default();
        let cdp = br#"{"id":1,"error":{"code":-32601,"message":"'X' wasn't found","data":"so"}}"#;
        let (_, outcome) = codec.parse(cdp).unwrap().unwrap();
        assert_eq!(outcome.unwrap_err(), "'X' wasn't found (so)");
        let bidi = br#"{"type":"error","id":4,"error":"no such frame","message":"gone"}"#;
        let (_, outcome) = codec.parse(bidi).unwrap().unwrap();
        assert_eq!(outcome.unwrap_err(), "no such frame: gone");
    }

    #[test]
    fn events_keep_their_order_and_their_session() {
        let mut codec = MessageCodec::default();
        for name in ["a", "b"] {
            let event = json!({"method": name, "params": {"n": 1}, "sessionId": "S"}).to_string();
            assert_eq!(codec.parse(event.as_bytes()), Ok(None));
        }
        let event = codec.next_event().unwrap();
        assert_eq!((event.method.as_str(), event.session.as_deref()), ("a", Some("S")));
        assert_eq!(codec.next_event().unwrap().method, "b");
        assert_eq!(codec.next_event(), None);
    }

    #[test]
    fn invalid_messages_are_refused_and_events_are_limited() {
        let mut codec = MessageCodec::default();
        for message in
            [&b""[..], b"{", b"[]", b"null", b"{\"id\":-1}", b"\xff\xfe", b"{\"method\":1}"]
        {
            assert!(codec.parse(message).is_err(), "{message:?}");
        }
        for _ in 0..MAX_EVENTS + 10 {
            codec.parse(br#"{"method":"m"}"#).unwrap();
        }
        assert_eq!(codec.events.len(), MAX_EVENTS);
    }
}
