use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use tempfile::TempDir;

use super::*;

const NOW: UnixTime = UnixTime(1_790_000_000);

fn key_file() -> (TempDir, KeyFile) {
    let directory = TempDir::new().expect("a temporary directory");
    let file = KeyFile::new(directory.path().join("ticket-keys.toml"));
    (directory, file)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("the file is there").mode() & 0o777
}

#[test]
fn a_new_file_reads_back_and_only_its_owner_reads_it() {
    let (directory, file) = key_file();
    let schedule = Schedule::new(Duration::from_secs(3600), Duration::from_secs(7200)).unwrap();
    let ring = file.write_new(schedule, NOW).expect("written");
    assert_eq!(mode(file.path()), 0o600);
    assert_eq!(file.read().expect("read back"), ring);
    let files = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 1, "nothing else is left in the directory");
}

#[test]
fn a_new_file_never_overwrites() {
    let (directory, file) = key_file();
    fs::write(file.path(), "precious").unwrap();
    let error = file.write_new(Schedule::default(), NOW).expect_err("it exists");
    assert!(matches!(error, FileError::Exists { .. }), "{error}");
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "precious");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let nowhere = KeyFile::new(directory.path().join("no/such/place"));
    let error = nowhere.write_new(Schedule::default(), NOW).expect_err("no directory");
    assert!(matches!(error, FileError::Write { .. }), "{error}");
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_fix() {
    let (_directory, file) = key_file();
    file.write_new(Schedule::default(), NOW).expect("written");
    for refused in [0o644, 0o640, 0o620, 0o601] {
        fs::set_permissions(file.path(), fs::Permissions::from_mode(refused)).unwrap();
        let error = file.read().expect_err("others can read it").to_string();
        assert!(error.contains(&format!("run `chmod 600 {}`", file.path().display())), "{error}");
        assert!(error.contains(&format!("{refused:o}")), "{error}");
        assert!(file.rotate(NOW).is_err());
    }
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o400)).unwrap();
    assert!(file.read().is_ok());
}

#[test]
fn a_directory_or_pipe_is_refused_without_blocking() {
    let (directory, file) = key_file();
    assert!(matches!(file.read(), Err(FileError::Read { .. })));
    assert!(matches!(KeyFile::new(directory.path()).read(), Err(FileError::Read { .. })));
    let made = std::process::Command::new("mkfifo").arg("-m600").arg(file.path()).status();
    assert!(made.expect("mkfifo runs").success());
    assert!(matches!(file.read(), Err(FileError::Read { .. })));
}

#[test]
fn rotate_replaces_the_file_and_keeps_links_and_mode() {
    let (directory, file) = key_file();
    let before = file.write_new(Schedule::default(), NOW).expect("written");
    let link = KeyFile::new(directory.path().join("link"));
    symlink(file.path(), link.path()).unwrap();
    let inode = fs::metadata(file.path()).unwrap().ino();
    let later = NOW.after(Duration::from_secs(3600));
    let after = link.rotate(later).expect("rotated");
    assert_eq!(file.read().expect("read back"), after);
    assert_eq!(after.current(later).key, before.keys()[1].key);
    assert!(fs::symlink_metadata(link.path()).unwrap().is_symlink());
    assert_ne!(fs::metadata(file.path()).unwrap().ino(), inode, "replaced, not rewritten");
    assert_eq!(mode(file.path()), 0o600);
}

/// The text of a valid file, to be modified.
fn valid_text() -> String {
    let key = |digit: &str, time| {
        let (name, secret) = (digit.repeat(32), digit.repeat(64));
        format!("[[key]]\nname = \"{name}\"\nsecret = \"{secret}\"\nnot_before = {time}\n")
    };
    let head = "version = 1\nrotation_seconds = 43200\nlifetime_seconds = 43200\n";
    format!("{head}{}{}", key("a", 5), key("b", 6))
}

#[test]
fn a_malformed_file_is_named_with_its_line_and_what_is_allowed() {
    let file = KeyFile::new("ring.toml");
    assert!(file.parse(&valid_text()).is_ok());
    for (from, to, expected) in [
        ("version = 1", "version = 2", "line 1: `version` must be 1, not 2"),
        ("version = 1\n", "", "line 1: missing field `version` (a ticket-key file has"),
        ("= 43200\nl", "= 5\nl", "line 2: the rotation period must be 60 to 604800 seconds"),
        ("seconds = 43200\n[", "seconds = 0\n[", "line 3: the ticket lifetime must be 1 to 604800"),
        ("\"aaaa", "\"aag", "line 5: `name` must be 32 hexadecimal digits; it has 31 characters"),
        ("bb\"\nn", "\"\nn", "line 10: `secret` must be 64 hexadecimal digits; it has 62"),
        ("not_before = 6", "not_before = 5", "line 8: the keys' times must ascend"),
        ("not_before = 6", "not_before = -6", "line 11: "),
        ("not_before = 6", "not_before =", "line 11: "),
        (&"b".repeat(32), &"a".repeat(32), "line 8: each key's name may occur only once"),
        ("not_before = 5", "not_after = 5", "line 7: unknown field `not_after`"),
    ] {
        let text = valid_text().replacen(from, to, 1);
        assert_ne!(text, valid_text());
        let error = file.parse(&text).expect_err(expected).to_string();
        assert!(error.starts_with("ring.toml line ") && error.contains(expected), "{error}");
    }
    let empty = "version = 1\nrotation_seconds = 60\nlifetime_seconds = 60\nkey = []\n";
    let error = file.parse(empty).expect_err("no key").to_string();
    assert!(error.contains("at least one key"), "{error}");
}

#[test]
fn no_message_shows_a_secret() {
    let file = KeyFile::new("ring.toml");
    for end in ["", "c\"", "\" x", "\"\nfoo = 1"] {
        let text = valid_text().replacen(&format!("{}\"", "b".repeat(64)), &"c".repeat(60), 1);
        let text = text.replacen("cccc\n", &format!("cccc{end}\n"), 1);
        let error = file.parse(&text).expect_err("broken").to_string();
        assert!(!error.contains("cccc"), "{error}");
    }
    // A secret where something else belongs: the parser's own message would quote it.
    let secret = "c".repeat(64);
    for misplaced in [format!("not_before = \"{secret}\""), format!("{secret} = 6")] {
        let text = valid_text().replacen("not_before = 6", &misplaced, 1);
        let error = file.parse(&text).expect_err("broken").to_string();
        assert!(!error.contains("cccc") && error.contains("(not shown)"), "{error}");
    }
}

#[test]
fn a_huge_file_is_refused() {
    let (_directory, file) = key_file();
    file.write_new(Schedule::default(), NOW).expect("written");
    fs::write(file.path(), "#".repeat(10 * MAX_BYTES as usize)).unwrap();
    let error = file.read().expect_err("too large").to_string();
    assert!(error.contains("65536 bytes at most"), "{error}");
}

proptest::proptest! {
    #[test]
    fn garbage_never_panics(text in ".{0,300}", at in 0usize..500) {
        let file = KeyFile::new("ring.toml");
        proptest::prop_assert!(file.parse(&text).is_err());
        let mut broken = valid_text();
        broken.insert_str(at.min(broken.len()), &text);
        let _ = file.parse(&broken);
    }
}
