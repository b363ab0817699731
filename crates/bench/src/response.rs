use crate::failure::BadAnswer;
use crate::quic::Frames;
use crate::{Exchange, Transport};

/// A response on its way in: has it started, is it whole, what does it say? Sans-IO; the body is
/// counted and not kept.
#[derive(Debug)]
pub struct Answer {
    form: Form,
    bytes: u64,
}

/// What a whole response said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The HTTP status; `None` for ping-pong.
    pub status: Option<u16>,
    /// Its bytes, head included.
    pub bytes: u64,
}

#[derive(Debug)]
enum Form {
    /// `PONG`, of which so many bytes are here.
    Pong(usize),
    /// The head of an HTTP/1.1 answer, as far as it is here.
    Head(Vec<u8>),
    /// Its body.
    Body { status: u16, left: Option<u64> },
    /// An HTTP/3 answer, which ends with its stream.
    Frames(Frames),
}

impl Answer {
    /// Nothing has come yet.
    pub fn expect(exchange: &Exchange, transport: Transport) -> Self {
        let form = match (exchange, transport) {
            (Exchange::PingPong, _) => Form::Pong(0),
            (Exchange::Get { .. }, Transport::Tcp) => Form::Head(Vec::new()),
            (Exchange::Get { .. }, Transport::Quic) => Form::Frames(Frames::default()),
        };
        Self { form, bytes: 0 }
    }

    /// Takes bytes of the connection, or of the request's stream.
    ///
    /// # Errors
    /// [`BadAnswer`] when they are no response, or more than it promised to be.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BadAnswer> {
        self.bytes += bytes.len() as u64;
        match &mut self.form {
            Form::Pong(here) => {
                let rest = &PONG[*here..];
                if !rest.starts_with(bytes) {
                    return Err(BadAnswer("it is not PONG"));
                }
                *here += bytes.len();
                Ok(())
            }
            Form::Head(kept) => {
                // Nearly always the head comes whole, and is read where it lies.
                let parsed = if kept.is_empty() { head(bytes)? } else { None };
                if parsed.is_none() {
                    kept.extend_from_slice(bytes);
                }
                let (parsed, all) = match parsed {
                    Some(parsed) => (Some(parsed), bytes.len()),
                    None => (head(kept)?, kept.len()),
                };
                match parsed {
                    Some(head) => self.body(head, all),
                    None if kept.len() > MAX_HEAD => Err(BadAnswer("its head is too long")),
                    None => Ok(()),
                }
            }
            Form::Body { left, .. } => take(left, bytes.len() as u64),
            Form::Frames(frames) => frames.feed(bytes),
        }
    }

    /// What it said, if it is whole. `ended`: nothing more will come.
    pub fn whole(&self, ended: bool) -> Option<Answered> {
        let status = match &self.form {
            Form::Pong(here) => (*here == PONG.len()).then_some(None),
            Form::Head(_) => None,
            Form::Body { status, left } => {
                (left.map_or(ended, |left| left == 0)).then_some(Some(*status))
            }
            Form::Frames(frames) => frames.status().filter(|_| ended).map(Some),
        }?;
        Some(Answered { status, bytes: self.bytes })
    }

    /// Whether any byte has come.
    pub fn begun(&self) -> bool {
        self.bytes > 0
    }

    /// The head is whole; what followed it in its `all` bytes is body.
    fn body(&mut self, head: Head, all: usize) -> Result<(), BadAnswer> {
        let after = (all - head.length) as u64;
        let Head { status, mut left, .. } = head;
        take(&mut left, after)?;
        self.form = Form::Body { status, left };
        Ok(())
    }
}

const PONG: &[u8] = b"PONG";

/// A head beyond this is no response but an attack on memory and time.
const MAX_HEAD: usize = 16 * 1024;
const MAX_FIELDS: usize = 128;

struct Head {
    status: u16,
    /// Bytes of the body where the head says so; without, it ends with the connection
    /// (RFC 9112 section 6.3). A chunked body is taken to its end like that too: the request asks
    /// for the connection to be closed.
    left: Option<u64>,
    /// Of the head itself.
    length: usize,
}

fn head(bytes: &[u8]) -> Result<Option<Head>, BadAnswer> {
    let mut start = 0;
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(&bytes[start..]).map_err(|_| BadAnswer("it is no HTTP/1.1"))?;
        let httparse::Status::Complete(length) = parsed else { return Ok(None) };
        let status = response.code.unwrap_or_default();
        start += length;
        // Informational answers come before the real one (RFC 9110 section 15.2).
        if (100..200).contains(&status) {
            continue;
        }
        let left = body_length(status, response.headers)?;
        return Ok(Some(Head { status, left, length: start }));
    }
}

fn body_length(status: u16, fields: &[httparse::Header<'_>]) -> Result<Option<u64>, BadAnswer> {
    if status == 204 || status == 304 {
        return Ok(Some(0));
    }
    let named =
        |name: &'static str| fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name));
    if named("transfer-encoding").next().is_some() {
        return Ok(None);
    }
    let mut lengths = named("content-length").map(|field| {
        let text = std::str::from_utf8(field.value).unwrap_or_default().trim();
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u64>()
            .ok()
            .filter(|_| digits)
            .ok_or(BadAnswer("its Content-Length is no number"))
    });
    let Some(first) = lengths.next().transpose()? else { return Ok(None) };
    for other in lengths {
        if other? != first {
            return Err(BadAnswer("it has two lengths"));
        }
    }
    Ok(Some(first))
}

fn take(left: &mut Option<u64>, count: u64) -> Result<(), BadAnswer> {
    if let Some(left) = left {
        *left = left.checked_sub(count).ok_or(BadAnswer("it is longer than it said"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get() -> Answer {
        Answer::expect(&Exchange::get("h", "/"), Transport::Tcp)
    }

    fn fed(response: &mut Answer, text: &str) -> Result<(), BadAnswer> {
        response.feed(text.as_bytes())
    }

    #[test]
    fn pong_is_whole_at_its_fourth_byte() {
        let mut response = Answer::expect(&Exchange::PingPong, Transport::Tcp);
        assert!(!response.begun());
        fed(&mut response, "PO").unwrap();
        assert!(response.begun() && response.whole(true).is_none());
        fed(&mut response, "NG").unwrap();
        assert_eq!(response.whole(false), Some(Answered { status: None, bytes: 4 }));
        assert!(fed(&mut response, "!").is_err());
        assert!(
            fed(&mut Answer::expect(&Exchange::PingPong, Transport::Tcp), "HTTP/1.1 400").is_err()
        );
    }

    #[test]
    fn rfc9112_6_3_a_body_ends_by_its_length_or_with_the_connection() {
        let mut response = get();
        fed(&mut response, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel").unwrap();
        assert_eq!(response.whole(true), None);
        fed(&mut response, "lo").unwrap();
        assert_eq!(response.whole(false).unwrap().status, Some(200));
        assert!(fed(&mut response, "!").is_err());

        let mut response = get();
        fed(&mut response, "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n0")
            .unwrap();
        assert_eq!(response.whole(false), None);
        assert_eq!(response.whole(true).unwrap().status, Some(404));

        let mut response = get();
        fed(&mut response, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").unwrap();
        assert_eq!(response.whole(false).unwrap().status, Some(304));
    }

    #[test]
    fn rfc9110_15_2_informational_answers_are_passed_over() {
        let mut response = get();
        fed(&mut response, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").unwrap();
        assert_eq!(response.whole(true), None);
        fed(&mut response, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        assert_eq!(response.whole(false).unwrap().status, Some(200));
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let mut response = get();
        fed(&mut response, "HTTP/1.1 200 OK\r\nX: ").unwrap();
        let more = "x".repeat(1024);
        assert!((0..100).any(|_| fed(&mut response, &more).is_err()));
    }

    #[test]
    fn lengths_that_are_none_are_refused() {
        for length in ["+5", "-1", "5, 6", "", "99999999999999999999"] {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            assert!(fed(&mut get(), &text).is_err(), "{length}");
        }
        let two = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
        assert!(fed(&mut get(), two).is_err());
    }

    proptest! {
        #[test]
        fn how_it_is_cut_makes_no_difference(cuts in proptest::collection::vec(1usize..40, 1..20)) {
            let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nServer: s\r\n\
                        Content-Length: 26\r\n\r\nabcdefghijklmnopqrstuvwxyz";
            let (mut response, mut rest) = (get(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                prop_assert_eq!(response.whole(false), None);
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                response.feed(now).unwrap();
                rest = later;
            }
            let bytes = text.len() as u64;
            prop_assert_eq!(response.whole(false), Some(Answered { status: Some(200), bytes }));
        }
    }
}
