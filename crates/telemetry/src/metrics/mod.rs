//! The metrics: what is counted where it happens ([`Metrics`]), what is read when asked for
//! ([`Readings`]), and both together at one moment ([`Snapshot`]) as text for Prometheus.
//!
//! Labels are closed enums or names out of the configuration, so no client can make series.

mod acme;
mod certificates;
mod connections;
mod description;
mod early_data;
mod family;
mod handshakes;
mod label;
mod labels;
mod page;
mod process;
mod quic;
mod readings;
mod reference;
mod register;
mod reloads;
mod requests;
mod snapshot;
mod spans;
mod store;
mod text;
mod tickets;
mod upstreams;

pub use acme::{Acme, AcmeReading};
pub use certificates::CertificateReading;
pub use connections::Connections;
pub use description::{Description, Kind};
pub use early_data::EarlyData;
pub use family::{Active, Counters, Histograms};
pub use handshakes::Handshakes;
pub use label::{Label, LabelInfo, Labels};
pub use labels::*;
pub use page::Format;
pub use process::ProcessReading;
pub use quic::{Quic, QuicReading};
pub use readings::Readings;
pub use register::RegisterReading;
pub use reloads::Reloads;
pub use requests::Requests;
pub use snapshot::{Family, HistogramValue, Series, Snapshot, Value};
pub use spans::SpanReading;
pub use store::{ClaimTimes, StoreReading};
pub use tickets::{TicketReading, Tickets};
pub use upstreams::{UpstreamReading, UpstreamServerReading, Upstreams};

/// All that is counted where it happens. One for each process; share it in an `Arc`.
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
    /// Tickets that clients came with.
    pub tickets: Tickets,
    /// QUIC's door.
    pub quic: Quic,
    /// Upstreams.
    pub upstreams: Upstreams,
    /// Reloads of the configuration.
    pub reloads: Reloads,
    /// Questions of certificate authorities.
    pub acme: Acme,
}

impl Metrics {
    /// Everything at this moment: what was counted, and `readings`.
    pub fn snapshot(&self, readings: &Readings) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.early_data.counted(&mut snapshot);
        register::collect(readings, &mut snapshot);
        self.handshakes.counted(&mut snapshot);
        self.connections.collect(readings.connections_limit, &mut snapshot);
        self.requests.counted(&mut snapshot);
        self.tickets.collect(&readings.tickets, &mut snapshot);
        store::collect(readings.store.as_ref(), &mut snapshot);
        self.quic.collect(readings.quic.as_ref(), &mut snapshot);
        self.upstreams.collect(&readings.upstreams, &mut snapshot);
        self.reloads.collect(readings, &mut snapshot);
        certificates::collect(&readings.certificates, &mut snapshot);
        self.acme.collect(&readings.acme, &mut snapshot);
        spans::collect(readings.spans.as_ref(), &mut snapshot);
        readings.process.collect(&mut snapshot);
        snapshot
    }
}

/// docs/metrics.md: every metric, its labels and what to do about it.
pub fn reference() -> String {
    reference::write(&Metrics::default().snapshot(&Readings::default()))
}
