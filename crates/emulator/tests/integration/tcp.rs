//! TCP over the link: data both ways, congestion control, Fast Open in the captured packets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use firstflight_emulator::Direction;
use libtest_mimic::Trial;
use nix::sys::socket::sockopt;

use crate::fast_open::{REQUEST, echo, echo_server, syn};
use crate::{Outcome, network, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("tcp_carries_a_megabyte_both_ways", tcp_carries_a_megabyte_both_ways),
        trial("routes_set_the_congestion_control", routes_set_the_congestion_control),
        trial("rfc7413_second_connection_has_data_in_its_syn", second_syn_carries_data),
        trial("many_short_connections_find_ports", many_short_connections_find_ports),
    ]
}

fn tcp_carries_a_megabyte_both_ways() -> Outcome {
    let network = network([2_000]);
    echo_server(&network)?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let back = network.client().run(|| -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(server)?;
        let mut sending = stream.try_clone()?;
        std::thread::scope(|scope| {
            scope.spawn(|| sending.write_all(&data).unwrap());
            let mut back = vec![0; data.len()];
            stream.read_exact(&mut back)?;
            Ok(back)
        })
    })??;
    assert!(back == data, "the same bytes come back");
    let counters = network.counters()?;
    assert_eq!((counters.ring_full, counters.queue_full, counters.refused), (0, 0, 0));
    let longest = network.tap().take().packets.iter().map(|p| p.length).max();
    assert_eq!(longest, Some(1_514), "segments are not merged by offloads");
    Ok(())
}

fn routes_set_the_congestion_control() -> Outcome {
    let network = network([200]);
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let client = network.client().run(|| TcpStream::connect(server))??;
    for stream in [client, listener.accept()?.0] {
        let name = nix::sys::socket::getsockopt(&stream, sockopt::TcpCongestion)?;
        assert_eq!(name.to_string_lossy().trim_end_matches('\0'), "cubic");
    }
    Ok(())
}

fn second_syn_carries_data() -> Outcome {
    let network = network([20_000]);
    echo_server(&network)?;
    let server = network.path(0)?.server;
    let mut data_in_syn = Vec::new();
    for _ in 0..3 {
        network.client().run(|| echo(server))?;
        let packets = network.tap().take().packets;
        let sent = syn(&packets, Direction::Up);
        let syn_ack = syn(&packets, Direction::Down);
        let acknowledged = syn_ack.acknowledgment.wrapping_sub(sent.sequence) as usize - 1;
        assert_eq!(acknowledged, sent.data, "the server accepts all data of the SYN");
        data_in_syn.push(sent.data);
    }
    assert_eq!(data_in_syn, [0, REQUEST.len(), REQUEST.len()], "a cookie first, then data");
    Ok(())
}

fn many_short_connections_find_ports() -> Outcome {
    let network = network([0]);
    network.tap().set_recording(false);
    echo_server(&network)?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    network.client().run(|| -> std::io::Result<()> {
        for _ in 0..3_000 {
            let mut stream = TcpStream::connect(server)?;
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
        }
        Ok(())
    })??;
    let range = network.client().run(|| std::fs::read_to_string(PORT_RANGE))??;
    let ends: Vec<u32> = range.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    assert!(ends[1] - ends[0] > 45_000, "{ends:?}");
    assert!(network.tap().take().packets.is_empty(), "nothing kept while not recording");
    Ok(())
}

const PORT: u16 = 7;
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
