//! Simulates a distant store: forwards connections and delays each direction.
//!
//!     delay_proxy LISTEN UPSTREAM DELAY_MS
//!
//! LISTEN and UPSTREAM are paths of unix sockets (with a `/`) or `HOST:PORT`. Data leaves DELAY_MS
//! after it arrived, without a limit on the rate. Threads sleep, because the timers of tokio have a
//! resolution of a millisecond.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, delay] = arguments.as_slice() else {
        return Err("usage: delay_proxy LISTEN UPSTREAM DELAY_MS".into());
    };
    let delay = Duration::try_from_secs_f64(delay.parse::<f64>()? / 1e3)?;
    let listener = Listener::bind(listen)?;
    loop {
        let (client, upstream) = (listener.accept()?, upstream.clone());
        thread::spawn(move || {
            if let Err(error) = forward(client, &upstream, delay) {
                eprintln!("delay_proxy: {upstream}: {error}");
            }
        });
    }
}

/// Forwards both directions, each with a thread that reads and a thread that writes after the
/// delay. The last thread to end closes the sockets.
fn forward(client: Socket, upstream: &str, delay: Duration) -> io::Result<()> {
    let server = Socket::connect(upstream)?;
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        let (sender, receiver) = channel();
        thread::spawn(move || read_chunks(from, &sender));
        thread::spawn(move || write_delayed(to, &receiver, delay));
    }
    Ok(())
}

/// The time of arrival, and the data; `None` at the end of the stream.
type Chunk = (Instant, Option<Vec<u8>>);

fn read_chunks(mut from: Socket, sender: &Sender<Chunk>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let data = match from.read(&mut buffer) {
            Ok(length @ 1..) => Some(buffer[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(_) | Err(_) => None,
        };
        let ended = data.is_none();
        if sender.send((Instant::now(), data)).is_err() || ended {
            return;
        }
    }
}

fn write_delayed(mut to: Socket, receiver: &Receiver<Chunk>, delay: Duration) {
    while let Ok((arrived_at, data)) = receiver.recv() {
        thread::sleep((arrived_at + delay).saturating_duration_since(Instant::now()));
        match data {
            Some(data) if to.write_all(&data).is_ok() => {}
            _ => break,
        }
    }
    to.shut_down();
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn bind(address: &str) -> io::Result<Self> {
        Ok(match address.contains('/') {
            true => Self::Unix(UnixListener::bind(address)?),
            false => Self::Tcp(TcpListener::bind(address)?),
        })
    }

    fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Self::Unix(listener) => Socket::Unix(listener.accept()?.0),
            Self::Tcp(listener) => Socket::of_tcp(listener.accept()?.0)?,
        })
    }
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    fn connect(address: &str) -> io::Result<Self> {
        match address.contains('/') {
            true => UnixStream::connect(address).map(Self::Unix),
            false => Self::of_tcp(TcpStream::connect(address)?),
        }
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Another handle of the same socket.
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.write_all(data),
            Self::Tcp(stream) => stream.write_all(data),
        }
    }

    /// Closes the direction to the peer, unless the peer has gone.
    fn shut_down(&self) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}
