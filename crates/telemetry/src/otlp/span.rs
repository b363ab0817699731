//! What happened to a request, and when.

use std::borrow::Cow;
use std::time::SystemTime;

use crate::otlp::{SpanId, TraceContext, TraceId};

/// A finished span.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Itself.
    pub id: SpanId,
    /// The span that it is part of.
    pub parent: Option<SpanId>,
    /// What was done, of few kinds: `GET`, `tls.handshake`.
    pub name: Cow<'static, str>,
    /// Whose work it was.
    pub kind: SpanKind,
    /// From when.
    pub began: SystemTime,
    /// Until when.
    pub ended: SystemTime,
    /// What there is to know, named as OpenTelemetry's semantic conventions do where these have
    /// a name.
    pub attributes: Vec<(&'static str, Value)>,
    /// How it ended.
    pub status: SpanStatus,
}

/// Whose work a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// This server's, for a client.
    Server,
    /// Another server's, asked by this one.
    Client,
    /// This server's, for itself.
    Internal,
}

/// How a span ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanStatus {
    /// As it should, or that is the client's affair.
    #[default]
    Unset,
    /// By this side's fault.
    Error,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A whole number.
    Whole(i64),
    /// Yes or no.
    Flag(bool),
}

impl Span {
    /// A part of the work on a request, from `began` to `ended`.
    pub fn part(
        context: &TraceContext,
        name: &'static str,
        (began, ended): (SystemTime, SystemTime),
    ) -> Self {
        Self {
            trace: context.trace,
            id: SpanId::random(),
            parent: Some(context.span),
            name: name.into(),
            kind: SpanKind::Internal,
            began,
            ended,
            attributes: Vec::new(),
            status: SpanStatus::Unset,
        }
    }

    /// The same with one more attribute.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}
