//! Notes which bytes of a stream say what, record by record.

use std::ops::Range;

use crate::event::Event;
use crate::record::Record;

/// An event, and the bytes of its direction's stream that say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    pub(crate) span: Range<usize>,
    pub(crate) event: Event,
}

/// What a stream says so far.
#[derive(Debug, Default)]
pub(crate) struct StreamEvents {
    pub(crate) all: Vec<StreamEvent>,
    /// How much had been said when the current record started.
    mark: usize,
    current: Current,
}

/// The current record.
#[derive(Debug, Default)]
enum Current {
    /// Nobody said what it is.
    #[default]
    Unread,
    /// It is this as a whole.
    Whole(Event),
    /// It holds messages, or parts of them.
    Messages,
}

impl StreamEvents {
    pub(crate) fn begin(&mut self) {
        self.mark = self.all.len();
        self.current = Current::Unread;
    }

    /// The current record is this as a whole.
    pub(crate) fn record(&mut self, event: Event) {
        self.current = Current::Whole(event);
    }

    /// The current record holds messages, which are said when they end.
    pub(crate) fn messages(&mut self) {
        self.current = Current::Messages;
    }

    /// A message ends in the current record.
    pub(crate) fn say(&mut self, span: Range<usize>, event: Event) {
        self.all.push(StreamEvent { span, event });
    }

    /// Ends the current record: its header goes to the message that starts behind it, its end to
    /// the last message unless another is `unfinished`.
    pub(crate) fn end(&mut self, record: &Record<'_>, unfinished: bool) {
        let whole = match std::mem::take(&mut self.current) {
            Current::Unread => Event::unread(record),
            Current::Whole(event) => event,
            Current::Messages => {
                let messages = &mut self.all[self.mark..];
                if let Some(first) = messages.first_mut()
                    && first.span.start == record.payload_start()
                {
                    first.span.start = record.start;
                }
                if let (Some(last), false) = (messages.last_mut(), unfinished) {
                    last.span.end = record.end();
                }
                return;
            }
        };
        self.say(record.start..record.end(), whole);
    }
}
