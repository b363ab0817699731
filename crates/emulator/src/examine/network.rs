//! Namespaces, packet sockets, veth pairs and TUN devices: made once, and let go.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use super::FindingState;
use super::trial::in_a_copy;
use crate::ring::PacketRing;
use crate::tun::{self, TunPort};
use crate::{LinkError, Network, NetworkConfig, PathConfig, Privilege, enter_user_namespace};

/// Whether this process may make network namespaces.
pub(super) fn namespaces() -> FindingState {
    in_a_copy(|| match inside() {
        Ok(Privilege::Held) => {
            FindingState::good("made with the capabilities that this process has")
        }
        Ok(Privilege::UserNamespace) => {
            FindingState::good("made by an ordinary user, in a user namespace")
        }
        Err(error) => refused(&error),
    })
}

/// Where this process has every right: whether an ordinary user could do the same.
pub(super) fn ordinary_users() -> FindingState {
    if !geteuid().is_root() {
        return FindingState::good("this is one; see namespaces");
    }
    in_a_copy(|| {
        if let Err(why) = become_nobody() {
            return FindingState::good(format!(
                "not tried, since this process cannot become one ({why})"
            ));
        }
        match inside() {
            Ok(_) => FindingState::good("they can make namespaces as well"),
            Err(error) => {
                let FindingState { what, mend, .. } = refused(&error);
                FindingState::limited(what, mend.unwrap_or_default())
            }
        }
    })
}

/// Whether a ring can be opened on an interface in a namespace of ours.
pub(super) fn packet_sockets() -> FindingState {
    in_a_copy(|| match inside().and_then(|_| PacketRing::open("lo")) {
        Ok(_) => FindingState::good("a packet ring opens"),
        Err(error @ LinkError::System { .. }) => FindingState::missing(
            error.to_string(),
            "load the driver (`modprobe af_packet`, CONFIG_PACKET), or give the container \
             CAP_NET_RAW and 8 MiB of memory for each ring",
        ),
        Err(error) => refused(&error),
    })
}

/// Whether a whole network can be built, and a packet gets through it.
pub(super) fn packet_rings() -> FindingState {
    in_a_copy(|| {
        let tried = enter_user_namespace().and_then(|_| send_through(NetworkConfig::new(path())));
        match tried {
            Ok(told) => told,
            Err(LinkError::Netlink { step, source }) if step.contains("interface pair") => {
                FindingState::missing(
                    format!("could not {step}: {source}"),
                    "load the driver (`modprobe veth`, CONFIG_VETH)",
                )
            }
            Err(LinkError::Netlink { step, source }) if step.contains("congestion") => {
                FindingState::missing(
                    format!("could not {step}: {source}"),
                    "load the congestion control (`modprobe tcp_cubic`)",
                )
            }
            Err(error) => refused(&error),
        }
    })
}

/// Whether a TUN device can be made: the other backend.
pub(super) fn tun() -> FindingState {
    in_a_copy(|| match inside().and_then(|_| TunPort::open("tun-trial", [2; 6], [4; 6])) {
        Ok(_) => FindingState::good(format!("{} opens and makes one", tun::DEVICE)),
        Err(LinkError::Tun { source, mend }) => FindingState::limited(
            format!("{} cannot be opened ({source}); packet rings do not need it", tun::DEVICE),
            mend,
        ),
        Err(error) => {
            let FindingState { what, mend, .. } = refused(&error);
            FindingState::limited(what, mend.unwrap_or_default())
        }
    })
}

/// Enters a network namespace of the copy's own.
fn inside() -> Result<Privilege, LinkError> {
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
    // A process that changed its user may not write its own user map; one that was started as that
    // user may, which is what this stands for.
    nix::sys::prctl::set_dumpable(true)
}

fn path() -> Vec<PathConfig> {
    vec![PathConfig::symmetric("trial", RTT)]
}

fn send_through(config: NetworkConfig) -> Result<FindingState, LinkError> {
    let began = Instant::now();
    let network = Network::build(config)?;
    let built = began.elapsed();
    let wrong = |step: &'static str| move |e: std::io::Error| LinkError::system(step, e);
    let echo = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))?;
    let echo = echo.map_err(wrong("open a socket"))?;
    network.server().spawn("echo", move || {
        let mut buffer = [0; 16];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            // What is lost shows up as a timeout.
            let _ = echo.send_to(&buffer[..length], from);
        }
    })?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let times = network.client().run(|| round_trips(server))?;
    let mut times = times.map_err(wrong("get a packet through"))?;
    times.sort_unstable();
    let median = times[times.len() / 2];
    let said = format!(
        "built in {:.0} ms; a round trip of {:.1} ms takes {:.3} ms in the median",
        built.as_secs_f64() * 1e3,
        RTT.as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e3
    );
    let settings = network.refused_settings();
    Ok(if !settings.is_empty() {
        FindingState::limited(
            format!("{said}; not taken were {}", settings.join(", ")),
            "run where /proc/sys can be written, as outside a container",
        )
    } else if median > RTT + FAIR {
        FindingState::limited(said, "measure while the machine has nothing else to do")
    } else {
        FindingState::good(said)
    })
}

fn round_trips(server: SocketAddr) -> std::io::Result<Vec<Duration>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    (0..TRIES)
        .map(|_| {
            let sent = Instant::now();
            socket.send(b"x")?;
            socket.recv(&mut [0; 16])?;
            Ok(sent.elapsed())
        })
        .collect()
}

/// An error as a verdict: what stands behind its first colon is its fix.
fn refused(error: &LinkError) -> FindingState {
    let sentence = error.to_string();
    match sentence.split_once(": ") {
        Some((what, mend)) if !matches!(error, LinkError::System { .. }) => {
            FindingState::missing(what, mend)
        }
        _ => FindingState::missing(
            sentence,
            "run outside the container, or as root; the message names what was refused",
        ),
    }
}

const NOBODY: u32 = 65_534;
const RTT: Duration = Duration::from_millis(1);
/// What a machine with nothing else to do adds at most.
const FAIR: Duration = Duration::from_micros(150);
const TRIES: usize = 20;
const PORT: u16 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_split_into_cause_and_mend() {
        let verdict = refused(&LinkError::UserNamespacesConfined);
        assert_eq!(verdict.what, "AppArmor takes the capabilities away inside user namespaces");
        let mend = verdict.mend.expect("a mend");
        assert!(mend.contains("kernel.apparmor_restrict_unprivileged_userns=0"), "{mend}");
        let other = refused(&LinkError::system("open a socket", nix::errno::Errno::EMFILE));
        assert!(other.what.contains("open a socket") && other.mend.is_some());
    }
}
