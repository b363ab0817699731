use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use firstflight_tls::{ConnectOptions, Connector, TlsStream};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nix::sys::socket::sockopt::TcpFastOpenConnect;
use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, sockopt_impl};
use tokio::net::{TcpSocket, TcpStream};

use crate::{ClientError, PhaseInstants};

/// A TCP connection, with the times of its phases.
#[derive(Debug)]
pub struct TcpConnected {
    /// The socket, with TCP_NODELAY.
    pub stream: TcpStream,
    /// Address of the server.
    pub peer: SocketAddr,
    /// When connecting to this address started.
    pub dialled: Instant,
    /// When the kernel reported it as connected.
    pub connected: Instant,
}

/// A TLS connection, with the times of its phases.
pub struct Connected {
    /// The connection. With early data nothing has been sent yet: write and then flush, so that
    /// ClientHello and request leave together.
    pub stream: TlsStream<TcpStream>,
    /// Times of the phases; `secured` only if the handshake is complete.
    pub marks: PhaseInstants,
}

/// Connects to the first of `addresses` that responds. Tries the next address when one fails or
/// does not respond within 250 ms (RFC 8305 section 5).
///
/// With `fast_open` the kernel delays the SYN until the first write if it has a cookie of the server
/// (RFC 7413); otherwise it requests one. A kernel without the option makes an ordinary connection.
///
/// # Errors
/// [`ClientError::Connect`] for the last address that failed. With Fast Open, a refused
/// connection is reported by the first write or read instead.
pub async fn connect_tcp(
    addresses: &[SocketAddr],
    fast_open: bool,
) -> Result<TcpConnected, ClientError> {
    let mut waiting = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut last_error = None;
    loop {
        if let Some(&address) = waiting.next() {
            attempts.push(dial(address, fast_open));
        }
        let timeout = match waiting.len() {
            0 => Duration::MAX,
            _ => ATTEMPT_DELAY,
        };
        match tokio::time::timeout(timeout, attempts.next()).await {
            Ok(Some(Ok(connected))) => return Ok(connected),
            Ok(Some(Err(error))) => last_error = Some(error),
            Err(_) => continue,
            Ok(None) => {}
        }
        if attempts.is_empty() && waiting.len() == 0 {
            return Err(last_error.unwrap_or_else(|| ClientError::Resolve {
                host: "the server".to_owned(),
                reason: "no address left to try".to_owned(),
            }));
        }
    }
}

/// Connects to one address by TCP and TLS. Returns when the handshake is complete, or, if the
/// offer requests early data and its session allows it, as soon as early data can be written.
///
/// # Errors
/// [`ClientError::Connect`] or [`ClientError::Tls`].
pub async fn connect_tls(
    connector: &Connector,
    offer: &ConnectOptions,
    address: SocketAddr,
    fast_open: bool,
) -> Result<Connected, ClientError> {
    let start = Instant::now();
    let tcp = connect_tcp(&[address], fast_open).await?;
    let stream = TlsStream::connect(connector, tcp.stream, offer).await?;
    let marks = PhaseInstants {
        resolved: Some(start),
        dialled: Some(tcp.dialled),
        connected: Some(tcp.connected),
        secured: stream.is_complete().then(Instant::now),
        ..PhaseInstants::new(start)
    };
    Ok(Connected { stream, marks })
}

/// RFC 8305 section 5, Connection Attempt Delay.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

async fn dial(address: SocketAddr, fast_open: bool) -> Result<TcpConnected, ClientError> {
    let failed = |source| ClientError::Connect { address, source };
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
    .map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    if fast_open {
        // Refused by old kernels and some sandboxes: an ordinary connection is the fallback.
        let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
    }
    let dialled = Instant::now();
    let stream = socket.connect(address).await.map_err(failed)?;
    Ok(TcpConnected { stream, peer: address, dialled, connected: Instant::now() })
}

/// What the kernel reports about a TCP connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// The minimum round-trip time; zero if none has been measured.
    pub min_rtt: Duration,
    /// Whether data in the SYN was acknowledged (`TCPI_OPT_SYN_DATA`, RFC 7413).
    pub syn_data: bool,
    /// Retransmitted segments.
    pub retransmits: u32,
    /// The sender's maximum segment size, in bytes.
    pub mss: u32,
    /// Bytes received.
    pub bytes_received: u64,
}

impl TcpInfo {
    /// Queries the kernel. Returns `None` if it is not a TCP socket.
    pub fn of(socket: &impl AsFd) -> Option<Self> {
        let info = getsockopt(socket, TcpInfoOption).ok()?;
        Some(Self {
            rtt: Duration::from_micros(info.tcpi_rtt.into()),
            min_rtt: match info.tcpi_min_rtt {
                u32::MAX => Duration::ZERO,
                micros => Duration::from_micros(micros.into()),
            },
            syn_data: info.tcpi_options & TCPI_OPT_SYN_DATA != 0,
            retransmits: info.tcpi_total_retrans,
            mss: info.tcpi_snd_mss,
            bytes_received: info.tcpi_bytes_received,
        })
    }
}

/// `linux/tcp.h`.
const TCPI_OPT_SYN_DATA: u8 = 32;

/// The start of the kernel's `struct tcp_info`, up to `tcpi_min_rtt` (Linux 4.9 and later; the
/// kernel fills as much as is requested).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "nix's macro makes it the value of a public trait")]
pub struct Info {
    tcpi_state: u8,
    tcpi_ca_state: u8,
    tcpi_retransmits: u8,
    tcpi_probes: u8,
    tcpi_backoff: u8,
    tcpi_options: u8,
    tcpi_bits: [u8; 2],
    tcpi_rto: u32,
    tcpi_ato: u32,
    tcpi_snd_mss: u32,
    tcpi_rcv_mss: u32,
    tcpi_counts: [u32; 5],
    tcpi_last: [u32; 4],
    tcpi_pmtu: u32,
    tcpi_rcv_ssthresh: u32,
    tcpi_rtt: u32,
    tcpi_rttvar: u32,
    tcpi_snd_ssthresh: u32,
    tcpi_snd_cwnd: u32,
    tcpi_advmss: u32,
    tcpi_reordering: u32,
    tcpi_rcv_rtt: u32,
    tcpi_rcv_space: u32,
    tcpi_total_retrans: u32,
    tcpi_rates: [u64; 2],
    tcpi_bytes_acked: u64,
    tcpi_bytes_received: u64,
    tcpi_segs: [u32; 2],
    tcpi_notsent_bytes: u32,
    tcpi_min_rtt: u32,
}

sockopt_impl!(TcpInfoOption, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Info);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn tcp_info_offsets_match_libc() {
        assert_eq!(
            std::mem::offset_of!(Info, tcpi_rtt),
            std::mem::offset_of!(libc::tcp_info, tcpi_rtt)
        );
        assert_eq!(
            std::mem::offset_of!(Info, tcpi_total_retrans),
            std::mem::offset_of!(libc::tcp_info, tcpi_total_retrans)
        );
        assert_eq!(
            std::mem::offset_of!(Info, tcpi_min_rtt),
            std::mem::offset_of!(libc::tcp_info, tcpi_min_rtt)
        );
    }

    #[test]
    fn loopback_has_a_short_rtt_and_no_data_in_its_syn() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = TcpInfo::of(&stream).unwrap();
        assert!(info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1), "{info:?}");
        assert!(!info.syn_data);
    }
}
