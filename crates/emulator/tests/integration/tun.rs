//! TUN devices instead of packet rings, if this machine permits them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use firstflight_emulator::{
    Backend, CapturedPacket, Direction, LinkError, Network, NetworkConfig, PathConfig,
};
use libtest_mimic::Trial;

use crate::{Outcome, fast_open, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("tun_carries_what_rings_carry", tun_carries_what_rings_carry),
        trial("tun_without_its_device_names_the_fix", refusal_names_the_fix),
    ]
}

fn network() -> Result<Network, LinkError> {
    let path = PathConfig::symmetric("tun", Duration::from_millis(4));
    Network::build(NetworkConfig { backend: Backend::Tun, ..NetworkConfig::new(vec![path]) })
}

/// Whether this user may open the device.
fn device_opens() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_ok()
}

fn tun_carries_what_rings_carry() -> Outcome {
    if !device_opens() {
        return Ok(());
    }
    let network = network()?;
    assert_eq!(network.backend(), Backend::Tun);
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", 8)))??;
    let server = SocketAddr::from((network.path(0)?.server, 8));
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        listener.accept()?.0.read_exact(&mut vec![0; 300_000])
    });
    network.client().run(|| TcpStream::connect(server)?.write_all(&vec![7; 300_000]))??;
    reader.join().expect("no panic")?;
    let packets = network.tap().take().packets;
    for packet in &packets {
        assert_eq!(packet.due_ns - packet.arrival_ns, 2_000_000);
        assert_eq!(packet.frame[12..14], [8, 0], "an Ethernet header, as with rings");
    }
    let up = packets.iter().filter(|packet| packet.direction == Direction::Up);
    assert_eq!(up.map(|packet| packet.length).max(), Some(1_514));
    fast_open::echo_server(&network)?;
    for _ in 0..2 {
        network.client().run(|| fast_open::echo(network.path(0).expect("there").server))?;
    }
    let packets = network.tap().take().packets;
    let with_data: Vec<&CapturedPacket> = packets
        .iter()
        .filter(|packet| packet.direction == Direction::Up && fast_open::is_syn(packet))
        .collect();
    assert_eq!(with_data.len(), 2);
    let counters = network.counters()?;
    assert_eq!((counters.unexpected, counters.ring_full, counters.refused), (0, 0, 0));
    Ok(())
}

fn refusal_names_the_fix() -> Outcome {
    match network() {
        Ok(_) => assert!(device_opens()),
        Err(error) => {
            assert!(!device_opens(), "{error}");
            let message = error.to_string();
            assert!(
                message.contains("/dev/net/tun") && message.contains("packet rings"),
                "{message}"
            );
        }
    }
    Ok(())
}
