//! The authority on disk, and whom its certificates convince.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use firstflight_certificates::authority::{
    Authority, AuthorityError, DOMAINS, NETWORKS, believed, may_vouch_for, remove,
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
fn it_is_made_once_and_is_its_users_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("deep/authority");
    assert!(Authority::open(&dir, NOW).unwrap().is_none() && believed(&dir).unwrap().is_none());
    let made = Authority::open_or_make(&dir, NOW).unwrap();
    let key = dir.join("authority.key");
    assert_eq!((mode(&dir), mode(&key), mode(made.certificate())), (0o700, 0o600, 0o600));
    let again = Authority::open_or_make(&dir, NOW + 1).unwrap();
    assert_eq!(made.name(), again.name());
    assert_eq!(believed(&dir).unwrap().as_deref(), Some(made.certificate()));
    assert_eq!(remove(&dir).unwrap().len(), 2);
    assert!(!dir.exists() && remove(&dir).unwrap().is_empty());
    assert_ne!(Authority::open_or_make(&dir, NOW).unwrap().name(), made.name());
}

#[test]
fn several_processes_make_one() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    let names: Vec<_> = std::thread::scope(|scope| {
        let make = || Authority::open_or_make(&dir, NOW).unwrap().name().to_owned();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    let left: Vec<_> = fs::read_dir(&dir).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn one_that_was_half_made_is_finished() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    let name = Authority::open_or_make(&dir, NOW).unwrap().name().to_owned();
    fs::remove_file(dir.join("authority.pem")).unwrap();
    assert!(Authority::open(&dir, NOW).unwrap().is_none());
    assert_eq!(Authority::open_or_make(&dir, NOW).unwrap().name(), name);
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    Authority::open_or_make(&dir, NOW).unwrap();
    for (name, loose, fit) in [
        ("authority.key", 0o640, 0o600),
        ("authority.key", 0o604, 0o600),
        ("authority.pem", 0o620, 0o644),
        ("", 0o770, 0o755),
    ] {
        let path = dir.join(name);
        chmod(&path, loose);
        let refused = Authority::open_or_make(&dir, NOW).unwrap_err();
        assert!(matches!(refused, AuthorityError::Open { .. }), "{name}: {refused}");
        assert!(matches!(believed(&dir), Err(AuthorityError::Open { .. })), "{name}");
        chmod(&path, fit);
        assert!(Authority::open(&dir, NOW).unwrap().is_some(), "{name}");
    }
}

#[test]
fn what_is_damaged_or_over_is_named_with_the_mend() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    let expires = Authority::open_or_make(&dir, NOW).unwrap().expires();
    assert_eq!((expires - NOW) / 86_400, 3652, "ten years");
    let over = Authority::open_or_make(&dir, expires).unwrap_err();
    assert!(matches!(over, AuthorityError::Expired { .. }), "{over}");
    for name in ["authority.pem", "authority.key"] {
        let path = dir.join(name);
        let good = fs::read(&path).unwrap();
        fs::write(&path, "nonsense").unwrap();
        let error = Authority::open_or_make(&dir, NOW).unwrap_err();
        assert!(error.to_string().contains("firstflight authority remove"), "{error}");
        fs::write(&path, good).unwrap();
    }
    fs::write(dir.join("authority.pem"), "nonsense").unwrap();
    assert!(matches!(believed(&dir), Err(AuthorityError::Damaged { .. })));
}

/// A certificate of an authority that is bound like this.
fn other_authority(constraints: Option<NameConstraints>, basic: BasicConstraints) -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(basic);
    params.name_constraints = constraints;
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn only_one_certificate_with_our_bounds_is_believed() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("authority");
    Authority::open_or_make(&dir, NOW).unwrap();
    let path = dir.join("authority.pem");
    let ours = fs::read_to_string(&path).unwrap();
    let domains = DOMAINS.iter().map(|name| GeneralSubtree::DnsName((*name).to_owned()));
    let networks = NETWORKS.iter().map(|(network, length)| {
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*network, *length))
    });
    let permitted_subtrees: Vec<_> = domains.chain(networks).collect();
    let bounds = NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() };
    let wider = |change: fn(&mut NameConstraints)| {
        let mut wider = bounds.clone();
        change(&mut wider);
        Some(wider)
    };
    let servers_alone = BasicConstraints::Constrained(0);
    let unbound = other_authority(None, servers_alone);
    for good in [ours.clone(), other_authority(Some(bounds.clone()), servers_alone)] {
        fs::write(&path, good).unwrap();
        assert!(believed(&dir).unwrap().is_some());
    }
    let more_domains = wider(|it| it.permitted_subtrees[0] = GeneralSubtree::DnsName("com".into()));
    let fewer = wider(|it| it.permitted_subtrees.truncate(5));
    let more = wider(|it| it.permitted_subtrees.push(GeneralSubtree::Rfc822Name("x.test".into())));
    for bad in [
        format!("{ours}{unbound}"),
        format!("{ours}{ours}"),
        format!("{ours}{}", unbound.replace(" CERT", " TRUSTED CERT")),
        ours.replace(" CERT", " TRUSTED CERT"),
        unbound,
        other_authority(more_domains, servers_alone),
        other_authority(fewer, servers_alone),
        other_authority(more, servers_alone),
        other_authority(Some(bounds.clone()), BasicConstraints::Unconstrained),
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_owned(),
        String::new(),
    ] {
        fs::write(&path, &bad).unwrap();
        let refused = believed(&dir);
        assert!(matches!(refused, Err(AuthorityError::Damaged { .. })), "{refused:?}: {bad}");
    }
}

#[test]
fn it_signs_for_what_it_may_vouch_for_alone() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_make(home.path(), NOW).unwrap();
    let names = ["localhost", "*.app.test", "127.0.0.1", "192.168.1.7", "::1"].map(str::to_owned);
    assert!(names.iter().all(|name| may_vouch_for(name)));
    let identity = authority.sign(&names, NOW).unwrap().identity().unwrap();
    assert!(identity.covers("localhost") && identity.covers("a.app.test"));
    assert!(identity.covers("192.168.1.7") && !identity.covers("192.168.1.8"));
    assert_eq!(identity.expires(), Some(NOW as i64 + 7 * 86_400));
    let refused = authority.sign(&["localhost".into(), "example.com".into()], NOW).unwrap_err();
    assert!(refused.to_string().contains("example.com") && !refused.to_string().contains("local"));
}
