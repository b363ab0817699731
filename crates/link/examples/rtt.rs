//! Measures the link's own error: UDP echoes over paths of 0.2, 2, 20 and 200 ms.
//!
//! `cargo run --release -p firstflight-link --example rtt [-- SAMPLES [awake]]`

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use firstflight_link::{Network, NetworkConfig, PathConfig, enter_user_namespace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let privilege = enter_user_namespace()?;
    let keep_awake = std::env::args().nth(2).is_some_and(|word| word == "awake");
    let samples: usize = std::env::args().nth(1).map_or(Ok(300), |n| n.parse())?;
    let rtts = [200, 2_000, 20_000, 200_000].map(Duration::from_micros);
    let paths = rtts.map(|rtt| PathConfig::symmetric(format!("{rtt:?}"), rtt));
    let network =
        Network::build(NetworkConfig { keep_awake, ..NetworkConfig::new(paths.to_vec()) })?;
    println!("privilege: {privilege:?}; settings refused: {:?}", network.refused_settings());

    let socket = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    network.server().spawn("echo", move || echo(&socket))?;
    println!("RTT error in microseconds, {samples} samples each");
    println!("{:>8} {:>8} {:>8} {:>8}", "path", "p50", "p99", "max");
    for path in network.paths() {
        // A fifth of a minute at most for the longest path.
        let count = samples.min((12_000_000 / path.rtt().as_micros()) as usize);
        let address = SocketAddr::from((path.server, PORT));
        let mut errors = network.client().run(|| probe(address, path.rtt(), count))??;
        errors.sort_unstable();
        let at = |quantile: f64| errors[((errors.len() - 1) as f64 * quantile) as usize];
        println!("{:>8} {:>8} {:>8} {:>8}", path.name, at(0.5), at(0.99), at(1.0));
    }
    println!("lateness of the link alone: {:?}", network.lateness());
    println!("{:?}", network.counters()?);
    Ok(())
}

fn echo(socket: &UdpSocket) {
    let mut buffer = [0; 2_048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        // A lost echo shows up as the prober's timeout.
        let _ = socket.send_to(&buffer[..length], from);
    }
}

fn probe(server: SocketAddr, rtt: Duration, count: usize) -> std::io::Result<Vec<i64>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut errors = Vec::with_capacity(count);
    for number in 0..count as u64 {
        let sent = Instant::now();
        socket.send(&number.to_be_bytes())?;
        socket.recv(&mut [0; 64])?;
        errors.push(sent.elapsed().as_micros() as i64 - rtt.as_micros() as i64);
        // Not in step with the echo before.
        std::thread::sleep(Duration::from_micros(300 + number % 7 * 100));
    }
    Ok(errors)
}

const PORT: u16 = 7;
