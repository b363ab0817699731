//! What is known elsewhere, and read when somebody asks.

use super::{
    AcmeReading, CertificateReading, ProcessReading, QuicReading, RegisterReading, SpanReading,
    StoreReading, TicketReading, UpstreamReading,
};

/// What is known elsewhere, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    /// Whether a connection that starts now may have early data accepted.
    pub early_data_open: bool,
    /// The strike register in this process; empty with a store.
    pub register: RegisterReading,
    /// The filter before the store; empty without one.
    pub filter: RegisterReading,
    /// The store; `None`: there is none.
    pub store: Option<StoreReading>,
    /// Ticket keys.
    pub tickets: TicketReading,
    /// QUIC; `None`: there is no HTTP/3.
    pub quic: Option<QuicReading>,
    /// Connections that there may be.
    pub connections_limit: u32,
    /// Upstream pools.
    pub upstreams: Vec<UpstreamReading>,
    /// Which configuration serves.
    pub generation: u64,
    /// Certificates.
    pub certificates: Vec<CertificateReading>,
    /// Sites whose certificate is an authority's.
    pub acme: Vec<AcmeReading>,
    /// Spans; `None`: they go nowhere.
    pub spans: Option<SpanReading>,
    /// The process.
    pub process: ProcessReading,
}
