//! The Debian package on a fresh machine: installed, in use, upgraded under load, removed.

use std::process::Command;

use firstflight_testkit::{Machine, Root, skipped_without_root};

use crate::package::{output_of, package};

/// The list of other suites too, so that one root is made for all.
const PACKAGES: [&str; 7] =
    ["curl", "openssl", "procps", "python3", "+haproxy", "+nginx", "+redis-server"];

/// An upgrade as well, as far as the package manager's scripts can tell.
const AGAIN: &str = "apt-get install -y --reinstall ./second.deb 2>&1";

const URL: &str = "https://localhost:8443/";

#[test]
fn the_debian_package_installs_upgrades_and_purges() {
    if skipped_without_root() {
        return;
    }
    let (_first, deb) = package("deb", "0.1.0");
    let (_second, newer) = package("deb", "0.1.1");
    // That it is not packed small is this test's own doing.
    let unpacked = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags", unpacked]);
    assert_eq!(output_of(lintian.arg(&deb)), "", "lintian has nothing to say");

    let machine = Root::make(&PACKAGES).boot("packaged");
    machine.copy(&deb, "/root/first.deb");
    machine.copy(&newer, "/root/second.deb");
    machine.ask("apt-get install -y ./first.deb");
    serves(&machine);
    let old = main_process(&machine);
    upgrades(&machine);
    assert_ne!(main_process(&machine), old, "the new version has taken over");
    assert!(machine.ask("dpkg-query -W firstflight").contains("0.1.1"));

    decisions_stand(&machine);
    sockets_wait(&machine);
    is_removed(&machine);
    comes_back(&machine);

    machine.ask("apt-get purge -y firstflight");
    assert_eq!(left(&machine), "");
    // Numbers of users are not given again while files of theirs may be about.
    machine.ask("getent passwd firstflight");
}

/// Started by the installation, as the unit has it, and taking early data.
fn serves(machine: &Machine) {
    machine.ask("systemctl is-active firstflight && systemctl is-enabled firstflight");
    let health = "firstflight health --config /etc/firstflight/firstflight.toml";
    assert_eq!(machine.ask(health), "ok\n");
    let owner = machine.ask(&format!("ps -o user= -p {}", main_process(machine)));
    assert!(owner.starts_with("firstfl"), "{owner}");
    // Whoever could read the program could open its memory as it starts.
    assert_eq!(machine.ask("stat --format '%U %a' /usr/bin/firstflight"), "root 711\n");
    let fetch = "firstflight fetch --cacert /var/lib/firstflight/authority/authority.pem --silent \
                 --show-error --tls-earlydata --output page \
                 --write-out '%{http_code} %{tls_earlydata}\\n'";
    for http3 in ["", "--http3-only"] {
        machine.ask("rm -f jar");
        let twice = format!("for _ in 1 2; do {fetch} {http3} --ssl-sessions jar {URL}; done");
        let responses = machine.ask(&twice);
        let (first, second) = responses.trim().split_once('\n').unwrap();
        assert_eq!(first, "200 0", "no session yet");
        assert!(early(second), "early data is accepted {http3}: {second}");
    }
    assert!(machine.ask("cat page").contains("firstflight works"));
    machine.ask("test -e /usr/share/man/man5/firstflight.toml.5.gz");
    machine.ask("test -e /usr/share/doc/firstflight/examples/firstflight.toml");
}

/// To the second version, while clients come and keep their sessions: not one request fails.
fn upgrades(machine: &Machine) {
    let client = format!(
        "#!/bin/bash
         # A client that comes again and again until it is told to stop.
         until [[ -e /root/stop ]]; do
             firstflight fetch --insecure --silent --max-time 60 --tls-earlydata --ssl-sessions \"$1\" $2 \
                 --output /dev/null --write-out '%{{http_code}} %{{tls_earlydata}}\\n' {URL} >>\"$1.log\"
         done
        "
    );
    machine.write("/root/client", &client);
    // The same program throughout: what is upgraded is the server.
    machine.ask("cp /usr/bin/firstflight /usr/local/bin/ && chmod +x client && hash -r");
    let fetch = format!(
        "firstflight fetch --insecure --silent --show-error --tls-earlydata --ssl-sessions kept \
         --output /dev/null --write-out '%{{http_code}} %{{tls_earlydata}}\\n' {URL}"
    );
    machine.ask(&fetch);
    let script = "trap 'touch stop' EXIT
        for one in a b; do ./client $one & ./client $one-quic --http3-only & done
        came() { cat *.log 2>/dev/null | wc -l; }
        wait_for() {
            for _ in {1..1800}; do (( $(came) >= $1 )) && return; sleep 0.1; done
            echo \"$(came) of $1 requests have come in three minutes\" >&2; exit 1
        }
        wait_for 40
        apt-get install -y ./second.deb || exit
        wait_for $(( $(came) + 40 ))
        touch stop; wait; rm /usr/local/bin/firstflight";
    machine.ask(script);
    let log = machine.ask("cat *.log");
    let failed: Vec<_> = log.lines().filter(|line| !line.starts_with("200 ")).collect();
    assert!(failed.is_empty(), "of {} failed: {failed:?}", log.lines().count());
    assert!(log.lines().filter(|line| early(line)).count() > 40, "{log}");
    let response = machine.ask(&fetch);
    assert!(
        early(response.trim()),
        "a session of the version before is worth its while: {response}"
    );
    println!("{} requests during an upgrade, 0 failed", log.lines().count());
}

/// What somebody has decided about the service is so after an upgrade, too.
fn decisions_stand(machine: &Machine) {
    let old = main_process(machine);
    machine.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n");
    machine.ask("chmod +x /usr/sbin/policy-rc.d");
    let output_of = machine.ask(AGAIN);
    assert!(output_of.contains("is still the version before"), "{output_of}");
    assert_eq!(main_process(machine), old, "no process is to be started");
    machine.ask("rm /usr/sbin/policy-rc.d");

    machine.ask("systemctl stop firstflight");
    machine.ask(AGAIN);
    assert_eq!(machine.ask("systemctl is-active firstflight || true"), "inactive\n");
    // Someone's decision is requested at each upgrade.
    machine
        .ask(&format!("systemctl start firstflight && {AGAIN} && systemctl is-active firstflight"));
}

/// Its sockets, once somebody has enabled them, stay through an upgrade: who comes while no server
/// runs waits for one.
fn sockets_wait(machine: &Machine) {
    machine.ask("mkdir -p /run/systemd/system/firstflight.socket.d");
    let file = "/run/systemd/system/firstflight.socket.d/addresses.conf";
    machine.write(
        file,
        "[Socket]
         # In place of all that the unit has.
         ListenStream=
         ListenStream=127.0.0.1:8443
         ListenStream=[::1]:8443
         ListenDatagram=127.0.0.1:8443
         ListenDatagram=[::1]:8443
        ",
    );
    machine.ask(
        "systemctl daemon-reload && systemctl stop firstflight
         systemctl enable --now firstflight.socket && systemctl start firstflight",
    );
    let old = main_process(machine);
    machine.ask(AGAIN);
    assert_ne!(main_process(machine), old, "it is upgraded with its sockets");
    machine.ask("systemctl is-active firstflight.socket");
    machine.ask("systemctl stop firstflight");
    machine.ask(&format!("curl --silent --insecure --output /dev/null --max-time 60 {URL}"));
    machine.ask("systemctl is-active firstflight");
}

/// With its sockets. What was configured, enabled and made while it ran is there when it is
/// installed again.
fn is_removed(machine: &Machine) {
    // What the package manager starts with: who comes from now on must not start it again.
    machine.ask("/var/lib/dpkg/info/firstflight.prerm remove");
    assert_eq!(machine.ask("ss --no-header --listening --tcp --udp 'sport = 8443'"), "");
    machine.ask("apt-get remove -y firstflight");
    assert!(!machine.run("pgrep firstflight").status.success(), "the service has ended");
    let kept = [
        "/etc/firstflight",
        "/etc/firstflight/firstflight.toml",
        "/etc/systemd/system/multi-user.target.wants/firstflight.service",
        "/etc/systemd/system/sockets.target.wants/firstflight.socket",
        "/var/lib/firstflight",
        "/var/log/firstflight",
    ];
    assert_eq!(left(machine).lines().collect::<Vec<_>>(), kept);
}

/// After a removal: what was enabled is started, by nobody's upgrade.
fn comes_back(machine: &Machine) {
    let upgrades = "journalctl --sync; journalctl --unit firstflight | grep -c 'has taken over'";
    let before = machine.ask(upgrades);
    machine.ask("apt-get install -y ./second.deb");
    machine.ask("systemctl is-active firstflight.socket firstflight.service");
    assert_eq!(machine.ask(upgrades), before, "nobody is there to hand over");
}

/// Whether bytes were sent early and accepted.
fn early(response: &str) -> bool {
    response.strip_prefix("200 ").and_then(|bytes| bytes.parse().ok()).is_some_and(|n: i64| n > 0)
}

fn main_process(machine: &Machine) -> String {
    machine.ask("systemctl show --property=MainPID --value firstflight").trim().to_owned()
}

/// What bears the package's name, but for the package manager's own notes and those of people.
fn left(machine: &Machine) -> String {
    machine.ask(
        r"find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /root \
            -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/log/journal \) -prune \
            -o -name '*firstflight*' -print | sort",
    )
}
