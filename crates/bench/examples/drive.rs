//! `firstflight_bench` with the command line of `bare_loop` and `bare_quic`: closed loop, one thread;
//! prints the result as one line of JSON. `scripts/load-client` compares them.
//!
//!     drive tcp|quic ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS [SERVER_PID]
//!     drive kept ADDRESS 1.1|2|3 CONNECTIONS SECONDS SERVER_PID [USER:PASSWORD]
//!
//! The second form makes requests on persistent connections, over that version of HTTP, with basic
//! authentication if there are credentials.

use std::ops::ControlFlow;
use std::time::Duration;

use firstflight_bench::{
    Exchange, KeepAliveConfig, Limit, LoadConfig, LoadHandshake, Model, Transport, run,
    run_keep_alive,
};
use firstflight_samples::HttpVersion;
use firstflight_tls::{CipherPolicy, Trust};
use procfs::process::Process;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [transport, address, kind, connections, seconds, pid @ ..] = arguments.as_slice() else {
        return Err("usage: drive tcp|quic|kept ADDRESS full|resumed|0-RTT|1.1|2|3 CONNECTIONS \
                    SECONDS [PID [USER:PASSWORD]]"
            .into());
    };
    let limit = Limit::Time(Duration::from_secs_f64(seconds.parse()?));
    let ciphers = CipherPolicy { groups: Some("X25519".into()), ..CipherPolicy::default() };
    if let ("kept", [pid, credentials @ ..]) = (transport.as_str(), pid) {
        let http = match kind.as_str() {
            "1.1" => HttpVersion::One,
            "2" => HttpVersion::Two,
            "3" => HttpVersion::Three,
            other => return Err(format!("unknown version of HTTP {other:?}").into()),
        };
        let config = KeepAliveConfig {
            address: address.parse()?,
            path: "/".into(),
            credentials: credentials.first().cloned(),
            http,
            ciphers,
            connections: connections.parse()?,
            limit,
        };
        let pid = pid.parse()?;
        let mut before = Ok(0);
        let result = run_keep_alive(&config, || before = cpu_micros(pid))?;
        let server_us = (cpu_micros(pid)? - before?) as f64 / result.completed.max(1) as f64;
        let completed = result.completed;
        println!(r#"{{"completed":{completed},"server_us":{server_us}}}"#);
        return Ok(());
    }
    let config = LoadConfig {
        transport: match transport.as_str() {
            "tcp" => Transport::Tcp,
            "quic" => Transport::Quic,
            other => return Err(format!("unknown transport {other:?}").into()),
        },
        kind: match kind.as_str() {
            "full" => LoadHandshake::Full,
            "resumed" => LoadHandshake::Resumed,
            "0-RTT" => LoadHandshake::ZeroRtt,
            other => return Err(format!("unknown kind {other:?}").into()),
        },
        exchange: Exchange::get(address, "/"),
        ciphers,
        trust: Trust::Anyone,
        model: Model::Closed { connections: connections.parse()? },
        limit,
        server_pids: pid.iter().map(|pid| pid.parse()).collect::<Result<_, _>>()?,
        ..LoadConfig::new(vec![address.parse()?], "localhost")
    };
    let result = run(&config, |_| ControlFlow::Continue(()))?;
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

/// The CPU time of a process so far, kernel included, in microseconds.
fn cpu_micros(pid: i32) -> Result<u64, Failed> {
    let stat = Process::new(pid)?.stat()?;
    Ok((stat.utime + stat.stime) * 1_000_000 / procfs::ticks_per_second())
}
