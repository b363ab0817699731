//! `firstflight health`: checks whether a running server is ready, for containers and scripts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use firstflight_config::{AdminAddress, AdminSettings, parse_duration};
use firstflight_units::printable_lines;

/// Check whether a running server is ready.
///
/// Exits with 0 if it is ready, 1 if it is not or does not respond, and 2 if there is no address to
/// query. Requests `/readyz` at the admin address, which needs no token.
#[derive(Args)]
pub(crate) struct HealthArgs {
    /// Admin address of the server: 127.0.0.1:9090, unix:/PATH.
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH", env = "FIRSTFLIGHT_ADMIN")]
    admin: Option<AdminAddress>,

    /// Configuration file of the server, whose [admin] section has the address.
    #[arg(long, value_name = "FILE", env = "FIRSTFLIGHT_CONFIG")]
    config: Option<PathBuf>,

    /// Time limit for the response.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time_limit)]
    timeout: Duration,
}

pub(crate) fn run(args: HealthArgs) -> anyhow::Result<ExitCode> {
    let address = loopback_address(address(args.admin, args.config)?);
    match request_readiness(address.clone(), args.timeout) {
        Ok((status, body)) => {
            outln!("{}", printable_lines(&body));
            Ok(if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) => {
            outln!("no response from {address}: {error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn address(admin: Option<AdminAddress>, config: Option<PathBuf>) -> anyhow::Result<AdminAddress> {
    if let Some(address) = admin {
        return Ok(address);
    }
    let Some(path) = config else {
        bail!("no admin address given; use --admin, or --config with the server's configuration");
    };
    // Reads the [admin] section only: an error elsewhere in the file does not affect the running
    // server.
    let section = AdminSettings::from_file(&path)?;
    let section = section.with_context(|| {
        format!(
            "{} has no [admin] section; add one with an address, or use --admin",
            path.display()
        )
    })?;
    Ok(section.address)
}

/// Replaces an unspecified address by loopback's.
fn loopback_address(address: AdminAddress) -> AdminAddress {
    match address {
        AdminAddress::Tcp(mut address) if address.ip().is_unspecified() => {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
            AdminAddress::Tcp(address)
        }
        address => address,
    }
}

fn time_limit(text: &str) -> Result<Duration, String> {
    let limit = parse_duration(text)?;
    match limit.is_zero() {
        true => Err("the limit is zero; give a time such as 5s".to_owned()),
        false => Ok(limit),
    }
}

/// Requests `/readyz` and returns the status and the body.
fn request_readiness(address: AdminAddress, timeout: Duration) -> io::Result<(u16, String)> {
    // A thread, because the limit covers connecting, sending and receiving together, and connecting
    // to a Unix socket takes no timeout. The thread ends with the program.
    let (sender, response) = mpsc::channel();
    thread::spawn(move || {
        // Fails if the receiver has timed out.
        let _ = sender.send(request(&address));
    });
    response.recv_timeout(timeout).unwrap_or_else(|_| {
        Err(io::Error::new(ErrorKind::TimedOut, format!("it takes longer than {timeout:?}")))
    })
}

fn request(address: &AdminAddress) -> io::Result<(u16, String)> {
    match address {
        AdminAddress::Tcp(address) => send_request(TcpStream::connect(address)?, *address),
        AdminAddress::Unix(path) => {
            send_request(UnixStream::connect(path)?, (Ipv4Addr::LOCALHOST, 80).into())
        }
    }
}

fn send_request(mut stream: impl Read + Write, host: SocketAddr) -> io::Result<(u16, String)> {
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response)?;
    parse_response(&String::from_utf8_lossy(&response)).ok_or_else(|| {
        io::Error::other("not an HTTP response; check that this is the admin address")
    })
}

fn parse_response(response: &str) -> Option<(u16, String)> {
    let status = response.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let (_, body) = response.split_once("\r\n\r\n")?;
    Some((status, body.trim().to_owned()))
}

/// Enough for a head and a sentence.
const MAX_RESPONSE_BYTES: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(200);

    #[test]
    fn the_time_limit_covers_connecting_and_the_whole_response() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let slow = AdminAddress::Tcp(listener.local_addr().unwrap());
        // Each byte comes long before the limit.
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            while client.write_all(b"x").is_ok() {
                thread::sleep(TIMEOUT / 20);
            }
        });
        assert_eq!(request_readiness(slow, TIMEOUT).unwrap_err().kind(), ErrorKind::TimedOut);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin");
        let listener = UnixListener::bind(&path).unwrap();
        // One connection may wait to be accepted, and the next one waits to connect.
        rustix::net::listen(&listener, 0).unwrap();
        let _queued = UnixStream::connect(&path).unwrap();
        let full = request_readiness(AdminAddress::Unix(path), TIMEOUT);
        assert_eq!(full.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_time_limit_of_zero_is_refused() {
        assert_eq!(time_limit("90ms"), Ok(Duration::from_millis(90)));
        assert!(time_limit("0s").unwrap_err().contains("such as 5s"));
        time_limit("soon").unwrap_err();
    }

    #[test]
    fn a_response_has_a_status_and_a_body() {
        let ready = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
        assert_eq!(parse_response(ready), Some((200, "ok".to_owned())));
        for invalid in ["", "HTTP/1.1 2", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 200 OK\r\n"] {
            assert_eq!(parse_response(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn an_unspecified_address_is_replaced_by_loopback() {
        for (address, expected) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("192.0.2.1:9090", "192.0.2.1:9090"),
            ("unix:/a", "unix:/a"),
        ] {
            assert_eq!(loopback_address(address.parse().unwrap()).to_string(), expected);
        }
    }
}
