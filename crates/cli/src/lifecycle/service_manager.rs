//! What systemd is told (sd_notify(3)): a datagram of lines to the socket that `NOTIFY_SOCKET`
//! names.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::thread;
use std::time::Duration;

use listenfd::ListenFd;
use nix::time::{ClockId, clock_gettime};

/// The way to the service manager, if there is one.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// The service is up, or a reload has ended, well or not.
    Ready,
    /// A reload has started.
    Reloading,
    /// The service stops.
    Stopping,
    /// A line for people.
    Status(&'a str),
    /// It goes on.
    Alive,
    /// Another process is the service's main one from now on.
    MainProcess(u32),
}

impl Notifier {
    /// As the environment says. Without a service manager, what is said goes nowhere.
    pub fn from_environment() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|path| open(&path).ok());
        let watchdog = watchdog(
            env::var("WATCHDOG_USEC").ok().as_deref(),
            env::var("WATCHDOG_PID").ok().as_deref(),
        );
        Self { socket, watchdog }
    }

    /// How often [`Notice::Alive`] is expected: half the time after which the process would be
    /// taken for hung. `None`: never.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Says some things at once. Whether the service manager hears them is not known, and nothing
    /// depends on it here.
    pub fn say(&self, notices: &[Notice<'_>]) {
        let _ = self.try_to_say(notices);
    }

    /// Says what much depends on: tries again for about a second while the service manager does
    /// not take it, as when its queue is full. Blocks.
    ///
    /// # Errors
    /// The system's, of the last attempt. Never without a service manager.
    pub fn insist(&self, notices: &[Notice<'_>]) -> io::Result<()> {
        for _ in 1..ATTEMPTS {
            if self.try_to_say(notices).is_ok() {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        self.try_to_say(notices)
    }

    fn try_to_say(&self, notices: &[Notice<'_>]) -> io::Result<()> {
        let Some((socket, address)) = &self.socket else { return Ok(()) };
        let text: Vec<_> = notices.iter().map(line).collect();
        socket.send_to_addr(text.join("\n").as_bytes(), address).map(drop)
    }
}

/// They, in the order in which they were given.
#[derive(Debug, Default)]
pub struct Activated {
    /// Listening over TCP.
    pub tcp: Vec<TcpListener>,
    /// Over UDP.
    pub udp: Vec<UdpSocket>,
}

/// Takes them. The environment loses them, so that no child takes them for its own.
pub fn activated() -> Activated {
    let mut given = ListenFd::from_env();
    let mut taken = Activated::default();
    for at in 0..given.len() {
        // Each is of one kind; what is of none is left alone.
        if let Ok(Some(socket)) = given.take_tcp_listener(at) {
            taken.tcp.push(socket);
        } else if let Ok(Some(socket)) = given.take_udp_socket(at) {
            taken.udp.push(socket);
        }
    }
    taken
}

/// Of what is insisted on.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

fn open(path: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match path.as_bytes() {
        // The abstract namespace.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that hangs must not hang us.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn watchdog(micros: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let micros: u64 = micros?.parse().ok()?;
    let ours = pid.is_none_or(|pid| pid == process::id().to_string());
    (ours && micros > 0).then(|| Duration::from_micros(micros) / 2)
}

fn line(notice: &Notice<'_>) -> String {
    match notice {
        Notice::Ready => "READY=1".to_owned(),
        // The time tells this reload's end from that of one before.
        Notice::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros()),
        Notice::Stopping => "STOPPING=1".to_owned(),
        // A line break would start another assignment.
        Notice::Status(text) => format!("STATUS={}", text.replace(['\n', '\r'], " ")),
        Notice::Alive => "WATCHDOG=1".to_owned(),
        Notice::MainProcess(pid) => format!("MAINPID={pid}"),
    }
}

fn monotonic_micros() -> u128 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| Duration::from(now).as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 500];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    #[test]
    fn lines_arrive_at_a_path_and_in_the_abstract_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("firstflight-notify-{}", process::id());
        let abstract_name = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().to_owned()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ];
        for (socket, name) in sockets {
            let notifier = Notifier { socket: open(&name).ok(), watchdog: None };
            notifier.say(&[Notice::Ready, Notice::Status("two\nlines")]);
            assert_eq!(heard(&socket), "READY=1\nSTATUS=two lines");
            notifier.say(&[Notice::MainProcess(17)]);
            assert_eq!(heard(&socket), "MAINPID=17");
            notifier.say(&[Notice::Reloading]);
            let text = heard(&socket);
            let micros = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(micros.parse::<u64>().unwrap() > 0, "{text}");
        }
    }

    #[test]
    fn what_is_insisted_on_waits_for_room_and_says_when_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier { socket: open(path.as_os_str()).ok(), watchdog: None };
        while notifier.try_to_say(&[Notice::Alive]).is_ok() {}
        let error = notifier.insist(&[Notice::MainProcess(17)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let hearing = thread::spawn(move || while heard(&socket) != "MAINPID=17" {});
        notifier.insist(&[Notice::MainProcess(17)]).unwrap();
        hearing.join().unwrap();
        // Nobody is there any more.
        assert!(notifier.insist(&[Notice::MainProcess(17)]).is_err());
        let nobody = Notifier { socket: None, watchdog: None };
        nobody.insist(&[Notice::MainProcess(17)]).unwrap();
    }

    #[test]
    fn the_watchdog_is_ours_or_nobodys() {
        let ours = process::id().to_string();
        assert_eq!(watchdog(Some("3000000"), None), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(Some("3000000"), Some(&ours)), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(Some("3000000"), Some("1")), None);
        assert_eq!(watchdog(Some("0"), None), None);
        assert_eq!(watchdog(Some("soon"), None), None);
    }
}
