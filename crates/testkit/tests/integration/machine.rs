//! Fresh machines.

use firstflight_testkit::{Root, skipped_without_root};

const PACKAGES: [&str; 7] =
    ["curl", "openssl", "procps", "python3", "+haproxy", "+nginx", "+redis-server"];

#[test]
fn a_machine_boots_installs_and_starts_a_service() {
    if skipped_without_root() {
        return;
    }
    let machine = Root::make(&PACKAGES).boot("fresh");
    assert_eq!(machine.output("hostname"), "fresh\n");
    assert_eq!(machine.output("cat /proc/1/comm"), "systemd\n");
    machine.output("apt-get install -y redis-server && systemctl is-active redis-server");
    assert_eq!(machine.output("redis-cli ping"), "PONG\n");
    // Kernel settings are shared with the host, so a machine cannot change them.
    assert!(!machine.run("echo 1 >/proc/sys/kernel/printk").status.success());
    assert!(machine.run("ip -brief address show scope global").stdout.is_empty());
}

#[test]
fn machines_on_a_network_know_each_other() {
    if skipped_without_root() {
        return;
    }
    let machines = Root::make(&PACKAGES).boot_several(&["left", "right"]);
    machines[0].output("systemd-run --unit=web python3 -m http.server --directory /etc 80");
    let page = "for i in $(seq 100); do curl -sf http://left/hostname && break; sleep 0.1; done";
    assert!(machines[1].run(page).status.success());
    assert!(!machines[1].run("curl -sf http://127.0.0.1/hostname").status.success());
}

#[test]
fn a_shell_keeps_its_state_and_stops_at_the_first_failure() {
    if skipped_without_root() {
        return;
    }
    let machine = Root::make(&PACKAGES).boot("shell");
    let mut shell = machine.shell();
    assert_eq!(
        shell.run("cd /etc\nit=\"isn't\"\necho no end >&2; printf x"),
        Ok("no end\nx".into())
    );
    assert_eq!(shell.run("pwd; echo $it\ncat"), Ok("/etc\nisn't\n".into()));
    assert_eq!(shell.run("cat <<'EOF'\n$it\nEOF"), Ok("$it\n".into()));
    assert_eq!(shell.run("echo before\nfalse\necho after"), Err("before\n".into()));
}
