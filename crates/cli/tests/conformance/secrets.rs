//! Secrets appear neither in the log, at any level, nor in a core dump.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use nix::sys::signal::Signal;

use crate::running::{PROGRAM, Running, Serve, fetch, firstflight, run, site, text};
use crate::table;
use crate::wire::Dialer;

/// Searches the logs of a server that uses all kinds of secrets and logs at all levels.
pub(crate) fn logs() {
    let site = site();
    let (dir, keys) = (site.path(), site.path().join("ticket.keys"));
    let made = run(firstflight(dir).args(["keys", "new"]).arg(&keys));
    assert_eq!(made.code, Some(0), "{made:?}");
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(dir.join("cert.pem"), signed.cert.pem()).unwrap();
    fs::write(dir.join("key.pem"), signed.signing_key.serialize_pem()).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (root, cert, key) = (path("root"), path("cert.pem"), path("key.pem"));
    let keys_file = keys.to_str().unwrap();
    let arguments = ["--root", &root, "--ticket-keys", keys_file, "--cert", &cert, "--key", &key];
    let server = Serve::start_in(dir, &arguments, &[("RUST_LOG", "trace")]);
    let url = format!("https://localhost:{}/index.html", server.port());
    let bearer = "Authorization: Bearer 4fb6-not-for-logs";
    for flags in [&["--tls-earlydata"][..], &["--tls-earlydata"], &["--http2"], &["--http3"]] {
        let fetched = fetch(dir, &server.cert, &url, &[flags, &["-H", bearer]].concat());
        assert_eq!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
    }
    let (stderr, log) = (server.stderr.clone(), server.log.clone());
    drop(Dialer::new(&server, "h2").connect().unwrap());
    server.stop();
    let logged = [fs::read(&stderr).unwrap(), fs::read(&log).unwrap()].concat();
    let trace = String::from_utf8_lossy(&logged).contains("TRACE");
    assert!(trace, "the log lacks a level: {}", text(&stderr));
    let mut found = Vec::new();
    let mut searched = 0;
    for (what, secret) in secrets(&signed.signing_key.serialize_der(), &text(&keys)) {
        for (form, needle) in forms(&secret) {
            searched += 1;
            if contains(&logged, &needle) {
                found.push(format!("{what} as {form}"));
            }
        }
    }
    if contains(&logged, b"4fb6-not-for-logs") {
        found.push("a request's credentials".to_owned());
    }
    table::cases("secrets searched in a log of all levels", searched, 0, found.len());
    assert!(found.is_empty(), "{found:?}");
}

/// An aborted process leaves no core dump, and other processes of its user cannot read its memory.
pub(crate) fn core_dumps() {
    let site = site();
    let dir = site.path();
    let other = leaves_core_dump(dir, "sleep", &["60"], |_| ());
    let mut owner_and_user = None;
    let stderr = dir.join("stderr");
    let root = dir.join("root");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--root", root.to_str().unwrap()];
    let ours = leaves_core_dump(dir, PROGRAM, &serve, |process| {
        crate::running::until(|| text(&stderr).contains("serving on"));
        // The file belongs to root once the process is not dumpable.
        let memory = fs::metadata(format!("/proc/{}/mem", process.0.id())).unwrap();
        owner_and_user = Some((memory.uid(), nix::unistd::getuid().as_raw()));
    });
    assert!(!ours, "it left a core dump");
    let (owner, user) = owner_and_user.unwrap();
    assert_eq!(owner, 0, "user {user} may read its memory");
    // Skipped where the machine writes no core dumps at all.
    table::cases("core dumps", 1, usize::from(!other), 0);
}

/// Whether an aborted process leaves a core dump, whose size is not limited.
fn leaves_core_dump(
    dir: &Path,
    program: &str,
    arguments: &[&str],
    meanwhile: impl FnOnce(&Running),
) -> bool {
    let mut command = Command::new("sh");
    // The program replaces the shell, and inherits the limit.
    command.args(["-c", "ulimit -c unlimited; exec \"$0\" \"$@\"", program]).args(arguments);
    command.current_dir(dir).env("HOME", dir).env_remove("XDG_DATA_HOME");
    command.env_remove("SSLKEYLOGFILE").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(fs::File::create(dir.join("stderr")).unwrap());
    let mut running = Running::start(&mut command);
    let started = crate::running::until(|| {
        let name = fs::read_link(format!("/proc/{}/exe", running.0.id()));
        name.is_ok_and(|name| name.file_name() == Path::new(program).file_name())
    });
    assert!(started, "{program} does not start");
    meanwhile(&running);
    running.signal(Signal::SIGABRT);
    running.wait().expect("it is aborted").core_dumped()
}

/// The scalar of the private key, and the ticket keys.
fn secrets(key: &[u8], keys: &str) -> Vec<(&'static str, Vec<u8>)> {
    // RFC 5915: version 1, then an octet string of 32 bytes.
    let at = key.windows(5).position(|window| window == [2, 1, 1, 4, 32]).unwrap() + 5;
    let mut secrets = vec![("the private key", key[at..at + 32].to_vec())];
    for line in keys.lines().filter_map(|line| line.strip_prefix("secret = \"")) {
        let digits = line.trim_end_matches('"');
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        secrets.push(("a ticket key", (0..digits.len()).step_by(2).map(byte).collect()));
    }
    assert!(secrets.len() > 1, "{keys}");
    secrets
}

/// The encodings in which a secret may appear. Half of the secret is enough.
fn forms(secret: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let half = &secret[..secret.len() / 2];
    let hex: String = half.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = format!("{half:?}");
    let spaced = format!("{half:02x?}");
    vec![
        ("bytes", half.to_vec()),
        ("hexadecimal", hex.clone().into_bytes()),
        ("hexadecimal in capitals", hex.to_uppercase().into_bytes()),
        ("base64", BASE64_STANDARD_NO_PAD.encode(&half[..15]).into_bytes()),
        ("a list of numbers", list.trim_matches(['[', ']']).as_bytes().to_vec()),
        ("a list of hexadecimal numbers", spaced.trim_matches(['[', ']']).as_bytes().to_vec()),
    ]
}

fn contains(all: &[u8], needle: &[u8]) -> bool {
    all.windows(needle.len()).any(|window| window == needle)
}
