//! `firstflight_bench` with the command line of `bare_loop` and `bare_quic`: closed loop, one thread;
//! prints the result as one line of JSON. `scripts/load-client` compares them.
//!
//!     drive tcp|quic ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS [SERVER_PID]

use std::ops::ControlFlow;
use std::time::Duration;

use firstflight_bench::{Exchange, Limit, LoadConfig, LoadHandshake, Model, Transport, run};
use firstflight_tls::{CipherPolicy, Trust};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [transport, address, kind, connections, seconds, pid @ ..] = arguments.as_slice() else {
        return Err(
            "usage: drive tcp|quic ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS [PID]".into()
        );
    };
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
        ciphers: CipherPolicy { groups: Some("X25519".into()), ..CipherPolicy::default() },
        trust: Trust::Anyone,
        model: Model::Closed { connections: connections.parse()? },
        limit: Limit::Time(Duration::from_secs_f64(seconds.parse()?)),
        server_pids: pid.iter().map(|pid| pid.parse()).collect::<Result<_, _>>()?,
        ..LoadConfig::new(vec![address.parse()?], "localhost")
    };
    let result = run(&config, |_| ControlFlow::Continue(()))?;
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}
