use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};

/// What the kernel knows about a TCP connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFacts {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// The least round-trip time seen; zero when none has been measured.
    pub min_rtt: Duration,
    /// Whether data in the SYN was acknowledged (`TCPI_OPT_SYN_DATA`, RFC 7413).
    pub syn_data: bool,
    /// Segments sent again since the connection started.
    pub retransmits: u32,
    /// The sender's maximum segment size, in bytes.
    pub mss: u32,
}

impl TcpFacts {
    /// Asks the kernel. `None`: not a TCP socket.
    pub fn of(socket: &impl AsFd) -> Option<Self> {
        let info = getsockopt(socket, TcpInfo).ok()?;
        Some(Self {
            rtt: Duration::from_micros(info.tcpi_rtt.into()),
            min_rtt: match info.tcpi_min_rtt {
                u32::MAX => Duration::ZERO,
                micros => Duration::from_micros(micros.into()),
            },
            syn_data: info.tcpi_options & TCPI_OPT_SYN_DATA != 0,
            retransmits: info.tcpi_total_retrans,
            mss: info.tcpi_snd_mss,
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
    tcpi_rates: [u64; 4],
    tcpi_segs: [u32; 2],
    tcpi_notsent_bytes: u32,
    tcpi_min_rtt: u32,
}

sockopt_impl!(TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Info);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
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
        let facts = TcpFacts::of(&stream).unwrap();
        assert!(facts.rtt > Duration::ZERO && facts.rtt < Duration::from_secs(1), "{facts:?}");
        assert!(!facts.syn_data);
    }
}
