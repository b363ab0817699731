//! Untrusted stores: a proxy that returns garbage, and TLS to the wrong store.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use firstflight_replay::{StoreReply::*, Unknown};
use firstflight_store::{Address, StoreConfig, StoreError, StoreTls, Topology};
use firstflight_testkit::{StoreKind, StoreListen, StoreOptions, StoreProcess, TEST_TIMEOUT};
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

/// All tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    trials![
        malformed_replies_are_unknown_and_cost_no_memory,
        tls_connects_only_to_the_expected_store,
        authorities_are_reread_with_the_passwords,
        unreadable_authorities_are_a_setting_error,
        a_delayed_mark_is_not_taken_for_lost_data
    ]
}

/// Replies that a proxy sends instead of the store's, by mode; mode 0 forwards the store's.
fn malformed_replies() -> [Vec<u8>; 9] {
    let long = [b"$9223372036854775807\r\n".as_slice(), &[b'x'; 1 << 16]].concat();
    let short: [&[u8]; 7] = [
        b"\xff\x00\x13garbage without an end of line ",
        b"*4096\r\n*4096\r\n*4096\r\n",
        b"*-7\r\n",
        b":1\r\n:2\r\n:3\r\n",
        b"+OK\r\n",
        b"-ERR no\r\n",
        b"$-1\r\n*2\r\n$1\r\n1\r\n$1\r\n1\r\n",
    ];
    let [a, b, c, d, e, f, g] = short.map(<[u8]>::to_vec);
    [Vec::new(), long, a, b, c, d, e, f, g]
}

/// Forwards a connection. While `mode` is not 0, replies are replaced by an endless repetition of
/// that malformed reply.
async fn forward(mut near: UnixStream, upstream: PathBuf, mode: Arc<AtomicU8>) {
    let Ok(mut far) = UnixStream::connect(upstream).await else { return };
    let (mut request, mut reply) = ([0; 4096], [0; 4096]);
    let malformed_replies = malformed_replies();
    loop {
        let done = tokio::select! {
            read = near.read(&mut request) => match read {
                Ok(1..) => far.write_all(&request[..read.unwrap()]).await.is_err(),
                _ => true,
            },
            read = far.read(&mut reply) => match (read, mode.load(Ordering::Relaxed)) {
                (Ok(read @ 1..), 0) => near.write_all(&reply[..read]).await.is_err(),
                (Ok(1..), kind) => {
                    while near.write_all(&malformed_replies[usize::from(kind)]).await.is_ok() {}
                    true
                }
                _ => true,
            },
        };
        if done {
            return;
        }
    }
}

/// Delays one heartbeat.
#[derive(Default)]
struct DelayedHeartbeat {
    /// Whether to hold back the next heartbeat, and only that one.
    holds: AtomicBool,
    /// Number of heartbeats forwarded.
    forwarded: AtomicU32,
    release: Notify,
    /// Whether the store has replied to the one that was held back.
    arrived: AtomicBool,
}

impl DelayedHeartbeat {
    /// Forwards a connection, but the held heartbeat only at its release, even if its client has
    /// gone.
    async fn forward(&self, mut near: UnixStream, upstream: PathBuf) {
        let Ok(mut far) = UnixStream::connect(upstream).await else { return };
        let (mut request, mut reply) = ([0; 4096], [0; 4096]);
        loop {
            let done = tokio::select! {
                read = near.read(&mut request) => {
                    let Ok(read @ 1..) = read else { return };
                    // Only heartbeats request this section of INFO.
                    let is_heartbeat = request[..read].windows(11).any(|part| part == b"replication");
                    if is_heartbeat && self.holds.swap(false, Ordering::Relaxed) {
                        self.release.notified().await;
                        far.write_all(&request[..read]).await.unwrap();
                        assert_ne!(far.read(&mut reply).await.unwrap(), 0);
                        self.arrived.store(true, Ordering::Relaxed);
                        return;
                    }
                    self.forwarded.fetch_add(u32::from(is_heartbeat), Ordering::Relaxed);
                    far.write_all(&request[..read]).await.is_err()
                }
                read = far.read(&mut reply) => {
                    let Ok(read @ 1..) = read else { return };
                    near.write_all(&reply[..read]).await.is_err()
                }
            };
            if done {
                return;
            }
        }
    }

    /// Waits until `count` further heartbeats were forwarded. All but the last were processed.
    async fn wait_for_further(&self, count: u32) {
        let target = self.forwarded.load(Ordering::Relaxed) + count;
        until_true(|| self.forwarded.load(Ordering::Relaxed) >= target).await;
    }
}

async fn until_true(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("in time");
}

/// RFC 8446 section 8.2: the store has lost nothing, so no window starts, on this node or any other.
async fn a_delayed_mark_is_not_taken_for_lost_data() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy");
    let listener = UnixListener::bind(&path).unwrap();
    let delayed = Arc::new(DelayedHeartbeat::default());
    let (upstream, shared) = (redis.socket(), delayed.clone());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (upstream, shared) = (upstream.clone(), shared.clone());
            tokio::spawn(async move { shared.forward(near, upstream).await });
        }
    });
    let store = open(config(Topology::Single(Address::Unix(path))));
    until(&store, Won).await;
    let before = store.statistics().unknown_by(Unknown::Window);
    delayed.holds.store(true, Ordering::Relaxed);
    until_true(|| !delayed.holds.load(Ordering::Relaxed)).await;
    // Heartbeats of the next connection.
    delayed.wait_for_further(3).await;
    delayed.release.notify_one();
    until_true(|| delayed.arrived.load(Ordering::Relaxed)).await;
    delayed.wait_for_further(3).await;
    until(&store, Won).await;
    assert_eq!(store.statistics().unknown_by(Unknown::Window), before);
}

/// The most memory that this process ever had, in KiB.
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn malformed_replies_are_unknown_and_cost_no_memory() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy");
    let listener = UnixListener::bind(&path).unwrap();
    let mode = Arc::new(AtomicU8::new(0));
    let (upstream, shared) = (redis.socket(), mode.clone());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(forward(near, upstream.clone(), shared.clone()));
        }
    });
    let store = open(config(Topology::Single(Address::Unix(path))));
    until(&store, Won).await;
    let before = peak_kib();
    for kind in 1..malformed_replies().len() {
        mode.store(u8::try_from(kind).unwrap(), Ordering::Relaxed);
        let end = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end {
            let reply = claim(&store, fresh()).await;
            // A false `Lost` costs a request its early response, but no more.
            assert!(matches!(reply, Unknown(_) | Lost), "{kind}: {reply:?}");
            let record = store.get("x").await;
            assert!(record.is_err() || record == Ok(None), "{kind}: {record:?}");
        }
    }
    let grown = peak_kib() - before;
    assert!(grown < 96 << 10, "{grown} KiB more");
    mode.store(0, Ordering::Relaxed);
    until(&store, Won).await;
}

struct TestCertificate {
    _directory: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

fn test_certificate() -> TestCertificate {
    let generated = rcgen::generate_simple_self_signed(["store.test".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("cert"), directory.path().join("key"));
    std::fs::write(&certificate, generated.cert.pem()).unwrap();
    std::fs::write(&key, generated.signing_key.serialize_pem()).unwrap();
    TestCertificate { _directory: directory, certificate, key }
}

async fn tls_connects_only_to_the_expected_store() {
    let (right, wrong) = (test_certificate(), test_certificate());
    for kind in [StoreKind::Redis] {
        let listen =
            StoreListen::Tls { certificate: right.certificate.clone(), key: right.key.clone() };
        let process = StoreProcess::start(StoreOptions::new(kind, listen));
        let with = |ca: &TestCertificate, name: Option<&str>| StoreConfig {
            tls: Some(StoreTls {
                ca_file: Some(ca.certificate.clone()),
                server_name: name.map(ToOwned::to_owned),
            }),
            ..config(Topology::Single(at_port(&process)))
        };
        let store = open(with(&right, Some("store.test")));
        until(&store, Won).await;
        let flight = fresh();
        assert_eq!(claim(&store, flight).await, Won);
        assert_eq!(claim(&store, flight).await, Lost);
        for (ca, name) in
            [(&right, None), (&right, Some("other.test")), (&wrong, Some("store.test"))]
        {
            let store = open(with(ca, name));
            let error = store.get("x").await.unwrap_err();
            assert!(matches!(error, StoreError::Absent(_)), "{error}");
            assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
        }
    }
}

async fn authorities_are_reread_with_the_passwords() {
    let (old, new) = (test_certificate(), test_certificate());
    let listen = StoreListen::Tls { certificate: new.certificate.clone(), key: new.key.clone() };
    let process = StoreProcess::start(StoreOptions::new(StoreKind::Redis, listen));
    let directory = tempfile::tempdir().unwrap();
    let ca_file = directory.path().join("ca");
    std::fs::copy(&old.certificate, &ca_file).unwrap();
    let server_name = Some("store.test".to_owned());
    let tls = StoreTls { ca_file: Some(ca_file.clone()), server_name };
    let config = StoreConfig { tls: Some(tls), ..config(Topology::Single(at_port(&process))) };
    let store = open(config.clone());
    let error = store.get("x").await.unwrap_err();
    assert!(matches!(error, StoreError::Absent(_)), "{error}");
    std::fs::copy(&new.certificate, &ca_file).unwrap();
    store.set_passwords(&config);
    until(&store, Won).await;
    // If the file cannot be read, the authorities in use stay.
    std::fs::remove_file(&ca_file).unwrap();
    store.set_passwords(&config);
    process.cli(&["client", "kill", "type", "normal", "skipme", "yes"]);
    until(&store, Won).await;
}

async fn unreadable_authorities_are_a_setting_error() {
    let tls = StoreTls { ca_file: Some("/nowhere/ca.pem".into()), server_name: None };
    let address = Address::Tcp("localhost".to_owned(), 1);
    let config = StoreConfig { tls: Some(tls), ..config(Topology::Single(address)) };
    let error = firstflight_store::Store::open(config, unix_micros).unwrap_err();
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}
