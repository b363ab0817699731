//! Spans, and the trace context of a request (W3C Trace Context, level 1).

use std::borrow::Cow;
use std::fmt;
use std::time::SystemTime;

/// A finished span.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// The id of the span.
    pub id: SpanId,
    /// The parent span.
    pub parent: Option<SpanId>,
    /// The operation, one of few names: `GET`, `tls.handshake`.
    pub name: Cow<'static, str>,
    /// The kind.
    pub kind: SpanKind,
    /// The start.
    pub started: SystemTime,
    /// The end.
    pub ended: SystemTime,
    /// Attributes, with the names of OpenTelemetry's semantic conventions where these have one.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// The status.
    pub status: SpanStatus,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work of this server for a client.
    Server,
    /// A request from this server to another one.
    Client,
    /// Internal work of this server.
    Internal,
}

/// The status of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanStatus {
    /// Successful, or failed because of the client.
    #[default]
    Unset,
    /// Failed because of this server.
    Error,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// Text.
    Text(Cow<'static, str>),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
}

impl Span {
    /// Creates a span for a part of the work on a request, from `started` to `ended`.
    pub fn part(
        context: &TraceContext,
        name: &'static str,
        (started, ended): (SystemTime, SystemTime),
    ) -> Self {
        Self {
            trace: context.trace,
            id: SpanId::random(),
            parent: Some(context.span),
            name: name.into(),
            kind: SpanKind::Internal,
            started,
            ended,
            attributes: Vec::new(),
            status: SpanStatus::Unset,
        }
    }

    /// Adds an attribute.
    pub fn with(mut self, name: &'static str, value: impl Into<AttributeValue>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// The id of a trace, 16 bytes, not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub(crate) [u8; 16]);

/// The id of a span in its trace, 8 bytes, not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub(crate) [u8; 8]);

/// The trace context of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The request's own span.
    pub span: SpanId,
    /// The caller's span, if the trace came from one.
    pub parent: Option<SpanId>,
    /// Whether spans are exported.
    pub sampled: bool,
}

impl TraceContext {
    /// Starts a trace. A share `sampled` (0 to 1) of traces is sampled.
    pub fn new_root(sampled: f64) -> Self {
        let trace = TraceId(random());
        Self { trace, span: SpanId::random(), parent: None, sampled: trace.is_sampled(sampled) }
    }

    /// Continues the trace of a `traceparent` field (W3C Trace Context section 3.2). The caller
    /// decides whether it is sampled. Returns `None` if the field is invalid.
    pub fn from_traceparent(field: &str) -> Option<Self> {
        let mut parts = field.trim().split('-');
        let version = byte(parts.next()?)?;
        let trace = bytes::<16>(parts.next()?)?;
        let parent = bytes::<8>(parts.next()?)?;
        let flags = byte(parts.next()?)?;
        // Later versions may append fields (section 3.2.2); this one may not.
        let fits = match version {
            0 => parts.next().is_none(),
            0xff => false,
            _ => true,
        };
        let is_zero = trace == [0; 16] || parent == [0; 8];
        (fits && !is_zero).then(|| Self {
            trace: TraceId(trace),
            span: SpanId::random(),
            parent: Some(SpanId(parent)),
            sampled: flags & SAMPLED != 0,
        })
    }

    /// Returns the `traceparent` field of a request that is sent within `span`.
    pub fn traceparent(&self, span: SpanId) -> String {
        let flags = if self.sampled { SAMPLED } else { 0 };
        format!("00-{}-{span}-{flags:02x}", self.trace)
    }
}

impl TraceId {
    /// The decision depends on the id only, so it is the same on every node.
    fn is_sampled(self, share: f64) -> bool {
        let low = u64::from_be_bytes(self.0[8..].try_into().expect("8 of 16 bytes"));
        // A double represents 53 bits exactly.
        ((low >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

impl SpanId {
    /// Generates a random id.
    pub fn random() -> Self {
        Self(random())
    }
}

/// Random bytes that are not all zero. Ids are not secret, so the thread's generator is sufficient.
fn random<const N: usize>() -> [u8; N]
where
    rand::distr::StandardUniform: rand::distr::Distribution<[u8; N]>,
{
    loop {
        let bytes: [u8; N] = rand::random();
        if bytes != [0; N] {
            return bytes;
        }
    }
}

fn byte(text: &str) -> Option<u8> {
    bytes::<1>(text).map(|bytes| bytes[0])
}

/// Exactly `N` bytes in lower-case hexadecimal, as the standard requires.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// W3C Trace Context section 3.2.2.5.1.
const SAMPLED: u8 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn w3c_3_2_a_valid_traceparent_is_continued() {
        let context = TraceContext::from_traceparent(PARENT).unwrap();
        assert_eq!(context.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.parent.unwrap().to_string(), "b7ad6b7169203331");
        assert!(context.sampled);
        assert_ne!(Some(context.span), context.parent);
        let sent = context.traceparent(context.span);
        let next = TraceContext::from_traceparent(&sent).unwrap();
        assert_eq!((next.trace, next.parent), (context.trace, Some(context.span)));
    }

    #[test]
    fn w3c_3_2_2_invalid_traceparents_are_ignored() {
        let zero_trace = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let zero_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let upper = PARENT.to_uppercase();
        let longer = format!("{PARENT}-00");
        let forbidden = PARENT.replacen("00", "ff", 1);
        for field in ["", "00", "00-", zero_trace, zero_span, &upper, &longer, &forbidden, "é-1"] {
            assert_eq!(TraceContext::from_traceparent(field), None, "{field}");
        }
        // A later version is parsed like this one.
        assert!(TraceContext::from_traceparent(&longer.replacen("00", "cc", 1)).is_some());
    }

    #[test]
    fn the_sampled_share_is_the_configured_one() {
        assert!((0..1000).all(|_| TraceContext::new_root(1.0).sampled));
        assert!((0..1000).all(|_| !TraceContext::new_root(0.0).sampled));
        let sampled = (0..20_000).filter(|_| TraceContext::new_root(0.25).sampled).count();
        // Ten standard deviations.
        assert!((4_390..=5_610).contains(&sampled), "{sampled} of 20,000");
    }

    proptest! {
        #[test]
        fn no_field_panics_and_each_parsed_one_can_be_written(field in "[0-9a-f-]{0,60}|.{0,40}") {
            if let Some(context) = TraceContext::from_traceparent(&field) {
                prop_assert!(TraceContext::from_traceparent(&context.traceparent(context.span)).is_some());
            }
        }
    }
}
