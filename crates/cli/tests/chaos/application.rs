//! The application behind the nodes. A request that it received was executed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use firstflight_testkit::{ReceivedRequest, Upstream, UpstreamResponse};

/// Responds to each request with its target. It has one port per node, so that it knows which node
/// forwarded a request.
pub(crate) struct Application {
    /// The address for each node.
    pub(crate) addresses: Vec<SocketAddr>,
    executions_by_target: Arc<Mutex<HashMap<String, Executions>>>,
}

/// The executions of one target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executions {
    /// The nodes that forwarded it, in order.
    pub(crate) nodes: Vec<usize>,
    /// How many of them were marked `Early-Data: 1` (RFC 8470 section 5.1).
    pub(crate) marked: usize,
}

impl Application {
    /// Serves this number of nodes until the program ends.
    pub(crate) fn start(nodes: usize) -> Self {
        let executions_by_target = Arc::<Mutex<HashMap<String, Executions>>>::default();
        let serve = |node| {
            let executions_by_target = executions_by_target.clone();
            Upstream::unrecorded(move |ReceivedRequest { target, headers, .. }| {
                let mut executions_by_target = executions_by_target.lock().unwrap();
                let executions = executions_by_target.entry(target.clone()).or_default();
                executions.nodes.push(node);
                let is_early = headers.get("early-data").is_some_and(|value| value == "1");
                executions.marked += usize::from(is_early);
                UpstreamResponse { body: target, ..UpstreamResponse::default() }
            })
        };
        let addresses = (0..nodes).map(serve).collect();
        Self { addresses, executions_by_target }
    }

    /// The executions of a target.
    pub(crate) fn executions(&self, target: &str) -> Executions {
        self.executions_by_target.lock().unwrap().get(target).cloned().unwrap_or_default()
    }
}
