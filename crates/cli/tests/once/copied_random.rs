//! An attacker with a valid ticket who uses the client random of another client's flight. Flights are
//! not identified by the client random, so the victim is served normally.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstflight_testkit::TEST_TIMEOUT;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
use tokio::time::timeout;

use crate::attacker::Copies;
use crate::client::Transport;
use crate::honest::{Honest, recorder};
use crate::http::{http1_request, status_of};
use crate::plan::{Attack, Attempt};
use crate::report::{Label, Row};
use crate::runtime;
use crate::stage::Shared;

/// The attacker's flight arrives first, at another node if there is one.
pub(crate) fn client_random(servers: &'static Shared, label: &Label) -> Vec<Row> {
    let stage = servers.get();
    let nodes = stage.addresses();
    let attacker = Attacker::new(nodes[nodes.len() - 1]);
    assert_eq!(attacker.get("/attacker"), Some(200));
    let ticket = stage.client.ticket(Transport::Http1, nodes[0]).unwrap();
    let recorder = recorder(Transport::Http1, nodes[0]);
    let held = recorder.hold_next();
    let attempt = Attempt { transport: Transport::Http1, shift: 0, attack: Attack::Eager };
    let victim = Honest::through(recorder, &stage.client, attempt, &ticket);
    let (flight, release) = runtime()
        .block_on(async { timeout(TEST_TIMEOUT, held.flight()).await })
        .expect("the victim sends its flight");
    attacker.random.use_client_random(client_random_of(&flight));
    let own = format!("{}/attacker", victim.target);
    assert_eq!(attacker.get(&own), Some(200), "{:?}", stage.log_of(&own));
    release.send(()).unwrap();
    let row = victim.finish().row(&stage, label, Copies { sent: 1, responses: 1 }, &[]);
    vec![row]
}

/// A flight starts with a ClientHello: headers of record and message, version, random (RFC 8446
/// section 4.1.2).
fn client_random_of(flight: &[u8]) -> [u8; 32] {
    flight[11..43].try_into().unwrap()
}

/// A client with another TLS library, which accepts a chosen client random.
struct Attacker {
    config: Arc<ClientConfig>,
    random: &'static Random,
    node: SocketAddr,
}

impl Attacker {
    fn new(node: SocketAddr) -> Self {
        let random: &'static Random = Box::leak(Box::default());
        let provider =
            Arc::new(CryptoProvider { secure_random: random, ..ring::default_provider() });
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.enable_early_data = true;
        Self { config: Arc::new(config), random, node }
    }

    /// Sends a GET, early if there is a ticket. Returns its status.
    fn get(&self, target: &str) -> Option<u16> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(self.config.clone(), name).unwrap();
        let request = http1_request(target);
        let sent = match tls.early_data() {
            Some(mut early) => early.write(request.as_bytes()).unwrap(),
            None => 0,
        };
        assert!(
            sent == 0 || sent == request.len(),
            "the request is early completely or not at all"
        );
        let mut tcp = TcpStream::connect(self.node).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp).unwrap();
        }
        let was_early = sent > 0 && tls.is_early_data_accepted();
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        if !was_early {
            stream.write_all(request.as_bytes()).unwrap();
        }
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        status_of(&response)
    }
}

/// Random bytes, except where the length is that of a client random.
#[derive(Debug, Default)]
struct Random(Mutex<Option<[u8; 32]>>);

impl Random {
    fn use_client_random(&self, random: [u8; 32]) {
        *self.0.lock().unwrap() = Some(random);
    }
}

impl SecureRandom for Random {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        match *self.0.lock().unwrap() {
            Some(random) if buffer.len() == random.len() => buffer.copy_from_slice(&random),
            _ => ring::default_provider().secure_random.fill(buffer)?,
        }
        Ok(())
    }
}

/// Accepts every certificate: the attacker need not authenticate the server.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
