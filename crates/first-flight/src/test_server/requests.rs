//! Executes, holds or rejects (425, Too Early) the requests of a connection.

use std::rc::Rc;

use super::http::{Request, Response};
use super::{EarlyRequest, Shared};

/// The requests of a connection. Each has a stream; over TCP there is one.
pub(super) struct Requests {
    shared: Rc<Shared>,
    held: Vec<(u64, Request)>,
    /// Responses to requests that were executed silently.
    late: Vec<(u64, Response)>,
    too_early: bool,
    /// Whether a copy of the flight arrived earlier.
    pub(super) overtaken: bool,
}

impl Requests {
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        Self { shared, held: Vec::new(), late: Vec::new(), too_early: false, overtaken: false }
    }

    /// Serves a request. Returns its response, if that leaves at once.
    pub(super) fn serve(&mut self, stream: u64, request: Request, early: bool) -> Option<Response> {
        let behaviour = &self.shared.behaviour;
        let decision = match early {
            true if self.overtaken => EarlyRequest::Hold,
            true => request.decision(behaviour),
            false if self.overtaken && behaviour.rejects_overtaken => EarlyRequest::TooEarly,
            false if self.too_early && behaviour.always_too_early => EarlyRequest::TooEarly,
            false => EarlyRequest::Execute,
        };
        match decision {
            EarlyRequest::Hold => {
                self.held.push((stream, request));
                None
            }
            EarlyRequest::Execute => Some(request.execute(&self.shared, early)),
            EarlyRequest::ExecuteSilently => {
                self.late.push((stream, request.execute(&self.shared, early)));
                None
            }
            EarlyRequest::TooEarly => {
                self.too_early = true;
                Some(request.too_early(&self.shared))
            }
        }
    }

    /// The responses of requests that have waited for the client's Finished.
    pub(super) fn complete(&mut self) -> Vec<(u64, Response)> {
        let mut responses = std::mem::take(&mut self.late);
        for (stream, request) in std::mem::take(&mut self.held) {
            let rejected = self.overtaken && self.shared.behaviour.rejects_overtaken;
            responses.push((
                stream,
                match rejected {
                    true => request.too_early(&self.shared),
                    false => request.execute(&self.shared, false),
                },
            ));
        }
        responses
    }
}
