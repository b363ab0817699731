//! `firstflight bench` against `firstflight serve` over loopback.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use firstflight_testkit::{Upstream, UpstreamResponse, free_port};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::program::{Ended, PROGRAM, Running, Serve, firstflight, run, site, until};

fn bench(dir: &Path, url: &str, arguments: &[&str]) -> Ended {
    run(firstflight(dir).current_dir(dir).args(["bench", url, "-o", "out"]).args(arguments))
}

fn loads(dir: &Path) -> Vec<Value> {
    record(dir)["loads"].as_array().unwrap().clone()
}

fn record(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("out/bench.json")).unwrap()).unwrap()
}

#[test]
fn each_kind_of_handshake_is_driven_and_counted() {
    let site = site();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let cert = serve.cert.display().to_string();
    for http in ["1.1", "3"] {
        let flags = ["--cacert", &cert, "--connections", "2", "--duration", "1", "--http", http];
        let ended = bench(site.path(), &url, &flags);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let loads = loads(site.path());
        let kinds = [("full", "full"), ("resumed", "resumed"), ("0-RTT", "early data accepted")];
        assert_eq!(loads.len(), kinds.len());
        for (load, (kind, handshake)) in loads.iter().zip(kinds) {
            assert_eq!((&load["kind"], &load["model"]), (&kind.into(), &"closed".into()));
            assert_eq!(load["http"], http);
            let completed = load["completed"].as_u64().unwrap();
            assert!(completed > 0, "{load}");
            assert_eq!(load["handshakes"][0][0], handshake, "{load}");
            assert_eq!(load["errors"], Value::Array(Vec::new()), "{load}");
        }
        assert!(ended.out.contains("closed, 2 at a"), "{}", ended.out);
    }
    let log = serve.stop();
    assert!(
        log.iter().any(|line| line["protocol"] == "HTTP/3" && line["early_data"] == "accepted")
    );
}

#[test]
fn an_open_loop_reports_the_requested_rate() {
    let site = site();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let cert = serve.cert.display().to_string();
    let flags = ["--cacert", &cert, "--rate", "20", "--duration", "1", "--kind", "0-RTT", "--json"];
    let ended = bench(site.path(), &url, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let record: Value = serde_json::from_str(&ended.out).unwrap();
    let load = &record["loads"][0];
    assert_eq!((&load["model"], &load["rate_wanted"]), (&"open".into(), &20.0.into()));
    assert_eq!(load["completed"].as_u64().unwrap() + load["not_begun"].as_u64().unwrap(), 20);
}

#[test]
fn an_interrupted_load_is_not_complete() {
    let site = site();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let mut command = firstflight(site.path());
    command
        .current_dir(site.path())
        .args(["bench", &url, "-k", "-o", "out", "--connections", "1", "--duration", "600"])
        .args(["--kind", "full,resumed"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = Running::start(&mut command);
    // The connection before the run, and some of the run's.
    assert!(until(|| serve.log().len() > 3));
    running.signal(Signal::SIGINT);
    assert_eq!(running.wait().and_then(|status| status.code()), Some(130));
    let record = record(site.path());
    let loads = record["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 1);
    let warning = loads[0]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("was stopped after"), "{warning}");
    assert_eq!(
        record["left_out"],
        serde_json::json!(["resumed under load: the run was interrupted"])
    );
    serve.stop();
}

#[test]
fn a_kind_that_the_server_does_not_support_is_left_out() {
    let site = site();
    let serve = Serve::files(site.path(), &["--early-data", "off"]);
    let url = format!("https://{}/", serve.address);
    let cert = serve.cert.display().to_string();
    let flags = ["--cacert", &cert, "--connections", "2", "--duration", "1"];
    let ended = bench(site.path(), &url, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let record = record(site.path());
    let loads = record["loads"].as_array().unwrap();
    let kinds: Vec<&str> = loads.iter().map(|load| load["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["full", "resumed"]);
    let [why] = &record["left_out"].as_array().unwrap()[..] else { panic!("{record}") };
    let why = why.as_str().unwrap();
    assert!(why.starts_with("0-RTT under load: "), "{why}");
    assert!(why.contains("issues no tickets that allow early data"), "{why}");
    assert!(ended.err.contains(&format!("left out: {why}\n")), "{ended:?}");
    // If nothing is left, the reason is the error.
    let ended = bench(site.path(), &url, &[&flags[..], &["--kind", "0-RTT"]].concat());
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("issues no tickets that allow early data"), "{ended:?}");

    let ended = bench(site.path(), &url, &["--cacert", &cert, "--samples", "1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("left out: TLS 1.3 0-RTT over HTTP/1.1"), "{ended:?}");
    serve.stop();
}

#[test]
fn unsupported_load_flags_are_refused_at_once() {
    let site = site();
    let url = format!("https://127.0.0.1:{}/", free_port());
    for (arguments, expected) in [
        (&["-k", "--rate", "5", "--duration", "1"][..], "refused"),
        (&["-k", "--rate", "5", "--kind", "refused"], "leave refused out"),
        (&["-k", "--rate", "5", "--tls", "1.2,1.3"], "give one"),
        (&["-k", "--rate", "5", "--http", "2"], "HTTP/1.1 and HTTP/3"),
        (&["-k", "--rate", "5", "--http", "3", "--tls", "1.2"], "QUIC needs TLS 1.3"),
        (&["-k", "--rate", "0"], "a rate above 0"),
        (&["-k", "--rate", "5", "--workload", "ping-pong"], "leave out --workload"),
    ] {
        let ended = bench(site.path(), &url, arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.err.contains(expected), "{expected}: {ended:?}");
    }
    let ended = bench(site.path(), "http://127.0.0.1/", &["--rate", "5"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("is not an https:// URL"), "{ended:?}");
}

#[test]
fn connections_are_measured_one_by_one() {
    let site = site();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let cert = serve.cert.display().to_string();
    let flags = ["--cacert", &cert, "--samples", "6", "--kind", "full,resumed,0-RTT,refused"];
    let ended = bench(site.path(), &url, &[&flags[..], &["--http", "1.1,2"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let record = record(site.path());
    let captures = record["captures"].as_array().map_or(0, Vec::len);
    match nix::unistd::geteuid().is_root() {
        // One for each cell, and one for the control's second arm.
        true => assert_eq!((&record["witness"], captures), (&"packets".into(), 4 * 2 + 1)),
        false => assert_eq!((&record["witness"], captures), (&"kernel".into(), 0)),
    }
    let cells = record["cells"].as_array().unwrap();
    for sample in record["samples"].as_array().unwrap() {
        let cell = &cells[sample["cell"].as_u64().unwrap() as usize];
        let label = sample["label"].as_str().unwrap();
        let handshake = match cell["kind"].as_str().unwrap() {
            "0-RTT" => "early data accepted",
            "refused" => "early data refused",
            kind => kind,
        };
        assert!(label.contains(handshake), "{label} in {cell}");
    }
    // The server's own log confirms the early requests.
    let log = serve.stop();
    let early = log.iter().filter(|line| line["early_data"] == "accepted").count();
    assert!(early >= 2 * 6, "{early} early requests in the server's log");
}

#[test]
fn connections_over_quic_are_measured_one_by_one() {
    let site = site();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let cert = serve.cert.display().to_string();
    let flags = ["--cacert", &cert, "--samples", "6", "--http", "3", "--token", "off,on"];
    let ended = bench(site.path(), &url, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.err.contains("starting"), "nothing is started: {}", ended.err);
    let record = record(site.path());
    let cells = record["cells"].as_array().unwrap();
    // Full, and resumed and 0-RTT without and with a token, and the control's second arm.
    assert_eq!(cells.len(), 1 + 2 * 2 + 1, "{}", record["left_out"]);
    for sample in record["samples"].as_array().unwrap() {
        assert!(sample["label"].as_str().unwrap().contains("QUIC"), "{sample}");
        assert!(sample["fault"].is_null(), "{sample}");
    }
    let page = fs::read_to_string(site.path().join("out/report.html")).unwrap();
    assert!(page.contains("<section id=\"bars\""), "grouped bars in the report");
    let log = serve.stop();
    let early = log.iter().filter(|line| line["early_data"] == "accepted").count();
    assert!(early >= 3 * 6, "{early} early requests in the server's log");
}

/// As a page with a token or a time in it.
#[test]
fn a_page_whose_length_varies_is_compared() {
    let site = site();
    let responses = AtomicUsize::new(0);
    let upstream = Upstream::responding(move |_| UpstreamResponse {
        body: "x".repeat(1_000 + responses.fetch_add(1, Ordering::Relaxed)),
        ..UpstreamResponse::default()
    });
    let serve = Serve::start(site.path(), &["--upstream", &upstream.url()]);
    let url = format!("https://{}/", serve.address);
    let cert = serve.cert.display().to_string();
    let flags = ["--cacert", &cert, "--samples", "8", "--witness", "kernel"];
    let ended = bench(site.path(), &url, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let record = record(site.path());
    assert!(!record["effects"].as_array().unwrap().is_empty(), "{ended:?}");
    // Each matrix has it in its title.
    assert_eq!(ended.out.matches("HTTP GET of ").count(), 1, "{}", ended.out);
    serve.stop();
}

#[test]
fn without_capture_permission_the_kernel_is_the_witness() {
    let site = site();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = site.path().join("firstflight");
    fs::copy(PROGRAM, &program).unwrap();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let as_user = |arguments: &[&str]| {
        let mut command = match nix::unistd::geteuid().is_root() {
            true => Command::new("setpriv"),
            false => Command::new("env"),
        };
        if nix::unistd::geteuid().is_root() {
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        }
        command.current_dir(site.path()).env("HOME", site.path()).arg(&program);
        run(command.args(["bench", &url, "-k", "--samples", "2", "-o", "out"]).args(arguments))
    };
    let ended = as_user(&[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let record = record(site.path());
    assert_eq!(record["witness"], "kernel");
    let notes = record["servers"][0]["notes"].to_string();
    assert!(notes.contains("no packets were captured"), "{notes}");
    assert!(notes.contains("setcap cap_net_raw+ep"), "{notes}");
    let ended = as_user(&["--witness", "packets"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("run it as root"), "{ended:?}");
}

#[test]
fn witness_kernel_is_used_on_request() {
    let site = site();
    let serve = Serve::files(site.path(), &[]);
    let url = format!("https://{}/", serve.address);
    let ended = bench(site.path(), &url, &["-k", "--samples", "2", "--witness", "kernel"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(record(site.path())["witness"], "kernel");
    let ended = bench(site.path(), &url, &["-k", "--rate", "5", "--witness", "packets"]);
    assert!(ended.err.contains("--witness packets does not work with load"), "{ended:?}");
}
