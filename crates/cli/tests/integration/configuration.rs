//! `serve --config`: the configuration file, overridden by environment and flags.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::program::{PAGE, Running, Serve, firstflight, run, site, text, until};

/// Creates a site in `dir`: a file to serve, and a configuration with these further lines.
fn create_site(dir: &Path, more: &str) {
    fs::create_dir(dir.join("root")).unwrap();
    fs::write(dir.join("root/index.html"), PAGE).unwrap();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n\n[[site]]\nnames = [\"localhost\"]\n\n\
         [[site.route]]\nroot = \"root\"\n\n{more}"
    );
    fs::write(dir.join("config.toml"), text).unwrap();
}

#[test]
fn check_prints_what_would_be_served() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    create_site(
        dir,
        "[[site.route]]\npath = \"/api\"\nupstream = \"app\"\nearly_data = \"strict\"\n\
         [[site.route]]\npath = \"/api/a\"\nupstream = \"app\"\n\
         [[site]]\nnames = [\"*.example.test\", \"example.org\"]\n[[site.route]]\nredirect = \"https://localhost/\"\n\
         [upstream.app]\nservers = [\"http://127.0.0.1:1\", \"unix:/app\"]\n\
         [admin]\naddress = \"127.0.0.1:0\"\n",
    );
    let args = ["serve", "--check", "--config", "config.toml"];
    let ended = run(firstflight(dir).current_dir(dir).args(args));
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    insta::assert_snapshot!(ended.out);
}

#[test]
fn check_warns_about_a_private_key_that_others_may_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let certificate = "certificate = \"cert.pem\"\nkey = \"key.pem\"\n";
    create_site(
        dir,
        &format!("[[site]]\nnames = [\"a.test\"]\n{certificate}[[site.route]]\nroot = \"root\"\n"),
    );
    crate::lifecycle::certify(dir);
    let check = |mode| {
        fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(mode)).unwrap();
        let arguments = ["serve", "--check", "--config", "config.toml"];
        let ended = run(firstflight(dir).current_dir(dir).args(arguments));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.err
    };
    assert_eq!(check(0o600), "");
    for mode in [0o644, 0o604, 0o660] {
        let stderr = check(mode);
        assert!(stderr.starts_with("warning: others may read the private key"), "{stderr}");
        assert!(stderr.contains("chmod 600"), "{stderr}");
    }
}

#[test]
fn the_effective_configuration_is_printed_and_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    create_site(dir, "[limits]\nstreams = 7\nidle_timeout = \"5s\"\n");
    let print = |args: &[&str], environment: &[(&str, &str)]| {
        let mut command = firstflight(dir);
        command.current_dir(dir).args(["serve", "--print-config"]).args(args);
        let ended = run(command.envs(environment.iter().copied()));
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
        ended.out
    };
    let file = ["--config", "config.toml"];
    let plain = print(&file, &[]);
    assert!(plain.contains("streams = 7\n") && plain.contains("idle_timeout = \"5s\"\n"));
    assert!(plain.contains("header_timeout = \"10s\"\n"), "defaults are filled in");
    fs::write(dir.join("again.toml"), &plain).unwrap();
    assert_eq!(print(&["--config", "again.toml"], &[]), plain);
    // The environment overrides the file, and flags override both.
    let environment =
        [("FIRSTFLIGHT_LISTEN", "127.0.0.1:7"), ("FIRSTFLIGHT_CONFIG", "config.toml")];
    assert!(print(&[], &environment).contains("address = \"127.0.0.1:7\""));
    let flags = ["--listen", "127.0.0.1:8", "--idle-timeout", "9s"];
    let overridden = print(&flags, &environment);
    assert!(
        overridden.contains("address = \"127.0.0.1:8\"")
            && overridden.contains("idle_timeout = \"9s\"")
    );
}

#[test]
fn a_configuration_file_is_enough_to_serve() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    create_site(
        dir,
        "[tls]\nsave_self_signed = \"cert.pem\"\n\
         [log]\nformat = \"text\"\n[access_log]\nfile = \"log\"\n",
    );
    let serve = Serve::configured(dir);
    let url = format!("https://localhost:{}/", serve.address.port());
    let fetch = ["fetch", "--cacert", "cert.pem", "--resolve"];
    let resolve = format!("localhost:{}:127.0.0.1", serve.address.port());
    let ended = run(firstflight(dir).current_dir(dir).args(fetch).args([&resolve, &url]));
    assert_eq!((ended.code, &*ended.out), (Some(0), PAGE), "{}", ended.err);
}

#[test]
fn all_errors_of_a_file_are_reported_with_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    create_site(dir, "[limits]\nstreems = 7\n[log]\nformat = \"xml\"\n");
    for more in [&["--check"][..], &[]] {
        let args = ["serve", "--config", "config.toml"];
        let ended = run(firstflight(dir).current_dir(dir).args(args).args(more));
        assert_eq!((ended.code, &*ended.out), (Some(2), ""));
        let (first, second) = ended.err.split_once('\n').unwrap();
        let did_you_mean = "firstflight: config.toml, line 11: limits has no key `streems`; did you mean `streams`?";
        assert_eq!(first, did_you_mean);
        assert!(second.starts_with("config.toml, line 13: unknown value `xml`"), "{second}");
    }
}

#[test]
fn missing_settings_are_named_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (args, expected) in [
        (&["serve"][..], ["nothing to serve", "--root DIR"]),
        (&["serve", "--root", "."], ["no address", "[[listener]]"]),
        (&["serve", "--root", ".", "--log-level", "a=loud"], ["loud", "debug"]),
        (&["serve", "--root", ".", "--log-level", "inof"], ["inof", "error, warn, info"]),
        (
            &["serve", "--root", ".", "--upstream", "http://a"],
            ["give only one of", "FIRSTFLIGHT_ROOT"],
        ),
        (&["serve", "--root", ".", "--admin", "9090"], ["9090", "unix:"]),
    ] {
        let args: Vec<_> = match args.contains(&"--log-level") {
            true => [args, &["--listen", "127.0.0.1:0"]].concat(),
            false => args.to_vec(),
        };
        let ended = run(firstflight(dir).args(&args));
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert!(expected.iter().all(|word| ended.err.contains(word)), "{args:?}: {}", ended.err);
    }
}

#[test]
fn rust_log_may_name_a_module() {
    let site = site();
    let check = |name: &str| {
        let mut command = firstflight(site.path());
        run(command.current_dir(site.path()).args(["serve", "--check", "root"]).env(name, "hyper"))
    };
    let (directives, level) = (check("RUST_LOG"), check("FIRSTFLIGHT_LOG"));
    assert_eq!(directives.code, Some(0), "{directives:?}");
    assert!(level.code == Some(2) && level.err.contains("not a log level"), "{level:?}");
}

#[test]
fn flags_override_variables_of_other_content_and_certificates() {
    let site = site();
    let dir = site.path();
    let check = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = firstflight(dir);
        command.current_dir(dir).args(["serve", "--check", "--listen", "127.0.0.1:0"]);
        run(command.args(arguments).envs(variables.iter().copied()))
    };
    let (root, upstream) = (("FIRSTFLIGHT_ROOT", "none"), ("FIRSTFLIGHT_UPSTREAM", "http://a:1"));
    let files = [("FIRSTFLIGHT_CERT", "none.pem"), ("FIRSTFLIGHT_KEY", "none.pem")];
    let acme = ("FIRSTFLIGHT_ACME", "a.test");
    for (arguments, variables, expected) in [
        (&["root"][..], &[root][..], "files below root"),
        (&["--root", "root"], &[upstream], "files below root"),
        (&["--upstream", "http://b:1"], &[root], "upstream: http://b:1"),
        (&["root", "--self-signed", "a.test"], &files, "self-signed"),
        (&["root", "--self-signed", "a.test"], &[acme], "self-signed"),
        (&["--ping-pong"], &[acme], "PONG for each PING"),
    ] {
        let checked = check(arguments, variables);
        assert_eq!((checked.code, &*checked.err), (Some(0), ""), "{arguments:?}: {checked:?}");
        assert!(checked.out.contains(expected), "{arguments:?}: {checked:?}");
    }
    let (one, other) = (["--self-signed", "a.test"], ["--cert", "none.pem", "--key", "none.pem"]);
    let two_certificates = [&["root"], &one[..], &other].concat();
    let none: &[(&str, &str)] = &[];
    for (arguments, variables) in [
        (&two_certificates[..], none),
        (&["root", "--root", "root"], none),
        (&["--root", "root", "--upstream", "http://b:1"], none),
        (&[], &[root, upstream]),
    ] {
        let refused = check(arguments, variables);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.err.contains("give only one of"), "{arguments:?}: {refused:?}");
    }
}

#[test]
fn log_messages_are_json_on_request() {
    let dir = site();
    let stderr = dir.path().join("stderr");
    let mut command = firstflight(dir.path());
    command
        .env("FIRSTFLIGHT_LOG_FORMAT", "json")
        .args(["serve", "--listen", "127.0.0.1:0", "--root"])
        .arg(dir.path().join("root"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&stderr).unwrap());
    let _running = Running::start(&mut command);
    assert!(until(|| text(&stderr).contains("serving on")), "{}", text(&stderr));
    for line in text(&stderr).lines() {
        let message: Value = serde_json::from_str(line).expect(line);
        assert!(message["level"].is_string() && message["fields"]["message"].is_string(), "{line}");
    }
}
