use firstflight_units::{printable, printable_json};
use http::Version;
use serde_json::{Map, Value as Json};

use crate::Report;

/// A parsed format in the form of curl's `-w`.
///
/// `%{name}` stands for a variable, `%header{name}` for a header field of the response, `%%` for a
/// percent sign, `\n`, `\r` and `\t` for themselves; `%{stdout}` and `%{stderr}` switch between the
/// two, `%{onerror}` ends the output if the transfer succeeded, `%{json}` and `%{header_json}`
/// stand for everything. Control characters in values are escaped.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Variable(String),
    Header(String),
}

/// Where a piece is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of a template's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it is written.
    pub output: Output,
    /// The text.
    pub text: String,
}

/// A variable's value before formatting.
enum Value {
    Text(String),
    Number(i64),
    /// With six decimals, as curl prints times.
    Seconds(f64),
    /// With one decimal.
    Tenths(f64),
    Code(u16),
    Absent,
}

impl Template {
    /// Parses a format. There are no errors: unrecognised text is printed verbatim, as with curl.
    pub fn parse(format: &str) -> Self {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = format;
        while let Some(first) = rest.chars().next() {
            let (literal, part, used) = match first {
                '\\' => escape(rest),
                '%' => percent(rest),
                other => (Some(other.to_string()), None, other.len_utf8()),
            };
            text.push_str(literal.as_deref().unwrap_or_default());
            if let Some(part) = part {
                parts.push(Part::Text(std::mem::take(&mut text)));
                parts.push(part);
            }
            rest = &rest[used..];
        }
        parts.push(Part::Text(text));
        parts.retain(|part| *part != Part::Text(String::new()));
        Self(parts)
    }

    /// Returns the names of unknown variables, which expand to nothing.
    pub fn unknown(&self) -> Vec<&str> {
        let known = |name: &str| SWITCHES.contains(&name) || VARIABLES.iter().any(|v| v.0 == name);
        self.0
            .iter()
            .filter_map(|part| match part {
                Part::Variable(name) if !known(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Renders the template for a transfer.
    pub fn render(&self, report: &Report) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut output = Output::Stdout;
        for part in &self.0 {
            let text = match part {
                Part::Text(text) => text.clone(),
                Part::Header(name) => printable(&header(report, name)).into_owned(),
                Part::Variable(name) => match name.as_str() {
                    "stdout" => {
                        output = Output::Stdout;
                        continue;
                    }
                    "stderr" => {
                        output = Output::Stderr;
                        continue;
                    }
                    "onerror" if report.error.is_none() => break,
                    "json" => json(report),
                    "header_json" => header_json(report),
                    name => value(name, report).map_or_else(String::new, Value::into_text),
                },
            };
            match pieces.last_mut() {
                Some(last) if last.output == output => last.text.push_str(&text),
                _ => pieces.push(Piece { output, text }),
            }
        }
        pieces
    }

    /// Returns all variables with their descriptions, for the help text.
    pub fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
        VARIABLES.iter().map(|(name, about, _)| (*name, *about))
    }
}

/// Parses a backslash escape. Returns literal text, a part, and the number of bytes consumed.
fn escape(rest: &str) -> (Option<String>, Option<Part>, usize) {
    let literal = match rest.as_bytes().get(1) {
        Some(b'n') => "\n",
        Some(b'r') => "\r",
        Some(b't') => "\t",
        _ => return (Some("\\".to_owned()), None, 1),
    };
    (Some(literal.to_owned()), None, 2)
}

/// As [`escape`], for `%%`, `%{name}` and `%header{name}`.
fn percent(rest: &str) -> (Option<String>, Option<Part>, usize) {
    if rest.starts_with("%%") {
        return (Some("%".to_owned()), None, 2);
    }
    for (opening, make) in
        [("%{", Part::Variable as fn(String) -> Part), ("%header{", Part::Header)]
    {
        if let Some(inner) = rest.strip_prefix(opening)
            && let Some((name, _)) = inner.split_once('}')
        {
            return (None, Some(make(name.to_owned())), opening.len() + name.len() + 1);
        }
    }
    (Some("%".to_owned()), None, 1)
}

const SWITCHES: [&str; 5] = ["stdout", "stderr", "onerror", "json", "header_json"];

type Getter = fn(&Report) -> Value;

/// curl's variables first, in its order, then those of this program.
const VARIABLES: &[(&str, &str, Getter)] = &[
    ("content_type", "Content-Type of the response", |r| {
        text(Some(header(r, "content-type")).filter(|value| !value.is_empty()))
    }),
    ("errormsg", "what went wrong", |r| text(r.error.as_ref().map(ToString::to_string))),
    ("exitcode", "the exit code", |r| Value::Number(r.exit_code().into())),
    ("filename_effective", "the file that was written", |r| text(r.file_name.clone())),
    ("http_code", "the status, 000 without one", |r| Value::Code(r.status())),
    ("http_version", "1.1, 2, 3, or 0 without a response", |r| {
        Value::Text(http_version(r).to_owned())
    }),
    ("local_ip", "our address", |r| text(r.local.map(|a| a.ip().to_string()))),
    ("local_port", "our port", |r| Value::Number(r.local.map_or(0, |a| a.port().into()))),
    ("method", "the method of the last request", |r| Value::Text(r.method.clone())),
    ("num_connects", "connections made", |r| Value::Number(r.num_connects.into())),
    ("num_headers", "header fields of the response", |r| {
        Value::Number(r.head.as_ref().map_or(0, |head| head.headers.len() as i64))
    }),
    ("num_redirects", "redirections followed", |r| Value::Number(r.num_redirects.into())),
    ("num_retries", "the same as retries", |r| Value::Number(r.retries.into())),
    ("redirect_url", "where a redirection that was not followed leads", |r| {
        text(r.redirect_url.clone())
    }),
    ("remote_ip", "the server's address", |r| text(r.peer.map(|a| a.ip().to_string()))),
    ("remote_port", "the server's port", |r| Value::Number(r.peer.map_or(0, |a| a.port().into()))),
    ("response_code", "the same as http_code", |r| Value::Code(r.status())),
    ("scheme", "https or http", |r| Value::Text(r.scheme.to_owned())),
    ("size_download", "bytes of body received", |r| Value::Number(r.size_download as i64)),
    ("size_header", "bytes of heads received", |r| Value::Number(r.size_header as i64)),
    ("size_request", "bytes of heads sent", |r| Value::Number(r.size_request as i64)),
    ("size_upload", "bytes of body sent", |r| Value::Number(r.size_upload as i64)),
    ("speed_download", "bytes of body received a second", |r| speed(r, r.size_download)),
    ("speed_upload", "bytes of body sent a second", |r| speed(r, r.size_upload)),
    ("ssl_verify_result", "0: the certificate was accepted (or -k was set); 1: it was not", |r| {
        Value::Number((r.exit_code() == 60).into())
    }),
    (
        "time_appconnect",
        "seconds until the TLS handshake was complete, also with early data",
        |r| Value::Seconds(r.timings().appconnect),
    ),
    ("time_connect", "seconds until TCP was connected, or QUIC's handshake complete", |r| {
        Value::Seconds(r.timings().connect)
    }),
    ("time_namelookup", "seconds until the name was resolved", |r| {
        Value::Seconds(r.timings().namelookup)
    }),
    ("time_pretransfer", "seconds until the request was sent", |r| {
        Value::Seconds(r.timings().pretransfer)
    }),
    ("time_redirect", "seconds spent on redirections before the last request", |r| {
        Value::Seconds(r.redirect_time)
    }),
    ("time_starttransfer", "seconds until the first byte of the response", |r| {
        Value::Seconds(r.timings().starttransfer)
    }),
    ("time_total", "seconds until the end", |r| Value::Seconds(r.timings().total)),
    ("tls_earlydata", "bytes of early data; negative if refused", |r| {
        let bytes = r.early_bytes as i64;
        Value::Number(if r.early_data() == "refused" { -bytes } else { bytes })
    }),
    ("url", "the URL of the command line", |r| Value::Text(r.url.clone())),
    ("url_effective", "the URL of the last request", |r| Value::Text(r.url_effective.clone())),
    ("early_bytes", "own: bytes sent as early data", |r| Value::Number(r.early_bytes as i64)),
    ("early_data", "own: none, accepted or refused", |r| Value::Text(r.early_data().to_owned())),
    ("early_data_reason", "own: why, or why none was offered", |r| {
        text(r.early_data_reason().map(str::to_owned))
    }),
    ("quic_rtt", "own: QUIC's smoothed RTT in seconds", |r| {
        Value::Seconds(r.quic.map_or(0.0, |quic| quic.rtt.as_secs_f64()))
    }),
    ("quic_token", "own: 1 if an address token was sent along", |r| {
        Value::Number(r.quic.is_some_and(|quic| quic.token_sent).into())
    }),
    ("quic_tokens", "own: new address tokens received", |r| Value::Number(r.tokens as i64)),
    ("retries", "own: requests sent again (425, or a new connection without early data)", |r| {
        Value::Number(r.retries.into())
    }),
    (
        "round_trips",
        "own: time from connecting to the first byte, in units of the minimum RTT measured",
        |r| r.round_trips().map_or(Value::Absent, Value::Tenths),
    ),
    ("tcp_fastopen", "own: 1 if the kernel says that data in the SYN was acknowledged", |r| {
        Value::Number(r.tcp.is_some_and(|tcp| tcp.syn_data).into())
    }),
    ("tcp_rtt", "own: the kernel's smoothed RTT in seconds", |r| {
        Value::Seconds(r.tcp.map_or(0.0, |tcp| tcp.rtt.as_secs_f64()))
    }),
    ("tls_cipher", "own: the cipher suite", |r| {
        text(r.facts.as_ref().and_then(|facts| facts.cipher).map(str::to_owned))
    }),
    ("tls_group", "own: the group of the key exchange", |r| {
        text(r.facts.as_ref().and_then(|facts| facts.group).map(str::to_owned))
    }),
    ("tls_resumed", "own: 1 if a session was resumed", |r| {
        Value::Number(r.facts.as_ref().is_some_and(|facts| facts.resumed).into())
    }),
    ("tls_sessions", "own: new sessions received", |r| Value::Number(r.sessions as i64)),
    ("tls_version", "own: the version of TLS", |r| {
        let version = r.facts.as_ref().and_then(|facts| facts.version);
        text(version.map(|version| version.name().to_owned()))
    }),
];

fn value(name: &str, report: &Report) -> Option<Value> {
    VARIABLES.iter().find(|variable| variable.0 == name).map(|variable| variable.2(report))
}

fn text(value: Option<String>) -> Value {
    value.map_or(Value::Absent, Value::Text)
}

fn speed(report: &Report, size: u64) -> Value {
    let total = report.timings().total;
    Value::Number(if total > 0.0 { (size as f64 / total) as i64 } else { 0 })
}

fn http_version(report: &Report) -> &'static str {
    match report.head.as_ref().map(|head| head.version) {
        Some(Version::HTTP_3) => "3",
        Some(Version::HTTP_2) => "2",
        Some(Version::HTTP_11) => "1.1",
        Some(Version::HTTP_10) => "1.0",
        _ => "0",
    }
}

fn header(report: &Report, name: &str) -> String {
    let value = report.head.as_ref().and_then(|head| head.headers.get(name));
    value.map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn json(report: &Report) -> String {
    let all: Map<String, Json> = VARIABLES
        .iter()
        .map(|(name, _, get)| ((*name).to_owned(), get(report).into_json()))
        .collect();
    printable_json(&Json::Object(all).to_string()).into_owned()
}

fn header_json(report: &Report) -> String {
    let mut all: Map<String, Json> = Map::new();
    for (name, value) in report.head.iter().flat_map(|head| &head.headers) {
        let values = all.entry(name.as_str()).or_insert_with(|| Json::Array(Vec::new()));
        if let Json::Array(values) = values {
            values.push(String::from_utf8_lossy(value.as_bytes()).into());
        }
    }
    printable_json(&Json::Object(all).to_string()).into_owned()
}

impl Value {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => printable(&text).into_owned(),
            Self::Number(number) => number.to_string(),
            Self::Seconds(seconds) => format!("{seconds:.6}"),
            Self::Tenths(number) => format!("{number:.1}"),
            Self::Code(code) => format!("{code:03}"),
            Self::Absent => String::new(),
        }
    }

    fn into_json(self) -> Json {
        match self {
            Self::Text(text) => text.into(),
            Self::Number(number) => number.into(),
            Self::Seconds(seconds) => ((seconds * 1e6).round() / 1e6).into(),
            Self::Tenths(number) => ((number * 10.0).round() / 10.0).into(),
            Self::Code(code) => code.into(),
            Self::Absent => Json::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{ClientError, Request, Target};

    fn report() -> Report {
        let request = Request::get(Target::parse("https://a.test/x").unwrap());
        let mut report = Report::new(&request);
        report.marks.end = Some(report.marks.start + Duration::from_micros(1_500_001));
        report.size_download = 3000;
        report
    }

    fn render(format: &str, report: &Report) -> Vec<(Output, String)> {
        let pieces = Template::parse(format).render(report);
        pieces.into_iter().map(|piece| (piece.output, piece.text)).collect()
    }

    fn stdout(format: &str) -> String {
        render(format, &report()).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn variables_are_written_as_curl_writes_them() {
        assert_eq!(stdout(r"%{http_code}\t%{time_total}\n"), "000\t1.500001\n");
        assert_eq!(stdout("%{speed_download} %{size_download}%%"), "1999 3000%");
        assert_eq!(stdout("%{url_effective}|%{method}|%{scheme}"), "https://a.test/x|GET|https");
        assert_eq!(stdout("%{tls_resumed}%{early_data}%{remote_ip}%{http_version}"), "0none0");
    }

    #[test]
    fn unrecognised_text_is_printed_verbatim() {
        assert_eq!(stdout(r"100% \x %{unclosed \"), r"100% \x %{unclosed \");
        let template = Template::parse("%{nonsense}%{http_code}%{stderr}");
        assert_eq!(template.unknown(), ["nonsense"]);
        assert_eq!(stdout("[%{nonsense}]"), "[]");
    }

    #[test]
    fn output_switches_between_streams_and_onerror_ends_it() {
        let mut report = report();
        assert_eq!(
            render("a%{stderr}b%{stdout}c%{onerror}d", &report),
            [
                (Output::Stdout, "a".into()),
                (Output::Stderr, "b".into()),
                (Output::Stdout, "c".into())
            ]
        );
        report.error = Some(ClientError::EmptyReply);
        let pieces = render("%{onerror}%{exitcode} %{errormsg}", &report);
        assert_eq!(pieces[0].1, "52 the server closed the connection without a response");
    }

    #[test]
    fn json_has_every_variable() {
        let all: Json = serde_json::from_str(&stdout("%{json}")).unwrap();
        for (name, _) in Template::variables() {
            assert!(all.get(name).is_some(), "{name}");
        }
        assert_eq!(all["time_total"], 1.500001);
        assert!(all["tls_version"].is_null());
    }

    #[test]
    fn control_characters_from_a_server_are_escaped() {
        let mut report = report();
        let mut headers = http::HeaderMap::new();
        let value = |text: &str| http::HeaderValue::from_bytes(text.as_bytes()).unwrap();
        headers.insert("content-type", value("a\u{9b}2J\tb"));
        report.head = Some(crate::Head {
            version: Version::HTTP_11,
            status: http::StatusCode::OK,
            headers,
            raw: Vec::new(),
        });
        report.error = Some(ClientError::Http3("\x1b]0;x\x07\n::error::".to_owned()));
        for format in ["%{content_type}", "%header{content-type}"] {
            assert_eq!(render(format, &report)[0].1, r"a\u{9b}2J\tb");
        }
        assert!(render("%{errormsg}", &report)[0].1.ends_with(r"\u{1b}]0;x\u{7}\n::error::"));
        for (format, pointer) in
            [("%{json}", "/content_type"), ("%{header_json}", "/content-type/0")]
        {
            let json = &render(format, &report)[0].1;
            assert!(!json.contains(char::is_control), "{json:?}");
            let json: Json = serde_json::from_str(json).unwrap();
            assert_eq!(json.pointer(pointer).unwrap(), "a\u{9b}2J\tb");
        }
    }

    proptest! {
        #[test]
        fn any_format_is_accepted(format in any::<String>()) {
            let report = report();
            Template::parse(&format).render(&report);
        }

        #[test]
        fn text_without_escapes_is_kept(format in "[^%\\\\]*") {
            prop_assert_eq!(stdout(&format), format);
        }
    }
}
