//! Errors in configuration files: each with its line and fix, and all at once.

use std::path::Path;

use firstflight_config::ServerConfig;

fn refusal(text: &str) -> String {
    ServerConfig::parse(text, Path::new("f.toml")).unwrap_err().to_string()
}

/// Errors of keys and types, of each section, and of their combination.
#[test]
fn all_errors_are_reported_at_once() {
    insta::assert_snapshot!("keys_and_types", refusal(include_str!("wrong/keys_and_types.toml")));
    insta::assert_snapshot!("sections", refusal(include_str!("wrong/sections.toml")));
    insta::assert_snapshot!("together", refusal(include_str!("wrong/together.toml")));
    insta::assert_snapshot!("everything", refusal(include_str!("wrong/everything.toml")));
    insta::assert_snapshot!("acme", refusal(include_str!("wrong/acme.toml")));
}

#[test]
fn named_files_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    std::fs::write(&file, include_str!("wrong/files.toml")).unwrap();
    std::fs::write(dir.path().join("token"), "hush").unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(dir.path().join("token"), readable).unwrap();
    let error = ServerConfig::read(&file).unwrap_err().to_string();
    let place = dir.path().display().to_string();
    insta::assert_snapshot!("files", error.replace(&place, "DIR"));
    assert!(!error.contains("hush"));
}

#[test]
fn paths_are_relative_to_the_file() {
    let text = "[[site]]\n[[site.route]]\nroot = \"www\"\n[tickets]\nkeys = \"file\"\nfile = \"k\"";
    let config = ServerConfig::parse(text, Path::new("/etc/firstflight/f.toml")).unwrap();
    let text = config.to_toml();
    assert!(text.contains("\"/etc/firstflight/www\""), "{text}");
    assert!(text.contains("\"/etc/firstflight/k\""), "{text}");
}

/// Each connection over HTTP/3 allocates all its streams when it starts.
#[test]
fn streams_are_limited() {
    for streams in ["0", "10001", "4294967295"] {
        let error = refusal(&format!("[limits]\nstreams = {streams}"));
        assert_eq!(error, "f.toml, line 2: streams is out of range; allowed are 1 to 10000");
    }
}
