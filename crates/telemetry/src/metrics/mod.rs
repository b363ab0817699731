//! Metrics by the conventions of Prometheus.
//!
//! [`Metrics`] holds what is counted where it happens; [`Readings`] holds state that is read when a
//! snapshot is taken; [`Snapshot`] has both at one moment, and writes them as text.
//!
//! ```text
//! text, reference          output: the page for scrapers, and docs/reference/metrics.md
//! snapshot                 all metrics at one moment, with their descriptions
//! connections, requests, certificates, claims, tickets, upstreams, process
//!                          one group of metrics each: names, help, what is counted
//! instruments, labels      counters, gauges, histograms; labels as closed enums
//! ```
//!
//! # Why no metrics library
//!
//! Labels are closed enums or names from the configuration, so a metric is an array of atomic
//! cells, and counting is one relaxed addition: no map, no lock and no string per request. No
//! client can create series. Libraries keep maps for labels that are not known beforehand, and
//! write one format; this crate writes two, and generates docs/reference/metrics.md from the same
//! descriptions and enums.

mod certificates;
mod claims;
mod connections;
mod instruments;
mod labels;
mod process;
mod reference;
mod requests;
mod snapshot;
mod text;
mod tickets;
mod upstreams;

pub use certificates::{Acme, AcmeReading, CertificateReading};
pub use claims::{ClaimTimes, RegisterReading, StoreReading};
pub use connections::{Connections, Handshakes, Quic, QuicReading};
pub use instruments::{Counters, Gauges, Histograms};
pub use labels::*;
pub use process::{ProcessReading, Reloads, SpanReading};
pub use requests::{EarlyData, Requests};
pub use snapshot::{Description, Family, HistogramValue, Kind, Series, SeriesValue, Snapshot};
pub use text::Format;
pub use tickets::{PuncturedReading, TicketReading, Tickets};
pub use upstreams::{UpstreamReading, UpstreamServerReading, Upstreams};

/// Counters that are updated where things happen. One per process; share it in an `Arc`.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections and their bytes.
    pub connections: Connections,
    /// Handshakes and what they cost.
    pub handshakes: Handshakes,
    /// Early data: offered, accepted, refused, held.
    pub early_data: EarlyData,
    /// Requests and their responses.
    pub requests: Requests,
    /// Tickets that clients presented.
    pub tickets: Tickets,
    /// Admission of QUIC connections.
    pub quic: Quic,
    /// Upstreams.
    pub upstreams: Upstreams,
    /// Reloads of the configuration.
    pub reloads: Reloads,
    /// ACME challenges.
    pub acme: Acme,
}

impl Metrics {
    /// Returns all metrics at this moment: what was counted, and `readings`.
    pub fn snapshot(&self, readings: &Readings) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (_, collect) in GROUPS {
            collect(self, readings, &mut snapshot);
        }
        snapshot
    }
}

/// Adds the metrics of a group to a snapshot.
type Collect = fn(&Metrics, &Readings, &mut Snapshot);

/// The groups of metrics in the order of the reference, with their headings.
const GROUPS: [(&str, Collect); 12] = [
    ("Early data", |metrics, readings, to| {
        metrics.early_data.counted(to);
        claims::collect_open(readings, to);
    }),
    ("Strike register", |_, readings, to| claims::collect_register(readings, to)),
    ("Connections and handshakes", |metrics, readings, to| {
        metrics.handshakes.counted(to);
        metrics.connections.collect(readings.connections_limit, to);
    }),
    ("QUIC", |metrics, readings, to| metrics.quic.collect(readings.quic.as_ref(), to)),
    ("Requests", |metrics, _, to| metrics.requests.counted(to)),
    ("Tickets", |metrics, readings, to| metrics.tickets.collect(&readings.tickets, to)),
    ("Store", |_, readings, to| claims::collect_store(readings.store.as_ref(), to)),
    ("Upstreams", |metrics, readings, to| metrics.upstreams.collect(&readings.upstreams, to)),
    ("Configuration", |metrics, readings, to| metrics.reloads.collect(readings, to)),
    ("Certificates", |metrics, readings, to| {
        certificates::collect(&readings.certificates, to);
        metrics.acme.collect(&readings.acme, to);
    }),
    ("Traces", |_, readings, to| process::collect_spans(readings.spans.as_ref(), to)),
    ("Process", |_, readings, to| readings.process.collect(to)),
];

/// Returns the text of docs/reference/metrics.md: every metric, its labels and what to do about it.
pub fn reference() -> String {
    let (metrics, readings) = (Metrics::default(), Readings::default());
    let groups = GROUPS.map(|(title, collect)| {
        let mut snapshot = Snapshot::default();
        collect(&metrics, &readings, &mut snapshot);
        reference::Group { title, families: snapshot.families }
    });
    reference::write(&groups)
}

/// State of other parts of the server, read when a snapshot is taken.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    /// Whether a connection that starts now may have early data accepted.
    pub early_data_open: bool,
    /// The strike register in this process; empty with a store.
    pub register: RegisterReading,
    /// The filter in front of the store; empty without a store.
    pub filter: RegisterReading,
    /// The store; `None` without one.
    pub store: Option<StoreReading>,
    /// Ticket keys.
    pub tickets: TicketReading,
    /// QUIC; `None` if HTTP/3 is off.
    pub quic: Option<QuicReading>,
    /// Maximum number of connections.
    pub connections_limit: u32,
    /// Upstream pools.
    pub upstreams: Vec<UpstreamReading>,
    /// Generation of the configuration in use.
    pub generation: u64,
    /// Certificates.
    pub certificates: Vec<CertificateReading>,
    /// Sites whose certificate comes from an ACME authority.
    pub acme: Vec<AcmeReading>,
    /// Exported spans; `None` if spans are not exported.
    pub spans: Option<SpanReading>,
    /// The process.
    pub process: ProcessReading,
}
