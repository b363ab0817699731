//! Checks namespaces, packet sockets, veth pairs and TUN devices by creating them.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use super::Assessment;
use super::child::in_child;
use crate::port::PacketRing;
use crate::port::{self, TunPort};
use crate::{LinkError, Network, NetworkConfig, PathConfig, Privilege, enter_user_namespace};

/// Checks whether this process may create network namespaces.
pub(super) fn namespaces() -> Assessment {
    in_child(|| match enter_network_namespace() {
        Ok(Privilege::Held) => Assessment::good("made with the capabilities that this process has"),
        Ok(Privilege::UserNamespace) => {
            Assessment::good("made by an ordinary user, in a user namespace")
        }
        Err(error) => refused(&error),
    })
}

/// If this process is privileged: checks whether an ordinary user could do the same.
pub(super) fn ordinary_users() -> Assessment {
    if !geteuid().is_root() {
        return Assessment::good("this is one; see namespaces");
    }
    in_child(|| {
        if let Err(why) = become_nobody() {
            return Assessment::good(format!(
                "not tried, since this process cannot become one ({why})"
            ));
        }
        match enter_network_namespace() {
            Ok(_) => Assessment::good("they can make namespaces as well"),
            Err(error) => {
                let Assessment { what, fix, .. } = refused(&error);
                Assessment::limited(what, fix.unwrap_or_default())
            }
        }
    })
}

/// Checks whether a ring can be opened on an interface in a namespace.
pub(super) fn packet_sockets() -> Assessment {
    in_child(|| match enter_network_namespace().and_then(|_| PacketRing::open("lo")) {
        Ok(_) => Assessment::good("a packet ring opens"),
        Err(error @ LinkError::System { .. }) => Assessment::missing(
            error.to_string(),
            "load the driver (`modprobe af_packet`, CONFIG_PACKET), or give the container \
             CAP_NET_RAW and 8 MiB of memory for each ring",
        ),
        Err(error) => refused(&error),
    })
}

/// Checks whether a complete network can be built, and delivers packets.
pub(super) fn packet_rings() -> Assessment {
    in_child(|| {
        let result =
            enter_user_namespace().and_then(|_| build_and_measure(NetworkConfig::new(path())));
        match result {
            Ok(result) => result,
            Err(LinkError::Netlink { step, source }) if step.contains("interface pair") => {
                Assessment::missing(
                    format!("could not {step}: {source}"),
                    "load the driver (`modprobe veth`, CONFIG_VETH)",
                )
            }
            Err(LinkError::Netlink { step, source }) if step.contains("congestion") => {
                Assessment::missing(
                    format!("could not {step}: {source}"),
                    "load the congestion control (`modprobe tcp_cubic`)",
                )
            }
            Err(error) => refused(&error),
        }
    })
}

/// Checks whether a TUN device, the other backend, can be created.
pub(super) fn tun() -> Assessment {
    in_child(|| {
        match enter_network_namespace().and_then(|_| TunPort::open("tun-trial", [2; 6], [4; 6])) {
            Ok(_) => Assessment::good(format!("{} opens and makes one", port::TUN_DEVICE)),
            Err(LinkError::Tun { source, fix }) => Assessment::limited(
                format!(
                    "{} cannot be opened ({source}); packet rings do not need it",
                    port::TUN_DEVICE
                ),
                fix,
            ),
            Err(error) => {
                let Assessment { what, fix, .. } = refused(&error);
                Assessment::limited(what, fix.unwrap_or_default())
            }
        }
    })
}

/// Enters a new network namespace.
fn enter_network_namespace() -> Result<Privilege, LinkError> {
    let privilege = enter_user_namespace()?;
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|errno| LinkError::NamespacesRefused { source: errno.into() })?;
    Ok(privilege)
}

fn become_nobody() -> nix::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    // A process that changed its user may not write its own user map; one that was started by that
    // user may, which this simulates.
    nix::sys::prctl::set_dumpable(true)
}

fn path() -> Vec<PathConfig> {
    vec![PathConfig::symmetric("trial", RTT)]
}

/// Builds a network and measures its round trips.
fn build_and_measure(config: NetworkConfig) -> Result<Assessment, LinkError> {
    let start = Instant::now();
    let network = Network::build(config)?;
    let built = start.elapsed();
    let io_error = |step: &'static str| move |e: std::io::Error| LinkError::system(step, e);
    let echo = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))?;
    let echo = echo.map_err(io_error("open a socket"))?;
    network.server().spawn("echo", move || {
        let mut buffer = [0; 16];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            // A lost packet shows up as a timeout.
            let _ = echo.send_to(&buffer[..length], from);
        }
    })?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let times = network.client().run(|| round_trips(server))?;
    let mut times = times.map_err(io_error("get a packet through"))?;
    times.sort_unstable();
    let median = times[times.len() / 2];
    let text = format!(
        "built in {:.0} ms; a round trip of {:.1} ms takes {:.3} ms in the median",
        built.as_secs_f64() * 1e3,
        RTT.as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e3
    );
    let settings = network.refused_settings();
    Ok(if !settings.is_empty() {
        Assessment::limited(
            format!("{text}; not taken were {}", settings.join(", ")),
            "run where /proc/sys can be written, as outside a container",
        )
    } else if median > RTT + MAX_OVERHEAD {
        Assessment::limited(text, "measure while the machine has nothing else to do")
    } else {
        Assessment::good(text)
    })
}

fn round_trips(server: SocketAddr) -> std::io::Result<Vec<Duration>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    (0..ROUND_TRIPS)
        .map(|_| {
            let sent = Instant::now();
            socket.send(b"x")?;
            socket.recv(&mut [0; 16])?;
            Ok(sent.elapsed())
        })
        .collect()
}

/// Converts an error to a finding: the fix is behind its first colon.
fn refused(error: &LinkError) -> Assessment {
    let sentence = error.to_string();
    match sentence.split_once(": ") {
        Some((what, fix)) if !matches!(error, LinkError::System { .. }) => {
            Assessment::missing(what, fix)
        }
        _ => Assessment::missing(
            sentence,
            "run outside the container, or as root; the message names what was refused",
        ),
    }
}

const NOBODY: u32 = 65_534;
const RTT: Duration = Duration::from_millis(1);
/// How much longer a round trip may take on an idle machine.
const MAX_OVERHEAD: Duration = Duration::from_micros(150);
const ROUND_TRIPS: usize = 20;
const PORT: u16 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_split_into_cause_and_fix() {
        let assessment = refused(&LinkError::UserNamespacesConfined);
        assert_eq!(assessment.what, "AppArmor removes capabilities inside user namespaces");
        let fix = assessment.fix.expect("a fix");
        assert!(fix.contains("kernel.apparmor_restrict_unprivileged_userns=0"), "{fix}");
        let other = refused(&LinkError::system("open a socket", nix::errno::Errno::EMFILE));
        assert!(other.what.contains("open a socket") && other.fix.is_some());
    }
}
