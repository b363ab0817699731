//! The connections to a real store process: how they are opened, logged in, reopened and closed.

use std::time::{Duration, Instant};

use crate::single::{all_records, redis, single};
use crate::support::*;
use firstflight_replay::{StoreReply::*, Unknown};
use firstflight_store::{Address, StoreConfig, StoreError};
use firstflight_testkit::{StoreListen, StoreProcess};
use libtest_mimic::Trial;

/// All tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    trials![
        killed_connections_are_reopened,
        connections_log_in_and_use_changed_passwords,
        a_worker_that_cannot_log_in_says_why,
        an_unreachable_store_is_absent,
        the_last_clone_closes_all_connections,
    ]
}

async fn killed_connections_are_reopened() {
    let (redis, store) = redis().await;
    for _ in 0..5 {
        redis.cli(&["client", "kill", "type", "normal", "skipme", "yes"]);
        let killed = Instant::now();
        // The same process, so its epoch continues.
        until_within(&store, Won, short_config(Duration::ZERO).recording_window()).await;
        assert!(killed.elapsed() < short_config(Duration::ZERO).recording_window());
    }
    assert!(store.statistics().connections > 2);
}

async fn connections_log_in_and_use_changed_passwords() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    // The ACL of docs/operate/cluster.md.
    let rules = "~firstflight:* +set +get +getdel +del +pttl +time +info +wait +sadd +srem +smembers \
                 +setbit +pexpire +select";
    let mut words = vec!["acl", "setuser", "ff", "on", ">s3cret word"];
    words.extend(rules.split(' '));
    assert_eq!(redis.cli(&words), "OK");
    let with = |username: Option<&str>, password: Option<&str>| StoreConfig {
        username: username.map(ToOwned::to_owned),
        password: password.map(ToOwned::to_owned),
        database: 3,
        ..single(at_socket(&redis))
    };
    let store = open(with(Some("ff"), Some("s3cret word")));
    until(&store, Won).await;
    all_records(&store).await;
    // The password is replaced, first on the node, then in the store, which ends all connections.
    store.set_passwords(&with(Some("ff"), Some("another")));
    assert_eq!(redis.cli(&["acl", "setuser", "ff", "resetpass", ">another"]), "OK");
    assert_ne!(redis.cli(&["client", "kill", "user", "ff"]), "0");
    until(&store, Won).await;
    assert_eq!(redis.cli(&["acl", "setuser", "default", "off"]), "OK");
    for wrong in [with(Some("ff"), Some("no")), with(None, Some("no")), with(None, None)] {
        let store = open(wrong);
        let error = store.get("x").await.unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
        assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
    }
}

/// The heartbeat's connection stays open with the password that it logged in with.
async fn a_worker_that_cannot_log_in_says_why() {
    let (redis, store) = redis().await;
    // The last command of a heartbeat is SET, that of an idle worker TIME or PTTL.
    let list = redis.cli(&["client", "list"]);
    let workers: Vec<_> = list
        .lines()
        .filter(|line| line.contains(" cmd=time ") || line.contains(" cmd=pttl "))
        .filter_map(|line| line.split(' ').next()?.strip_prefix("id="))
        .collect();
    assert!(!workers.is_empty(), "{list}");
    redis.cli(&["config", "set", "requirepass", "new"]);
    for id in workers {
        redis.cli(&["-a", "new", "--no-auth-warning", "client", "kill", "id", id]);
    }
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.get("x").await {
            Err(StoreError::Refused(why)) => break assert!(why.contains("NOAUTH"), "{why}"),
            other => assert!(Instant::now() < end, "{other:?}"),
        }
    }
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
}

async fn an_unreachable_store_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(single(Address::Unix(directory.path().join("none"))));
    let started = Instant::now();
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
    assert!(started.elapsed() < Duration::from_secs(5), "no claim is attempted");
    assert!(matches!(store.get("a").await, Err(StoreError::Absent(_))));
    let bit = store.set_bit("a", 0, Duration::from_secs(1)).await;
    assert_eq!(bit, Err(StoreError::Unknown(Unknown::Absent)));
}

async fn the_last_clone_closes_all_connections() {
    let (redis, store) = redis().await;
    let clients = || redis.cli(&["client", "list"]).lines().count();
    let copy = store.clone();
    drop(store);
    assert_eq!(claim(&copy, fresh()).await, Won);
    assert!(clients() > 1);
    drop(copy);
    let end = Instant::now() + Duration::from_secs(10);
    while clients() > 1 {
        assert!(Instant::now() < end, "{}", redis.cli(&["client", "list"]));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
