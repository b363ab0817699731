//! The authority's files, and which clients accept its certificates.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use firstflight_certificates::authority::{
    Authority, AuthorityError, PERMITTED_DOMAINS, PERMITTED_NETWORKS, is_permitted_name, name_in,
    remove, trust_anchor,
};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, GeneralSubtree, IsCa, KeyPair, NameConstraints,
};

const NOW: u64 = 1_790_000_000;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_authority_is_created_once_and_is_private() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("deep/authority");
    assert!(Authority::open(&dir, NOW).unwrap().is_none() && trust_anchor(&dir).unwrap().is_none());
    let created = Authority::open_or_create(&dir, NOW).unwrap();
    let key = dir.join("authority.key");
    assert_eq!((mode(&dir), mode(&key), mode(created.certificate())), (0o700, 0o600, 0o600));
    let again = Authority::open_or_create(&dir, NOW + 1).unwrap();
    assert_eq!(created.name(), again.name());
    assert_eq!(trust_anchor(&dir).unwrap().as_deref(), Some(created.certificate()));
    assert_eq!(remove(&dir).unwrap().len(), 2);
    assert!(!dir.exists() && remove(&dir).unwrap().is_empty());
    assert_ne!(Authority::open_or_create(&dir, NOW).unwrap().name(), created.name());
}

#[test]
fn concurrent_processes_create_one_authority() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    let names: Vec<_> = std::thread::scope(|scope| {
        let make = || Authority::open_or_create(&dir, NOW).unwrap().name().to_owned();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    let files: Vec<_> = fs::read_dir(&dir).unwrap().collect();
    assert_eq!(files.len(), 2, "{files:?}");
}

#[test]
fn an_incomplete_authority_is_completed() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    let name = Authority::open_or_create(&dir, NOW).unwrap().name().to_owned();
    fs::remove_file(dir.join("authority.pem")).unwrap();
    assert!(Authority::open(&dir, NOW).unwrap().is_none());
    assert_eq!(Authority::open_or_create(&dir, NOW).unwrap().name(), name);
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    Authority::open_or_create(&dir, NOW).unwrap();
    for (name, loose, fit) in [
        ("authority.key", 0o640, 0o600),
        ("authority.key", 0o604, 0o600),
        ("authority.pem", 0o620, 0o644),
        ("", 0o770, 0o755),
    ] {
        let path = dir.join(name);
        chmod(&path, loose);
        let refused = Authority::open_or_create(&dir, NOW).unwrap_err();
        assert!(matches!(refused, AuthorityError::AccessibleByOthers { .. }), "{name}: {refused}");
        assert!(
            matches!(trust_anchor(&dir), Err(AuthorityError::AccessibleByOthers { .. })),
            "{name}"
        );
        chmod(&path, fit);
        assert!(Authority::open(&dir, NOW).unwrap().is_some(), "{name}");
    }
}

#[test]
fn the_name_follows_from_the_key_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    assert_eq!(name_in(&dir), None);
    let created = Authority::open_or_create(&dir, NOW).unwrap();
    let expired = Authority::open(&dir, created.expires());
    assert!(matches!(expired, Err(AuthorityError::Expired { .. })), "{expired:?}");
    let key = dir.join("authority.key");
    chmod(&key, 0o644);
    fs::write(created.certificate(), "nonsense").unwrap();
    assert!(Authority::open(&dir, NOW).is_err());
    assert_eq!(name_in(&dir).as_deref(), Some(created.name()));
    fs::write(&key, "nonsense").unwrap();
    assert_eq!(name_in(&dir), None);
}

#[test]
fn damaged_and_expired_authorities_are_reported_with_the_fix() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    let expires = Authority::open_or_create(&dir, NOW).unwrap().expires();
    assert_eq!((expires - NOW) / 86_400, 3652, "ten years");
    let expired = Authority::open_or_create(&dir, expires).unwrap_err();
    assert!(matches!(expired, AuthorityError::Expired { .. }), "{expired}");
    for name in ["authority.pem", "authority.key"] {
        let path = dir.join(name);
        let good = fs::read(&path).unwrap();
        fs::write(&path, "nonsense").unwrap();
        let error = Authority::open_or_create(&dir, NOW).unwrap_err();
        assert!(error.to_string().contains("firstflight authority remove"), "{error}");
        fs::write(&path, good).unwrap();
    }
    fs::write(dir.join("authority.pem"), "nonsense").unwrap();
    assert!(matches!(trust_anchor(&dir), Err(AuthorityError::Damaged { .. })));
}

/// A certificate of an authority with these constraints.
fn other_authority(constraints: Option<NameConstraints>, basic: BasicConstraints) -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(basic);
    params.name_constraints = constraints;
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn only_one_certificate_with_our_constraints_is_trusted() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    Authority::open_or_create(&dir, NOW).unwrap();
    let path = dir.join("authority.pem");
    let ours = fs::read_to_string(&path).unwrap();
    let domains = PERMITTED_DOMAINS.iter().map(|name| GeneralSubtree::DnsName((*name).to_owned()));
    let networks = PERMITTED_NETWORKS.iter().map(|(network, length)| {
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*network, *length))
    });
    let permitted_subtrees: Vec<_> = domains.chain(networks).collect();
    let constraints = NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() };
    let changed = |change: fn(&mut NameConstraints)| {
        let mut changed = constraints.clone();
        change(&mut changed);
        Some(changed)
    };
    let leaves_only = BasicConstraints::Constrained(0);
    let unbound = other_authority(None, leaves_only);
    for good in [ours.clone(), other_authority(Some(constraints.clone()), leaves_only)] {
        fs::write(&path, good).unwrap();
        assert!(trust_anchor(&dir).unwrap().is_some());
    }
    let other_domain =
        changed(|it| it.permitted_subtrees[0] = GeneralSubtree::DnsName("com".into()));
    let fewer = changed(|it| it.permitted_subtrees.truncate(5));
    let more =
        changed(|it| it.permitted_subtrees.push(GeneralSubtree::Rfc822Name("x.test".into())));
    for bad in [
        format!("{ours}{unbound}"),
        format!("{ours}{ours}"),
        format!("{ours}{}", unbound.replace(" CERT", " TRUSTED CERT")),
        ours.replace(" CERT", " TRUSTED CERT"),
        unbound,
        other_authority(other_domain, leaves_only),
        other_authority(fewer, leaves_only),
        other_authority(more, leaves_only),
        other_authority(Some(constraints.clone()), BasicConstraints::Unconstrained),
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_owned(),
        String::new(),
    ] {
        fs::write(&path, &bad).unwrap();
        let refused = trust_anchor(&dir);
        assert!(matches!(refused, Err(AuthorityError::Damaged { .. })), "{refused:?}: {bad}");
    }
}

#[test]
fn an_authority_signs_only_for_permitted_names() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_create(home.path(), NOW).unwrap();
    let names = ["localhost", "*.app.test", "127.0.0.1", "192.168.1.7", "::1"].map(str::to_owned);
    assert!(names.iter().all(|name| is_permitted_name(name)));
    let identity = authority.sign(&names, NOW).unwrap().identity().unwrap();
    assert!(identity.covers("localhost") && identity.covers("a.app.test"));
    assert!(identity.covers("192.168.1.7") && !identity.covers("192.168.1.8"));
    assert_eq!(identity.expires(), Some(NOW as i64 + 7 * 86_400));
    let refused = authority.sign(&["localhost".into(), "example.com".into()], NOW).unwrap_err();
    assert!(refused.to_string().contains("example.com") && !refused.to_string().contains("local"));
}
