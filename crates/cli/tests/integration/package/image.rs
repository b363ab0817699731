//! The image's root file system, entered without a container engine: no other files, read-only, own
//! network and process namespaces, the image's user, and no way to gain privileges.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use firstflight_testkit::{Watchdog, skipped_without_root};
use tempfile::TempDir;

use crate::package::{output_of, package};
use crate::support::program::{Running, TEST_TIMEOUT};

/// The last line of a certificate in a bundle.
const END: &str = "-----END CERTIFICATE-----";

#[test]
fn the_image_serves_without_other_files() {
    if skipped_without_root() {
        return;
    }
    let (dir, tar) = package("image", "0.2.0");
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    output_of(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&root));
    assert_dockerfile_paths_exist(&root);
    assert_trusts_mozilla_only(&root);

    let mut container = Container::start(&root);
    let health = "for _ in {1..600}; do $firstflight health && break; sleep 0.1; done";
    let responses = container.output(health);
    assert_eq!(responses.lines().last(), Some("ok"), "{responses}");
    let fetch = "$firstflight fetch --insecure --silent --show-error --tls-earlydata --ssl-sessions \
                 /tmp/jar --output /tmp/page --write-out '%{http_code} %{tls_earlydata}\\n'";
    // Resolved by /etc/hosts and by DNS.
    for name in ["by-file.test", "by-dns.test"] {
        assert_eq!(container.output(&format!("{fetch} https://{name}:8443/")), "200 0\n");
        let second = container.output(&format!("{fetch} https://{name}:8443/"));
        let early = second.trim().strip_prefix("200 ").and_then(|bytes| bytes.parse::<i64>().ok());
        assert!(early.is_some_and(|bytes| bytes > 0), "early data is accepted: {second}");
    }
    assert!(container.output("cat \"$root/tmp/page\"").contains("firstflight works"));
    // The only file with authorities is found.
    let trusting = "$firstflight fetch --no-authority --silent --show-error --output /tmp/own \
                    --write-out '%{http_code}\\n' https://localhost:8443/";
    let unrelated = container.output(trusting);
    assert!(unrelated.ends_with("failed: 60\n"), "{unrelated}");
    container.output(TRUST_SERVER);
    assert_eq!(container.output(trusting), "200\n");
    let status = container.output("cat /proc/$server/status");
    for line in ["Uid:\t65532\t65532\t65532\t65532", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"]
    {
        assert!(status.contains(line), "{line} in {status}");
    }
    let refused = container.output("touch \"$root/etc/new\"");
    assert!(refused.contains("Read-only file system"), "{refused}");
    // A stopping server is not ready, and the health check fails.
    let gone = container.output("kill $server; wait $server; echo $?; $firstflight health");
    assert!(gone.starts_with("0\nno response from 127.0.0.1:9090"), "{gone}");
    assert!(gone.ends_with("failed: 1\n"), "{gone}");
}

/// Checks that everything that the Dockerfile names is in the root.
fn assert_dockerfile_paths_exist(root: &Path) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/image/Dockerfile");
    let text = fs::read_to_string(file).unwrap();
    for line in [
        "ENV FIRSTFLIGHT_CONFIG=/etc/firstflight/firstflight.toml",
        "    XDG_DATA_HOME=/var/lib",
        "USER 65532:65532",
        "ENTRYPOINT [\"/usr/bin/firstflight\"]",
        "CMD [\"serve\"]",
        "CMD [\"/usr/bin/firstflight\", \"health\"]",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let mode = fs::metadata(root.join("usr/bin/firstflight")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o711, "its user may not read the program");
    for path in ["usr/bin/firstflight", "etc/firstflight/firstflight.toml", "srv/www/index.html"] {
        assert!(root.join(path).exists(), "{path}");
    }
}

/// Checks that the image does not trust authorities of the machine on which it was built.
fn assert_trusts_mozilla_only(root: &Path) {
    let bundle = fs::read_to_string(root.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    let mozilla_authorities = fs::read_dir("/usr/share/ca-certificates/mozilla").unwrap();
    let mut mozilla_authorities: Vec<_> = mozilla_authorities
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap().trim().to_owned())
        .collect();
    let mut trusted: Vec<_> =
        bundle.split_inclusive(END).map(|certificate| certificate.trim().to_owned()).collect();
    assert_eq!(trusted.pop().as_deref(), Some(""), "nothing follows the last");
    mozilla_authorities.sort_unstable();
    trusted.sort_unstable();
    assert!(trusted.len() > 50 && trusted == mozilla_authorities, "{} authorities", trusted.len());
}

/// Does what a container engine does with ROOT and STATE: starts the image's entrypoint, then runs
/// the lines that it reads.
const ENTER: &str = r#"set -eu
root=$1 state=$2
ip link set lo up
mount --bind "$root" "$root"
printf '127.0.0.1 localhost\n127.0.0.1 by-file.test\n' >"$state/hosts"
echo 'nameserver 127.0.0.1' >"$state/resolv.conf"
for file in hosts resolv.conf; do
    touch "$root/etc/$file"
    mount --bind "$state/$file" "$root/etc/$file"
done
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t proc proc /proc
python3 -c "$3" "$state/names" &
until [[ -e $state/names ]]; do sleep 0.05; done
export FIRSTFLIGHT_CONFIG=/etc/firstflight/firstflight.toml XDG_DATA_HOME=/var/lib
firstflight="setpriv --no-new-privs chroot --userspec=65532:65532 $root /usr/bin/firstflight"
$firstflight serve 2>"$state/log" &
server=$!
# Clients keep their sessions there.
export HOME=/tmp
set +e
while read -r command; do
    eval "$command" </dev/null 2>&1 || echo "failed: $?"
    echo 'end of command'
done
"#;

/// Adds the server's self-signed certificate to the authorities in the root.
const TRUST_SERVER: &str = "openssl s_client -connect localhost:8443 -servername localhost 2>&1 | \
    openssl x509 >\"$state/own\"; trusted=$root/etc/ssl/certs/ca-certificates.crt; \
    cat \"$trusted\" \"$state/own\" >\"$state/trusted\"; \
    mount --bind \"$state/trusted\" \"$trusted\"";

/// A DNS server that resolves every name to this machine (A records only).
const NAMES: &str = r#"
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
open(sys.argv[1], "w").close()
while True:
    query, peer = server.recvfrom(512)
    end = query.index(b"\0", 12) + 5
    a = query[end - 4:end - 2] == b"\0\1"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x7f\0\0\1" if a else b""
    head = query[:2] + b"\x81\x80\0\1" + bytes([0, int(a)]) + b"\0\0\0\0"
    server.sendto(head + query[12:end] + record, peer)
"#;

/// Processes in their own namespaces, which end when this is dropped.
struct Container {
    running: Running,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    state: TempDir,
}

impl Container {
    fn start(root: &Path) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "-"])
            .args([root, state.path()])
            .arg(NAMES)
            // Like a container engine, without the location of this machine's authorities.
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut running = Running::start(&mut command);
        let to = running.0.stdin.take();
        let from = BufReader::new(running.0.stdout.take().unwrap());
        Self { running, to, from, state }
    }

    /// Runs a line of bash and returns both its outputs.
    fn output(&mut self, command: &str) -> String {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
        let _watchdog = Watchdog::start(&self.running.0, TEST_TIMEOUT);
        let mut output = String::new();
        loop {
            let before = output.len();
            let read = self.from.read_line(&mut output).unwrap();
            let log = || fs::read_to_string(self.state.path().join("log"));
            assert!(
                read > 0,
                "{command}: the container has ended, or the test ended it after {TEST_TIMEOUT:?}: \
                 {output}{:?}",
                log()
            );
            if &output[before..] == "end of command\n" {
                output.truncate(before);
                return output;
            }
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.to.take());
        self.running.wait();
    }
}
