//! What the program says on stderr, for programs to read.

use std::process::Stdio;

use serde_json::Value;

use crate::running::{Running, firstflight, site, text, until};

#[test]
fn log_messages_are_json_on_request() {
    let dir = site();
    let said = dir.path().join("said");
    let mut command = firstflight(dir.path());
    command
        .env("FIRSTFLIGHT_LOG_FORMAT", "json")
        .args(["serve", "--listen", "127.0.0.1:0", "--root"])
        .arg(dir.path().join("root"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&said).unwrap());
    let _running = Running::start(&mut command);
    assert!(until(|| text(&said).contains("serving on")), "{}", text(&said));
    for line in text(&said).lines() {
        let message: Value = serde_json::from_str(line).expect(line);
        assert!(message["level"].is_string() && message["fields"]["message"].is_string(), "{line}");
    }
}
