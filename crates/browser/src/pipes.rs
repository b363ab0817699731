//! Messages over a pair of pipes, each ended by a zero byte (`--remote-debugging-pipe`).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::line::Wire;

/// The pipes of a browser.
pub(crate) struct Pipes {
    commands: Box<dyn Write + Send>,
    messages: Receiver<Vec<u8>>,
}

impl Pipes {
    /// Reads on a thread of its own, which ends with the browser.
    pub(crate) fn new(
        commands: Box<dyn Write + Send>,
        responses: Box<dyn Read + Send>,
    ) -> io::Result<Self> {
        let (sender, messages) = channel();
        thread::Builder::new().name("chromium's answers".to_owned()).spawn(move || {
            let mut responses = BufReader::new(responses);
            while let Ok(Some(message)) = next(&mut responses) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { commands, messages })
    }
}

impl Wire for Pipes {
    fn send(&mut self, message: &str) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(message.len() + 1);
        bytes.extend_from_slice(message.as_bytes());
        bytes.push(0);
        self.commands.write_all(&bytes)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        match self.messages.recv_timeout(patience) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The next whole message; `None` at the end, and one that was cut off is none.
fn next(responses: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    responses.take(MAX_MESSAGE_BYTES).read_until(0, &mut message)?;
    Ok((message.pop() == Some(0)).then_some(message))
}

/// More than any picture of a page.
const MAX_MESSAGE_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_a_zero() {
        let mut bytes = &b"{\"id\":1}\0\0{}\0{\"cut"[..];
        let mut all = Vec::new();
        while let Some(message) = next(&mut bytes).unwrap() {
            all.push(String::from_utf8(message).unwrap());
        }
        assert_eq!(all, ["{\"id\":1}", "", "{}"]);
    }
}
