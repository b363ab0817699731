use crate::ServerKind;

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The network is being built and the servers are being started.
    Starting,
    /// The link is being held against its configuration.
    Calibrating,
    /// Samples are being taken.
    Measuring {
        /// Samples taken.
        done: usize,
        /// Samples in all.
        total: usize,
    },
    /// Browsers are visiting.
    Visiting {
        /// Visits made.
        done: usize,
        /// Visits in all.
        total: usize,
    },
    /// Browsers are being filmed.
    Filming,
    /// Packets are being judged.
    Judging,
    /// Processor time is being counted.
    Costing,
    /// Middleboxes are being tried.
    Middleboxes,
    /// Flights are being resent.
    Replaying {
        /// Flights done at this server.
        done: usize,
        /// Flights in all at this server.
        total: usize,
        /// Which server.
        server: ServerKind,
    },
}
