use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;
use crate::{DatedKey, Ring, Schedule, TicketKey, UnixTime};

/// Keys 1 to `count`; key n has the time 100 n, and tickets live for an hour.
fn ring(count: u8) -> Ring {
    let schedule = Schedule::new(Duration::from_secs(100), Duration::from_secs(3600)).unwrap();
    let keys = (1..=count).map(|n| DatedKey {
        key: TicketKey::new([n; 16], [n + 100; 32]),
        not_before: UnixTime(100 * u64::from(n)),
    });
    Ring::new(keys.collect(), schedule).unwrap()
}

fn exported(n: u8, purpose: &str) -> Vec<u8> {
    let key = TicketKey::new([n; 16], [n + 100; 32]);
    ExportedKey::derive(&key, purpose).as_bytes().to_vec()
}

fn for_nginx(ring: &Ring, now: UnixTime) -> Vec<Vec<u8>> {
    nginx(ring, now).iter().map(|key| key.as_bytes().to_vec()).collect()
}

fn for_haproxy(ring: &Ring, now: UnixTime) -> Vec<Vec<u8>> {
    haproxy(ring, now).lines().map(|line| STANDARD.decode(line).unwrap()).collect()
}

fn for_envoy(ring: &Ring, now: UnixTime) -> Vec<Vec<u8>> {
    let text = envoy(ring, now);
    let secret: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys = secret["resources"][0]["session_ticket_keys"]["keys"].as_array().unwrap();
    keys.iter().map(|key| STANDARD.decode(key["inline_bytes"].as_str().unwrap()).unwrap()).collect()
}

#[test]
fn rfc5869_keys_match_an_independent_derivation() {
    // From Python's hmac: HKDF-SHA256(salt = name, IKM = secret, info = label), 80 bytes.
    let key = ExportedKey::derive(&TicketKey::new([1; 16], [2; 32]), "nginx");
    assert_eq!(hex::encode(key.as_bytes()), VECTOR);
    assert_eq!(hex::encode(key.name()), VECTOR[..32]);
    let shown = format!("{key:?}");
    assert!(shown.contains(&VECTOR[..32]) && !shown.contains(&VECTOR[32..40]), "{shown}");
}

#[test]
fn nginx_and_envoy_seal_under_the_first() {
    let order = |purpose| [3, 4, 2, 1].map(|n| exported(n, purpose)).to_vec();
    assert_eq!(for_nginx(&ring(4), UnixTime(350)), order("nginx"));
    assert_eq!(for_envoy(&ring(4), UnixTime(350)), order("Envoy"));
    assert_eq!(for_nginx(&ring(1), UnixTime(350)), [exported(1, "nginx")]);
    // Two keys may follow the current one, after a rotation shortly before a period's end.
    assert_eq!(for_envoy(&ring(4), UnixTime(250)), [2, 3, 4, 1].map(|n| exported(n, "Envoy")));
}

#[test]
fn haproxy_seals_under_the_last_but_one() {
    let keys = for_haproxy(&ring(4), UnixTime(350));
    assert_eq!(keys, [1, 2, 3, 4].map(|n| exported(n, "HAProxy")));
    assert_eq!(for_haproxy(&ring(4), UnixTime(250)), [1, 2, 3].map(|n| exported(n, "HAProxy")));
    assert!(haproxy(&ring(4), UnixTime(350)).ends_with('\n'));
}

#[test]
fn haproxy_gets_three_keys_if_the_ring_has_fewer() {
    let current = exported(1, "HAProxy");
    let fresh = for_haproxy(&ring(2), UnixTime(150));
    assert_eq!((fresh.len(), &fresh[1], &fresh[2]), (3, &current, &exported(2, "HAProxy")));
    let alone = for_haproxy(&ring(1), UnixTime(150));
    assert_eq!((alone.len(), &alone[1]), (3, &current));
    assert_ne!(alone[0][..16], alone[2][..16], "names differ");
    assert_eq!(alone, for_haproxy(&ring(1), UnixTime(999)), "the same each time");
    let neglected = for_haproxy(&ring(3), UnixTime(350));
    assert_eq!(neglected[2], exported(3, "HAProxy"), "the last but one of 4 is current");
    assert_eq!(neglected.len(), 4);
}

#[test]
fn an_expired_key_is_not_written() {
    assert_eq!(
        for_nginx(&ring(3), UnixTime(3800)).len(),
        2,
        "1 expired at 3800, 2 expires at 3900"
    );
}

proptest! {
    /// Tickets of a server with the old files can be opened by one with the new files and vice
    /// versa; HAProxy keeps the last three keys.
    #[test]
    fn servers_before_and_after_a_rotation_open_each_others_tickets(count in 1_u8..6, now in 50_u64..700) {
        let (old, now) = (ring(count), UnixTime(now));
        let mut new = old.clone();
        new.rotate(now);
        let no_next = old.next(now).is_none();
        for format in [for_nginx, for_envoy] {
            let (old, new) = (format(&old, now), format(&new, now));
            prop_assert!(new.contains(&old[0]));
            prop_assert!(no_next || old.contains(&new[0]));
        }
        let last_three = |keys: Vec<Vec<u8>>| keys[keys.len() - 3..].to_vec();
        let (before, after) = (last_three(for_haproxy(&old, now)), last_three(for_haproxy(&new, now)));
        prop_assert!(after.contains(&before[1]));
        prop_assert!(no_next || before.contains(&after[1]));
    }

    #[test]
    fn a_name_refers_to_one_key(count in 1_u8..6, times in prop::collection::vec(0_u64..9000, 1..20)) {
        let mut seen = std::collections::HashMap::new();
        for now in times.into_iter().map(UnixTime) {
            for format in [for_nginx, for_haproxy, for_envoy] {
                for key in format(&ring(count), now) {
                    let first = seen.entry(key[..16].to_vec()).or_insert_with(|| key.clone());
                    prop_assert_eq!(&*first, &key);
                }
            }
        }
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_written_once_and_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/tickets");
    let target = Target::new(Format::Haproxy, &path);
    assert!(target.write(&ring(2), UnixTime(150)).unwrap());
    assert_eq!((mode(&path), mode(&dir.path().join("new"))), (0o600, 0o700));
    assert!(!target.write(&ring(2), UnixTime(160)).unwrap(), "unchanged");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(target.write(&ring(2), UnixTime(200)).unwrap(), "the next key has become current");
    assert_eq!(mode(&path), 0o640);
    assert_eq!(fs::read_to_string(&path).unwrap(), *haproxy(&ring(2), UnixTime(200)));
    assert_eq!(names(&dir.path().join("new")), ["tickets"], "nothing else is left behind");
}

#[test]
fn a_link_stays_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::write(&path, "").unwrap();
    symlink("real", &link).unwrap();
    assert!(Target::new(Format::Envoy, &link).write(&ring(2), UnixTime(150)).unwrap());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&path).unwrap(), *envoy(&ring(2), UnixTime(150)));
}

#[test]
fn nginx_has_a_directory_without_expired_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/tickets");
    let target = Target::new(Format::Nginx, &path);
    assert!(target.write(&ring(3), UnixTime(350)).unwrap());
    assert_eq!(mode(&path), 0o700);
    assert_eq!(names(&path).len(), 4, "three keys and tickets.conf");
    fs::write(path.join("ticket-of-somebody.key"), "").unwrap();
    fs::set_permissions(path.join("tickets.conf"), Permissions::from_mode(0o640)).unwrap();

    let mut rotated = ring(3);
    rotated.rotate(UnixTime(3850));
    assert!(target.write(&rotated, UnixTime(3850)).unwrap());
    let text = fs::read_to_string(path.join("tickets.conf")).unwrap();
    let listed: Vec<_> = text.lines().skip(1).map(|line| line.split('"').nth(1).unwrap()).collect();
    let keys = listed.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>();
    assert_eq!(keys, for_nginx(&rotated, UnixTime(3850)), "in nginx's order, by absolute names");
    assert_eq!(mode(Path::new(listed[1])), 0o640, "as tickets.conf");
    assert_eq!(mode(Path::new(listed[2])), 0o600, "mode kept");
    assert_eq!(
        names(&path).len(),
        listed.len() + 2,
        "the expired key was removed, the unrelated file was not"
    );
    assert!(!target.write(&rotated, UnixTime(3850)).unwrap());
}

/// `tickets.conf` has no secrets, and may be readable by everybody.
#[test]
fn new_keys_of_nginx_are_not_readable_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::new(Format::Nginx, dir.path());
    let main = dir.path().join("tickets.conf");
    for (conf, expected) in [(0o644, 0o640), (0o666, 0o640), (0o604, 0o600), (0o400, 0o400)] {
        fs::write(&main, "").unwrap();
        fs::set_permissions(&main, Permissions::from_mode(conf)).unwrap();
        assert!(target.write(&ring(2), UnixTime(150)).unwrap());
        assert_eq!(mode(&main), conf);
        for name in names(dir.path()).iter().filter(|name| name.ends_with(".key")) {
            assert_eq!(mode(&dir.path().join(name)), expected, "{name}: tickets.conf {conf:o}");
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}

#[test]
fn errors_name_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |format, path: &Path| {
        let error = Target::new(format, path).write(&ring(2), UnixTime(150)).unwrap_err();
        error.to_string()
    };
    assert!(refused(Format::Nginx, &file).contains("name a directory"));
    assert!(refused(Format::Nginx, &dir.path().join("a\"b")).contains("special characters"));
    assert!(refused(Format::Haproxy, dir.path()).contains("name a file"));
    assert!(refused(Format::Envoy, &file.join("keys/file")).contains("Not a directory"));
}

const VECTOR: &str = "160b7ff30a08daea4ea18f259adb409a6dedac258f5803269b42df326d0e59f0\
                      174c27ae78965e23139ea7f31118627bcbac51a46ba5c45e81011c174bec56cd\
                      6adcc3caaf0fd6d8ec3cea2862776dda";
