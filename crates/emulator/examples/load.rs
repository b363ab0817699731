//! What a whole run of short connections costs the link: many clients at a time, each connection
//! one request and one answer, over paths of 0.2, 2, 20 and 200 ms.
//!
//! `cargo run --release -p firstflight-emulator --example load [-- CONNECTIONS [CLIENTS]]`

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firstflight_emulator::{Network, NetworkConfig, Path, PathConfig, enter_user_namespace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    enter_user_namespace()?;
    let mut arguments = std::env::args().skip(1);
    let connections: usize = arguments.next().map_or(Ok(20_000), |n| n.parse())?;
    let clients: usize = arguments.next().map_or(Ok(64), |n| n.parse())?;
    let rtts = [200, 2_000, 20_000, 200_000].map(Duration::from_micros);
    let paths = rtts.map(|rtt| PathConfig::symmetric(format!("{rtt:?}"), rtt));
    let network = Network::build(NetworkConfig::new(paths.to_vec()))?;
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    for _ in 0..2 {
        let listener = listener.try_clone()?;
        network.server().spawn("server", move || serve(&listener))?;
    }

    let started = Instant::now();
    let errors = network.client().run(|| run(&network.paths(), connections, clients))?;
    let elapsed = started.elapsed();
    println!("{connections} connections, {clients} at a time, in {elapsed:.1?}");
    println!("error of two round trips in microseconds");
    println!("{:>8} {:>8} {:>8} {:>8} {:>8}", "path", "count", "p50", "p99", "max");
    for (path, mut errors) in network.paths().iter().zip(errors) {
        errors.sort_unstable();
        let at = |quantile: f64| errors[((errors.len() - 1) as f64 * quantile) as usize];
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        println!("{:>8} {:>8} {p50:>8} {p99:>8} {max:>8}", path.name, errors.len());
    }
    println!("{:?}\n{:?}", network.lateness(), network.counters()?);
    let batch = network.tap().take();
    let bytes: usize = batch.packets.iter().map(|packet| packet.frame.len()).sum();
    println!("tap: {} packets of {bytes} bytes, {} missed", batch.packets.len(), batch.missed);
    Ok(())
}

/// The errors of each path, from `clients` threads that share the connections between them.
fn run(paths: &[Path], connections: usize, clients: usize) -> Vec<Vec<i64>> {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut errors = vec![Vec::new(); paths.len()];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= connections {
                return errors;
            }
            let path = &paths[number % paths.len()];
            let started = Instant::now();
            match exchange(SocketAddr::from((path.server, PORT))) {
                Ok(()) => errors[number % paths.len()]
                    .push(started.elapsed().as_micros() as i64 - 2 * path.rtt().as_micros() as i64),
                Err(error) => eprintln!("{}: {error}", path.name),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let mut all = vec![Vec::new(); paths.len()];
        for thread in threads {
            let errors = thread.join().expect("a client does not panic");
            all.iter_mut().zip(errors).for_each(|(all, mut errors)| all.append(&mut errors));
        }
        all
    })
}

fn exchange(server: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(&[1; 400])?;
    stream.read_exact(&mut [0; 400])
}

fn serve(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut buffer = [0; 400];
            // A client that went away shows up among its own errors.
            let _ = stream.read_exact(&mut buffer).and_then(|()| stream.write_all(&buffer));
        });
    }
}

const PORT: u16 = 443;
