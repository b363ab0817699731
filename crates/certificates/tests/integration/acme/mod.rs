//! The manager against a real authority, Pebble.

mod failures;
mod issue;
mod nodes;
mod responder;
mod shared_records;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_certificates::acme::{
    AcmeConfig, CertificateState, ChallengeKind, ChallengeResponses, IssuedCertificate, Manager,
    SharedRecords, SingleNode,
};
use firstflight_testkit::Pebble;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use self::shared_records::SharedMemory;

/// Generous, for loaded machines.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

fn config(pebble: &Pebble, state: &Path) -> AcmeConfig {
    AcmeConfig {
        directory: pebble.directory().parse().unwrap(),
        contact: vec!["ops@example.org".to_owned()],
        terms_agreed: true,
        state: state.join("acme"),
        authority: Some(pebble.authority()),
        ..AcmeConfig::default()
    }
}

fn only(kind: ChallengeKind, config: AcmeConfig) -> AcmeConfig {
    AcmeConfig { challenges: vec![kind], ..config }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A manager that runs until it is stopped.
struct RunningManager {
    states: watch::Receiver<Vec<CertificateState>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl RunningManager {
    fn alone(config: AcmeConfig, certificates: &[&[&str]], responses: &ChallengeResponses) -> Self {
        Self::start(config, certificates, responses, SingleNode)
    }

    fn sharing(
        config: AcmeConfig,
        certificates: &[&[&str]],
        responses: &ChallengeResponses,
        records: &SharedMemory,
    ) -> Self {
        Self::start(config, certificates, responses, records.clone())
    }

    fn start(
        config: AcmeConfig,
        certificates: &[&[&str]],
        responses: &ChallengeResponses,
        records: impl SharedRecords,
    ) -> Self {
        let certificates = certificates.iter().map(|it| names(it)).collect();
        let manager = Manager::new(config, certificates, responses.clone(), records).unwrap();
        let states = manager.watch();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(manager.run(async {
            let _ = stopped.await;
        }));
        Self { states, stop, task }
    }

    /// Waits until the first certificate satisfies a condition.
    async fn until(
        &mut self,
        what: &str,
        is: impl Fn(&CertificateState) -> bool,
    ) -> CertificateState {
        let found = async {
            Some(
                self.states.wait_for(|all| is(&all[0])).await.expect("the manager runs")[0].clone(),
            )
        };
        let found = tokio::time::timeout(TEST_TIMEOUT, found).await.unwrap_or_default();
        found.unwrap_or_else(|| panic!("waited for {what}: {:?}", self.states.borrow()[0]))
    }

    async fn until_issued(&mut self) -> CertificateState {
        self.until("a certificate", |it| it.issued.is_some()).await
    }

    /// Stops the manager, and returns its last certificate.
    async fn end_with_certificate(self) -> Arc<IssuedCertificate> {
        let states = self.states.clone();
        self.end().await;
        states.borrow()[0].issued.clone().expect("a certificate")
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(TEST_TIMEOUT, self.task).await.expect("it stops").expect("it runs");
    }
}
