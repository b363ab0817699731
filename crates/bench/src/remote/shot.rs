//! One sample: a connection of a cell.

use std::time::Duration;

use firstflight_emulator::monotonic_ns;
use firstflight_report::{Fault, Sample};
use firstflight_samples::{ClientRecord, RequestedConnection, Slot, sample_from_flow};

use super::connection::{Caller, Outcome};

/// A cell of a remote run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub asked: RequestedConnection,
    pub twin_of: Option<usize>,
}

/// A connection as the client saw it.
pub(super) struct ClientView {
    pub(super) taken: ClientRecord,
    got: Option<Outcome>,
}

pub(super) async fn shoot(caller: &Caller, slot: Slot, asked: &RequestedConnection) -> ClientView {
    let offer = caller.offer(asked).await;
    let (started_ns, mut local) = (monotonic_ns(), None);
    let got = match offer {
        Ok(offer) => caller.call(asked, &offer, &mut local).await,
        Err(why) => Err(why),
    };
    let outcome = got.as_ref().map(|got| got.times).map_err(String::clone);
    let server = caller.address;
    let taken = ClientRecord { slot, started_ns, local, client_random: None, server, outcome };
    ClientView { taken, got: got.ok() }
}

impl ClientView {
    /// The sample by what the kernel and TLS say.
    pub(super) fn by_kernel(&self, cells: &[Cell], origin_ns: u64) -> Sample {
        let mut sample = sample_from_flow(&self.taken, None, origin_ns);
        sample.label = self.got.as_ref().map(|got| got.label.to_string());
        sample.fault = match (&self.taken.outcome, &self.got) {
            (Err(why), _) => Some(Fault::Failed(why.clone())),
            (Ok(_), got) => {
                let mismatch = got.as_ref().and_then(|got| got.mismatch(&cells[sample.cell].asked));
                mismatch.map(Fault::Mislabelled)
            }
        };
        sample
    }

    pub(super) fn min_rtt(&self) -> Option<Duration> {
        self.got.as_ref()?.min_rtt
    }
}
