use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn names() -> Vec<String> {
    vec!["example.test".to_owned()]
}

fn issued() -> IssuedCertificate {
    issued_for(&["example.test"])
}

fn issued_for(names: &[&str]) -> IssuedCertificate {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(names.clone()).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    IssuedCertificate::accept(&names, &certificate.pem(), key.serialize_pem().into()).unwrap()
}

fn open(root: &Path) -> StateDirectory {
    StateDirectory::open(root, &Directory::default()).unwrap()
}

#[test]
fn stored_state_is_restored() {
    let root = tempfile::tempdir().unwrap();
    let state = open(&root.path().join("deep/er/acme"));
    let (issued, mut history) = (issued(), History { seed: 7, ..History::default() });
    history.success(5);
    state.save_certificate(&issued).unwrap();
    state.save_history(&names(), &history).unwrap();
    let stored = state.certificate(&names(), 0).unwrap();
    let restored = stored.issued.unwrap();
    assert_eq!((&restored.chain, &restored.key), (&issued.chain, &issued.key));
    assert_eq!((restored.not_before, restored.not_after), (issued.not_before, issued.not_after));
    assert_eq!(stored.history, history);
    assert!(state.certificate(&["other.test".to_owned()], 0).unwrap().issued.is_none());
}

#[test]
fn a_site_whose_names_changed_keeps_its_certificate() {
    let root = tempfile::tempdir().unwrap();
    let state = open(&root.path().join("acme"));
    let (small, large) = (issued_for(&["a.test"]), issued_for(&["a.test", "b.test"]));
    state.save_certificate(&small).unwrap();
    state.save_certificate(&large).unwrap();
    let found = |names: &[&str], now| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        state.certificate(&names, now).unwrap().issued.map(|it| (it.names, it.chain))
    };
    let (a, b) = ("a.test".to_owned(), "b.test".to_owned());
    // A name was added: the certificate does not cover all names.
    let both = Some((vec![a, b.clone()], large.chain.clone()));
    assert_eq!(found(&["a.test", "b.test", "c.test"], 0), both);
    // A name was removed: the certificate covers all names.
    assert_eq!(found(&["b.test"], 0), Some((vec![b], large.chain.clone())));
    assert_eq!(found(&["b.test"], large.not_after), None);
    assert_eq!(found(&["c.test"], 0), None);
}

#[test]
fn other_users_have_no_access() {
    let root = tempfile::tempdir().unwrap();
    let acme = root.path().join("acme");
    let state = open(&acme);
    state.save_certificate(&issued()).unwrap();
    state.save_history(&names(), &History::default()).unwrap();
    state.save_account(&Account { contact: Vec::new(), credentials: 1 }).unwrap();
    let _lock = state.lock().unwrap().unwrap();
    assert_eq!(fs::metadata(&acme).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(&state.directory).unwrap().mode() & 0o777, 0o700);
    let files: Vec<_> = fs::read_dir(&state.directory).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 4);
    for file in files {
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{:?}", file.path());
    }
    fs::set_permissions(&acme, Permissions::from_mode(0o750)).unwrap();
    let error = StateDirectory::open(&acme, &Directory::default()).unwrap_err().to_string();
    assert!(error.contains("mode 750") && error.contains("chmod 700"), "{error}");
}

#[test]
fn damaged_files_are_renamed() {
    let root = tempfile::tempdir().unwrap();
    let state = open(root.path().join("acme").as_path());
    state.save_certificate(&issued()).unwrap();
    let (pem, json) = state.paths(&names());
    let complete = fs::read_to_string(&pem).unwrap();
    let other = issued();
    let half = &complete[..complete.len() / 2];
    for damage in ["", "rubbish", half, &format!("{}{}", *other.key, issued().chain)] {
        fs::write(&pem, damage).unwrap();
        fs::write(&json, damage).unwrap();
        fs::write(state.account_path(), damage).unwrap();
        let stored = state.certificate(&names(), 0).unwrap();
        assert!(stored.issued.is_none() && stored.history == History::default());
        assert!(state.account::<u32>().unwrap().is_none());
        for path in [&pem, &json, &state.account_path()] {
            let aside = PathBuf::from(format!("{}.aside", path.display()));
            assert!(!path.exists() && fs::read_to_string(aside).unwrap() == damage);
        }
    }
    fs::write(&pem, [0xff, 0xfe]).unwrap();
    assert!(state.certificate(&names(), 0).unwrap().issued.is_none() && !pem.exists());
}

#[test]
fn one_process_holds_the_lock() {
    let root = tempfile::tempdir().unwrap();
    let acme = root.path().join("acme");
    let (first, second) = (open(&acme), open(&acme));
    let lock = first.lock().unwrap();
    assert!(lock.is_some() && second.lock().unwrap().is_none());
    drop(lock);
    assert!(second.lock().unwrap().is_some());
}

#[test]
fn each_authority_has_its_own_directory() {
    let root = tempfile::tempdir().unwrap();
    let of = |url: &str| {
        StateDirectory::open(root.path().join("a").as_path(), &url.parse().unwrap()).unwrap()
    };
    let (one, other) = (of("https://ca.test/one"), of("https://ca.test/two"));
    one.save_certificate(&issued()).unwrap();
    assert!(other.certificate(&names(), 0).unwrap().issued.is_none());
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = StateDirectory::open(file.path(), &Directory::default()).unwrap_err().to_string();
    assert!(error.contains("it is not a directory"), "{error}");
    let error = StateDirectory::open(&file.path().join("acme"), &Directory::default()).unwrap_err();
    assert!(error.to_string().contains("state in [acme]"), "{error}");
}

/// An I/O error or missing permission does not mean that a file is damaged.
#[test]
fn unreadable_files_are_left_in_place() {
    let root = tempfile::tempdir().unwrap();
    let state = open(&root.path().join("acme"));
    let (pem, json) = state.paths(&names());
    for path in [&pem, &json, &state.account_path()] {
        // Root can read every file, but not a directory as a file.
        fs::create_dir(path).unwrap();
        let error = match path.ends_with("account.json") {
            true => state.account::<u32>().map(drop).unwrap_err(),
            false => state.certificate(&names(), 0).map(drop).unwrap_err(),
        };
        assert!(matches!(&error, AcmeError::StateDirectory { path: named, .. } if named == path));
        assert!(error.to_string().contains("this user can read"), "{error}");
        assert!(path.exists());
        fs::remove_dir(path).unwrap();
    }
}

#[test]
fn no_files_are_created_in_the_directory_of_another_user() {
    let root = tempfile::tempdir().unwrap();
    let acme = root.path().join("acme");
    open(&acme);
    // Only root can change the owner; without root this test checks nothing.
    if std::os::unix::fs::chown(&acme, Some(65_534), None).is_ok() {
        let error = StateDirectory::open(&acme, &Directory::default()).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534") && error.contains("chown"), "{error}");
    }
}

#[test]
fn an_order_is_resumed_until_its_certificate_is_stored() {
    let root = tempfile::tempdir().unwrap();
    let state = open(&root.path().join("acme"));
    let issued = issued();
    let pending = || PendingOrder { url: "u".to_owned(), key: issued.key.clone(), since: 1000 };
    state.save_pending(&names(), &pending()).unwrap();
    let path = state.paths(&names()).0.with_extension("order");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let stored = |now| state.pending(&names(), now).unwrap().map(|it| it.key);
    assert_eq!(stored(1000 + 36 * 3600), Some(issued.key.clone()));
    // Not forever, even with a wrong clock.
    assert_eq!(stored(1001 + 36 * 3600), None);
    assert!(!path.exists());
    state.save_pending(&names(), &pending()).unwrap();
    state.save_certificate(&issued).unwrap();
    assert!(!path.exists());
    // Killed between the two writes.
    state.save_pending(&names(), &pending()).unwrap();
    assert_eq!(stored(1000), None);
}
