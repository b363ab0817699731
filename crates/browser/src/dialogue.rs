//! Commands, answers and events as both protocols have them: JSON objects, numbered. No I/O here.
//!
//! - Chrome DevTools Protocol: `{id, method, params, sessionId?}`, answered by `{id, result}` or
//!   `{id, error: {code, message}}`; events are `{method, params, sessionId?}`.
//! - WebDriver BiDi: the same, with `type`, and `{id, error, message}` for an error.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// Numbers commands, and sorts what comes back.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    last: u64,
    events: VecDeque<Event>,
}

/// Something that the browser tells by itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Such as `Page.loadEventFired`.
    pub method: String,
    /// What belongs to it.
    pub parameters: Value,
    /// The page that it is about (CDP).
    pub session: Option<String>,
}

/// What a response says.
pub(crate) type Outcome = Result<Value, String>;

impl CommandQueue {
    /// The next command's number and its bytes.
    pub(crate) fn command(
        &mut self,
        method: &str,
        parameters: Value,
        session: Option<&str>,
    ) -> (u64, String) {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = session {
            command["sessionId"] = json!(session);
        }
        (self.last, command.to_string())
    }

    /// Takes a message: gives the number and outcome of a response, keeps an event.
    ///
    /// # Errors
    /// If it is neither.
    pub(crate) fn hear(&mut self, message: &[u8]) -> Result<Option<(u64, Outcome)>, String> {
        let mut message: Value = serde_json::from_slice(message)
            .map_err(|error| format!("a message that is no JSON ({error})"))?;
        if let Some(id) = message["id"].as_u64() {
            return Ok(Some((id, outcome(&mut message))));
        }
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            // BiDi answers so to a command that it could not read.
            return Err(match message["error"].as_str() {
                Some(error) => format!("{error}: {}", message["message"]),
                None => "a message that is neither an answer nor an event".to_owned(),
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

    /// The oldest event that has not been taken.
    pub(crate) fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Drops events of what is over.
    pub(crate) fn forget(&mut self) {
        self.events.clear();
    }
}

fn outcome(message: &mut Value) -> Outcome {
    match message.get("error") {
        None => Ok(message["result"].take()),
        // BiDi: a code, and a message that says more.
        Some(Value::String(code)) => {
            Err(format!("{code}: {}", message["message"].as_str().unwrap_or_default()))
        }
        Some(error) => {
            let text = error["message"].as_str().unwrap_or("an error without words");
            let more = error["data"].as_str().map(|data| format!(" ({data})"));
            Err(format!("{text}{}", more.unwrap_or_default()))
        }
    }
}

/// Nobody waits for that many; a page that makes more of them does not fill our memory.
const MAX_EVENTS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_numbered_and_answers_find_them() {
        let mut dialogue = CommandQueue::default();
        let (first, text) = dialogue.command("Page.enable", json!({}), Some("S"));
        let sent: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(sent, json!({"id":1,"method":"Page.enable","params":{},"sessionId":"S"}));
        let (second, text) = dialogue.command("session.status", json!({}), None);
        assert!(!text.contains("sessionId"));
        assert_eq!((first, second), (1, 2));

        let heard = dialogue.hear(br#"{"id":2,"result":{"ready":true}}"#).unwrap();
        assert_eq!(heard, Some((2, Ok(json!({"ready":true})))));
    }

    #[test]
    fn both_protocols_say_why_they_refuse() {
        let mut dialogue = CommandQueue::default();
        let cdp = br#"{"id":1,"error":{"code":-32601,"message":"'X' wasn't found","data":"so"}}"#;
        let (_, outcome) = dialogue.hear(cdp).unwrap().unwrap();
        assert_eq!(outcome.unwrap_err(), "'X' wasn't found (so)");
        let bidi = br#"{"type":"error","id":4,"error":"no such frame","message":"gone"}"#;
        let (_, outcome) = dialogue.hear(bidi).unwrap().unwrap();
        assert_eq!(outcome.unwrap_err(), "no such frame: gone");
    }

    #[test]
    fn events_keep_their_order_and_their_page() {
        let mut dialogue = CommandQueue::default();
        for name in ["a", "b"] {
            let event = json!({"method": name, "params": {"n": 1}, "sessionId": "S"}).to_string();
            assert_eq!(dialogue.hear(event.as_bytes()), Ok(None));
        }
        let event = dialogue.event().unwrap();
        assert_eq!((event.method.as_str(), event.session.as_deref()), ("a", Some("S")));
        assert_eq!(dialogue.event().unwrap().method, "b");
        assert_eq!(dialogue.event(), None);
    }

    #[test]
    fn foreign_bytes_are_refused_and_do_not_pile_up() {
        let mut dialogue = CommandQueue::default();
        for message in
            [&b""[..], b"{", b"[]", b"null", b"{\"id\":-1}", b"\xff\xfe", b"{\"method\":1}"]
        {
            assert!(dialogue.hear(message).is_err(), "{message:?}");
        }
        for _ in 0..MAX_EVENTS + 10 {
            dialogue.hear(br#"{"method":"m"}"#).unwrap();
        }
        assert_eq!(dialogue.events.len(), MAX_EVENTS);
    }
}
