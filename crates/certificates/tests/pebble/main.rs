//! The whole of it against a real authority, Pebble.

mod answerer;
mod issue;
mod nodes;
mod shelf;
mod trouble;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_certificates::acme::{
    AcmeConfig, Answers, CertificateState, ChallengeKind, Issued, Manager, SharedRecords,
    SingleNode,
};
use firstflight_testkit::Pebble;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::shelf::Common;

/// Even on a machine that has other things to do.
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
struct Running {
    states: watch::Receiver<Vec<CertificateState>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    fn alone(config: AcmeConfig, certificates: &[&[&str]], answers: &Answers) -> Self {
        Self::start(config, certificates, answers, SingleNode)
    }

    fn sharing(
        config: AcmeConfig,
        certificates: &[&[&str]],
        answers: &Answers,
        shelf: &Common,
    ) -> Self {
        Self::start(config, certificates, answers, shelf.clone())
    }

    fn start(
        config: AcmeConfig,
        certificates: &[&[&str]],
        answers: &Answers,
        shelf: impl SharedRecords,
    ) -> Self {
        let certificates = certificates.iter().map(|it| names(it)).collect();
        let manager = Manager::new(config, certificates, answers.clone(), shelf).unwrap();
        let states = manager.watch();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(manager.run(async {
            let _ = stopped.await;
        }));
        Self { states, stop, task }
    }

    /// Waits until the first certificate is as wanted.
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

    /// Stops it, and gives the certificate that it had in the end.
    async fn end_with(self) -> Arc<Issued> {
        let states = self.states.clone();
        self.end().await;
        states.borrow()[0].issued.clone().expect("a certificate")
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(TEST_TIMEOUT, self.task).await.expect("it stops").expect("it runs");
    }
}
