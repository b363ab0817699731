use std::sync::Arc;
use std::time::Instant;

use firstflight_quic::ClientCrypto;
use firstflight_tls::{Connector, Version};

use crate::transfer::Transfer;
use crate::{ClientConfig, ClientError, HttpVersions, Listener, Report, Request, TrustId};

/// Makes transfers, each on a connection of its own.
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) connector: Connector,
    /// `None`: QUIC is not used.
    pub(crate) quic: Option<Arc<ClientCrypto>>,
    pub(crate) trust: TrustId,
}

impl Client {
    /// Checks the configuration.
    ///
    /// # Errors
    /// [`ClientError::Tls`] with the setting that is not taken, [`ClientError::Jar`],
    /// [`ClientError::Usage`] for HTTP/3 alone without TLS 1.3.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let connector = Connector::new(config.over_tcp())?;
        let tls13 = config.versions.1 == Version::Tls13;
        if config.http == HttpVersions::Three && !tls13 {
            let text = "HTTP/3 needs TLS 1.3; leave --tls-max out, or --http3-only";
            return Err(ClientError::Usage(text.to_owned()));
        }
        let quic = match config.http.over_quic() && tls13 {
            true => Some(ClientCrypto::new(config.over_quic())?),
            false => None,
        };
        let trust = TrustId::of(&config.trust)?;
        Ok(Self { config, connector, quic, trust })
    }

    /// Makes a request and hands its response to `listener` as it comes in. What went wrong is in
    /// the report, together with all that was reached before.
    pub async fn fetch(&self, request: Request, listener: &mut dyn Listener) -> Report {
        let mut transfer = Transfer::new(self, &request, listener);
        let result = match self.config.max_time {
            None => transfer.run(request).await,
            Some(after) => match tokio::time::timeout(after, transfer.run(request)).await {
                Ok(result) => result,
                Err(_) => Err(ClientError::Timeout { phase: "the transfer", after }),
            },
        };
        let settled = transfer.settle();
        let mut report = transfer.into_report();
        report.error = result.and(settled).err();
        report.marks.end.get_or_insert_with(Instant::now);
        report
    }
}
