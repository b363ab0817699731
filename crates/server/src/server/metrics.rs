//! Collects the values of metrics that are read on demand: gate, store, ticket keys, configuration.

use firstflight_replay::RegisterStatistics;
use firstflight_store::{CLAIM_TIME_BOUNDS, StoreStatistics};
use firstflight_telemetry::metrics::{
    AcmeReading, CertificateReading, ClaimTimes, ProcessReading, Readings, RegisterReading,
    Snapshot, StoreReading,
};

use crate::certificates::{CertificateSource, SiteCertificate};
use crate::gate::shared_register::SharedRegister;
use crate::gate::store_reason;
use crate::handler::proxy;
use crate::observe::access_log::AccessLog;
use crate::observe::trace::Tracer;
use crate::server::ServerState;

impl ServerState {
    /// All metrics at this moment.
    pub(crate) fn metrics(&self) -> Snapshot {
        self.shared.observers.metrics.snapshot(&self.readings())
    }

    fn readings(&self) -> Readings {
        let snapshot = self.shared.snapshot();
        let (store, filter) = match self.shared.gate.shared() {
            Some(shared) => {
                let (store, filter) = shared.statistics();
                (Some(store_reading(shared, &store)), register_reading(&filter))
            }
            None => (None, RegisterReading::default()),
        };
        let lost = self.shared.observers.access_log.get().map_or(0, AccessLog::lost);
        Readings {
            early_data_open: snapshot.early_data && self.shared.gate.unavailable().is_none(),
            register: register_reading(&self.shared.gate.statistics()),
            filter,
            store,
            tickets: self.ring.reading(),
            quic: snapshot.quic.as_ref().map(|_| self.quic_ports.reading()),
            connections_limit: snapshot.limits.connections,
            upstreams: snapshot.pools.values().map(|pool| proxy::reading(pool.status())).collect(),
            generation: snapshot.number,
            certificates: certificate_readings(&snapshot.certificates),
            acme: self.certificates().iter().filter_map(acme_reading).collect(),
            spans: self.shared.observers.tracer.as_ref().and_then(Tracer::reading),
            process: ProcessReading::current(env!("CARGO_PKG_VERSION"), lost),
        }
    }
}

/// The expiry dates of the certificates, without the placeholders of sites that have none yet.
fn certificate_readings(certificates: &[SiteCertificate]) -> Vec<CertificateReading> {
    let installed = certificates.iter().filter(|certificate| !certificate.is_missing());
    let reading = |certificate: &SiteCertificate| {
        let (site, source) = (certificate.site.clone(), certificate.source.origin());
        certificate.not_after.map(|expires| CertificateReading { site, source, expires })
    };
    installed.filter_map(reading).collect()
}

fn acme_reading(certificate: &SiteCertificate) -> Option<AcmeReading> {
    let CertificateSource::Acme(state) = &certificate.source else { return None };
    Some(AcmeReading {
        site: certificate.site.clone(),
        missing: certificate.is_missing(),
        next_attempt: state.next_attempt,
        last_success: state.last_success,
        consecutive_failures: state.last_error.as_ref().map_or(0, |error| error.consecutive.into()),
        issued: state.attempts.issued,
        failed: state.attempts.failed,
        shared: state.attempts.adopted,
    })
}

fn register_reading(register: &RegisterStatistics) -> RegisterReading {
    RegisterReading {
        records: register.entries as u64,
        capacity: register.capacity as u64,
        won: register.won,
        lost: register.lost,
        spent: register.barred,
        full: register.full,
    }
}

fn store_reading(shared: &SharedRegister, store: &StoreStatistics) -> StoreReading {
    let reasons = StoreStatistics::REASONS.iter();
    let unknown = reasons.map(|why| (store_reason(*why), store.unknown_by(*why)));
    StoreReading {
        unavailable: shared.claim_problem().map(store_reason),
        won: store.won,
        lost: store.lost,
        unknown: unknown.collect(),
        batches: store.batches,
        connections: store.connections,
        claim_times: ClaimTimes {
            bounds: CLAIM_TIME_BOUNDS
                .iter()
                .map(|micros| *micros as f64 / MICROS_PER_SECOND)
                .collect(),
            buckets: store.claim_times.to_vec(),
            sum: store.claim_micros as f64 / MICROS_PER_SECOND,
        },
    }
}

const MICROS_PER_SECOND: f64 = 1e6;
