//! The service manager: notifications (sd_notify(3)), sent as datagrams to the socket that
//! `NOTIFY_SOCKET` names, and sockets that it has opened (sd_listen_fds(3)).

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

/// Sends notifications to the service manager, if there is one.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// The service has started, or a reload has ended, successfully or not.
    Ready,
    /// A reload has started.
    Reloading,
    /// The service is stopping.
    Stopping,
    /// A status line for people.
    Status(&'a str),
    /// A ping of the watchdog.
    Alive,
    /// The process with this ID is now the main one.
    MainProcess(u32),
}

impl Notifier {
    /// Reads the environment. Without a service manager, notifications are dropped.
    pub fn from_environment() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|path| open(&path).ok());
        let watchdog = watchdog(
            env::var("WATCHDOG_USEC").ok().as_deref(),
            env::var("WATCHDOG_PID").ok().as_deref(),
        );
        Self { socket, watchdog }
    }

    /// The interval for [`Notice::Alive`]: half of the watchdog's timeout. Returns `None` if there is
    /// no watchdog for this process.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends notifications in one message. Errors are ignored.
    pub fn notify(&self, notices: &[Notice<'_>]) {
        let _ = self.send(notices);
    }

    /// Sends notifications in one message, and retries for about a second if that fails, such as when
    /// the service manager's queue is full. Blocks.
    ///
    /// # Errors
    /// The error of the last attempt. Without a service manager there is none.
    pub fn notify_reliably(&self, notices: &[Notice<'_>]) -> io::Result<()> {
        for _ in 1..MAX_ATTEMPTS {
            if self.send(notices).is_ok() {
                return Ok(());
            }
            thread::sleep(RETRY_INTERVAL);
        }
        self.send(notices)
    }

    fn send(&self, notices: &[Notice<'_>]) -> io::Result<()> {
        let Some((socket, address)) = &self.socket else { return Ok(()) };
        let text: Vec<_> = notices.iter().map(encode).collect();
        socket.send_to_addr(text.join("\n").as_bytes(), address).map(drop)
    }
}

/// Sockets opened by the service manager, in its order.
#[derive(Debug, Default)]
pub struct Activated {
    /// Listening TCP sockets.
    pub tcp: Vec<TcpListener>,
    /// UDP sockets.
    pub udp: Vec<UdpSocket>,
}

/// Takes the sockets that `LISTEN_FDS` announces, if `LISTEN_PID` names this process. Removes the
/// variables, so that child processes do not use them.
pub fn activated() -> Activated {
    let mut inherited = ListenFd::from_env();
    let mut activated = Activated::default();
    for index in 0..inherited.len() {
        // Sockets of other types are ignored.
        if let Ok(Some(socket)) = inherited.take_tcp_listener(index) {
            activated.tcp.push(socket);
        } else if let Ok(Some(socket)) = inherited.take_udp_socket(index) {
            activated.udp.push(socket);
        }
    }
    activated
}

/// Attempts of [`Notifier::notify_reliably`].
const MAX_ATTEMPTS: u32 = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

fn open(path: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match path.as_bytes() {
        // The abstract namespace.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that hangs must not block this process.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn watchdog(micros: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let micros: u64 = micros?.parse().ok()?;
    let ours = pid.is_none_or(|pid| pid == process::id().to_string());
    (ours && micros > 0).then(|| Duration::from_micros(micros) / 2)
}

fn encode(notice: &Notice<'_>) -> String {
    match notice {
        Notice::Ready => "READY=1".to_owned(),
        // The time distinguishes this reload from earlier ones.
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

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 500];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    #[test]
    fn notifications_arrive_at_a_path_and_in_the_abstract_namespace() {
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
            notifier.notify(&[Notice::Ready, Notice::Status("two\nlines")]);
            assert_eq!(received(&socket), "READY=1\nSTATUS=two lines");
            notifier.notify(&[Notice::MainProcess(17)]);
            assert_eq!(received(&socket), "MAINPID=17");
            notifier.notify(&[Notice::Reloading]);
            let text = received(&socket);
            let micros = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(micros.parse::<u64>().unwrap() > 0, "{text}");
        }
    }

    #[test]
    fn a_reliable_notification_waits_for_space_in_the_queue_or_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier { socket: open(path.as_os_str()).ok(), watchdog: None };
        while notifier.send(&[Notice::Alive]).is_ok() {}
        let error = notifier.notify_reliably(&[Notice::MainProcess(17)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let receiver = thread::spawn(move || while received(&socket) != "MAINPID=17" {});
        notifier.notify_reliably(&[Notice::MainProcess(17)]).unwrap();
        receiver.join().unwrap();
        // The receiver has closed its socket.
        assert!(notifier.notify_reliably(&[Notice::MainProcess(17)]).is_err());
        let without_manager = Notifier { socket: None, watchdog: None };
        without_manager.notify_reliably(&[Notice::MainProcess(17)]).unwrap();
    }

    #[test]
    fn a_watchdog_of_another_process_is_ignored() {
        let ours = process::id().to_string();
        assert_eq!(watchdog(Some("3000000"), None), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(Some("3000000"), Some(&ours)), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(Some("3000000"), Some("1")), None);
        assert_eq!(watchdog(Some("0"), None), None);
        assert_eq!(watchdog(Some("soon"), None), None);
    }
}
