//! `firstflight fetch` where it depends on the system around it, and with several URLs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread::{self, JoinHandle};

use firstflight_testkit::{next_client, skipped_without};

use crate::support::program::{PROGRAM, firstflight, run, site};

/// Runs a command beside a name server that never responds.
const SILENT_NAME_SERVER: &str = r#"
import socket, subprocess, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"#;

/// glibc waits for a name server far longer than the test for the program.
const RESOLVER: &str = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n";

#[test]
fn time_limits_end_a_name_resolution_that_does_not_end() {
    if skipped_without(&["unshare", "ip", "python3"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    fs::write(dir.join("resolv.conf"), RESOLVER).unwrap();
    fs::write(dir.join("nsswitch.conf"), "hosts: dns\n").unwrap();
    for limit in ["--max-time", "--connect-timeout"] {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
        command.args((!nix::unistd::geteuid().is_root()).then_some("--map-root-user"));
        let script = "set -e; ip link set lo up; mount --bind resolv.conf /etc/resolv.conf; \
                      mount --bind nsswitch.conf /etc/nsswitch.conf; exec python3 -c \"$@\"";
        command.args(["sh", "-c", script, "sh", SILENT_NAME_SERVER, PROGRAM]);
        command.args(["fetch", limit, "0.1", "http://name.test/"]);
        let own = firstflight(dir);
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ended = run(command.current_dir(dir));
        assert_eq!(ended.code, Some(28), "{limit}: {ended:?}");
    }
}

/// A server that responds to this many connections, and returns the heads of their requests.
fn server(connections: usize) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let respond = move |_| {
        let mut socket = next_client(&listener);
        let mut head = [0; 4096];
        let length = socket.read(&mut head).unwrap();
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        String::from_utf8_lossy(&head[..length]).into_owned()
    };
    (url, thread::spawn(move || (0..connections).map(respond).collect()))
}

#[test]
fn each_request_has_the_fields_that_were_read_from_standard_input() {
    let site = site();
    let (url, heads) = server(2);
    let mut command = Command::new("sh");
    command.args(["-c", "echo 'X-Field: 1' | \"$@\"", "sh", PROGRAM, "fetch", "-H", "@-"]);
    let ended = run(command.args([&url, &url]).env("HOME", site.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for head in heads.join().unwrap() {
        assert!(head.contains("\r\nX-Field: 1\r\n"), "{head}");
    }
}

#[test]
fn the_exit_code_is_that_of_the_last_url() {
    let site = site();
    let (url, heads) = server(2);
    // Nobody listens on port 1.
    let (url, refused) = (url.as_str(), "http://127.0.0.1:1/");
    for (urls, code) in [([refused, url], 0), ([url, refused], 7)] {
        let ended = run(firstflight(site.path()).arg("fetch").args(urls));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.err.starts_with("firstflight: (7)"), "{ended:?}");
    }
    heads.join().unwrap();
}
