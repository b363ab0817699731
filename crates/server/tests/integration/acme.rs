//! ACME certificates next to certificates from files.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use firstflight_config::{
    AcmeConfig, Action, CertificateSource, Content, FileSettings, Route, ServerConfig, Site, Sites,
};
use firstflight_server::Server;
use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, EchKey, Trust};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::support::Client;

/// A certificate that clients can trust explicitly, and its key.
fn self_signed(name: &str) -> (String, String) {
    let identity = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (identity.cert.pem(), identity.signing_key.serialize_pem())
}

fn site(dir: &Path, name: &str, certificate: CertificateSource) -> Site {
    let root = dir.join(name);
    fs::create_dir(&root).unwrap();
    fs::write(root.join("index.html"), format!("{name}\n")).unwrap();
    Site {
        names: vec![name.to_owned()],
        certificate: Some(certificate),
        ..Site::new(vec![Route::new("/", Action::Files(FileSettings::new(root)))])
    }
}

/// `files.test` has its own certificate; the certificate of `issued.test` comes from an authority.
fn config(dir: &Path) -> ServerConfig {
    let (cert, key) = (dir.join("files.pem"), dir.join("files.key"));
    let (cert_pem, key_pem) = self_signed("files.test");
    fs::write(&cert, cert_pem).unwrap();
    fs::write(&key, key_pem).unwrap();
    let files = site(dir, "files.test", CertificateSource::Files { cert, key });
    let issued = site(dir, "issued.test", CertificateSource::Acme);
    let content = Content::Sites(Sites { sites: vec![files, issued], upstreams: BTreeMap::new() });
    let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), content);
    config.acme = Some(AcmeConfig {
        // Nothing listens there.
        directory: "https://127.0.0.1:1/directory".parse().unwrap(),
        terms_agreed: true,
        state: dir.join("acme"),
        ..AcmeConfig::default()
    });
    config
}

/// The response to a client that requests this name and trusts only this certificate.
async fn response(server: SocketAddr, name: &str, trusted: &Path) -> String {
    let trust = Trust::File(trusted.to_owned());
    let connector = Connector::new(ConnectorConfig {
        alpn: vec![b"http/1.1".to_vec()],
        ..ConnectorConfig::new(trust)
    });
    let offer = ConnectOptions { host: name.to_owned(), ..ConnectOptions::default() };
    let mut machine = connector.unwrap().connection(&offer).unwrap();
    machine.handshake().unwrap();
    let flight = machine.outgoing().to_vec();
    machine.sent(flight.len());
    let mut client = Client { machine, hello_length: flight.len(), flight };
    let mut tcp = TcpStream::connect(server).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").as_bytes());
    client.finish(&mut tcp).await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_sites_broken_files_do_not_delay_a_new_certificate() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let mut config = config(dir);
    let ech = EchKey::generate("files.test").unwrap().to_pem().unwrap();
    fs::write(dir.join("ech.pem"), ech.as_bytes()).unwrap();
    config.tls.ech = vec![dir.join("ech.pem")];
    let missing = |server: &Server| -> Vec<bool> {
        server.handle().certificates().iter().map(|site| site.is_missing()).collect()
    };
    // Creates the directory for issued certificates.
    let before = Server::bind(config.clone()).await.unwrap();
    before.restore_certificates().await.unwrap();
    assert_eq!(missing(&before), [false, true]);
    drop(before);

    let server = Server::bind(config).await.unwrap();
    let trusted = dir.join("trusted-for-files.pem");
    fs::copy(dir.join("files.pem"), &trusted).unwrap();
    for file in ["files.pem", "files.key", "ech.pem"] {
        fs::remove_file(dir.join(file)).unwrap();
    }
    fs::remove_dir_all(dir.join("files.test")).unwrap();
    let (certificate, key) = self_signed("issued.test");
    let issued_dir = fs::read_dir(dir.join("acme")).unwrap().next().unwrap().unwrap().path();
    fs::write(issued_dir.join("issued.pem"), format!("{key}{certificate}")).unwrap();
    let issued = dir.join("trusted-for-issued.pem");
    fs::write(&issued, certificate).unwrap();
    server.restore_certificates().await.unwrap();
    assert_eq!(missing(&server), [false, false]);

    let address = server.local_addrs()[0];
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    let page = response(address, "issued.test", &issued).await;
    assert!(page.starts_with("HTTP/1.1 200") && page.ends_with("issued.test\n"), "{page}");
    // The other site's certificate stays in use; its files are gone.
    let page = response(address, "files.test", &trusted).await;
    assert!(page.starts_with("HTTP/1.1 404"), "{page}");
    drop(stop);
    tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
}
