//! Upgrades: hands sockets, secrets, the strike register and QUIC packets over to the next process.
//!
//! This file holds the sockets and secrets. The register follows over a stream of its own.

pub(crate) mod register;
pub(crate) mod relay;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use firstflight_tickets::Ring;
use serde::{Deserialize, Serialize};
use tracing::warn;
use zeroize::Zeroizing;

/// Open sockets from a service manager or from the previous process, and the previous process's
/// secrets.
#[derive(Default)]
pub struct InheritedState {
    pub(crate) ports: Vec<InheritedPort>,
    pub(crate) secrets: Option<Secrets>,
    /// Receives the packets of the previous process's QUIC connections.
    pub(crate) packets: Option<UnixStream>,
}

/// The sockets of one listener.
pub(crate) struct InheritedPort {
    /// The configured address, possibly with port 0.
    pub(crate) requested: SocketAddr,
    pub(crate) address: SocketAddr,
    pub(crate) tcp: Option<TcpListener>,
    pub(crate) udp: Vec<UdpSocket>,
}

/// Secrets that clients depend on, so the next process keeps them.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Secrets {
    /// The key of stateless resets (RFC 9000 section 10.3).
    pub(crate) reset_key: [u8; 32],
    /// Marks the process's connection ids, so that the next process recognizes them.
    pub(crate) id_mark: [u8; 32],
    /// The ticket keys, if they are the process's own and come from no file or store.
    ring: Option<String>,
}

/// Describes the descriptors that are sent along.
#[derive(Serialize, Deserialize)]
struct Inventory {
    version: u32,
    ports: Vec<PortDescription>,
    secrets: Option<Secrets>,
    packets: bool,
}

#[derive(Serialize, Deserialize)]
struct PortDescription {
    #[serde(rename = "asked")]
    requested: SocketAddr,
    address: SocketAddr,
    tcp: bool,
    udp: usize,
}

impl InheritedState {
    /// Sockets only. They are matched to listeners by their addresses.
    pub fn from_sockets(tcp: Vec<TcpListener>, udp: Vec<UdpSocket>) -> Self {
        let mut ports: Vec<InheritedPort> = Vec::new();
        let mut index = |address: SocketAddr| {
            let known = ports.iter().position(|port| port.address == address);
            known.unwrap_or_else(|| {
                ports.push(InheritedPort {
                    requested: address,
                    address,
                    tcp: None,
                    udp: Vec::new(),
                });
                ports.len() - 1
            })
        };
        let tcp: Vec<_> = tcp
            .into_iter()
            .filter_map(|socket| Some((index(socket.local_addr().ok()?), socket)))
            .collect();
        let udp: Vec<_> = udp
            .into_iter()
            .filter_map(|socket| Some((index(socket.local_addr().ok()?), socket)))
            .collect();
        tcp.into_iter().for_each(|(index, socket)| ports[index].tcp = Some(socket));
        udp.into_iter().for_each(|(index, socket)| ports[index].udp.push(socket));
        Self { ports, secrets: None, packets: None }
    }

    /// Takes the sockets for a configured address, if there are any.
    pub(crate) fn take(&mut self, requested: SocketAddr) -> Option<InheritedPort> {
        let index = self.ports.iter().position(|port| port.requested == requested)?;
        // In order: several listeners may have the same address with port 0.
        Some(self.ports.remove(index))
    }

    /// Keeps the UDP sockets of a port that [`take`](Self::take) has returned.
    pub(crate) fn give_back_udp(&mut self, port: &mut InheritedPort) {
        let udp = std::mem::take(&mut port.udp);
        let (requested, address) = (port.requested, port.address);
        self.ports.push(InheritedPort { requested, address, tcp: None, udp });
    }

    /// Takes the remaining UDP sockets, which no listener uses.
    pub(crate) fn take_unused(&mut self) -> Vec<(SocketAddr, Vec<UdpSocket>)> {
        // UDP sockets of a previous process still receive its packets.
        let is_relayed = |port: &&InheritedPort| port.tcp.is_none() && self.packets.is_some();
        for port in self.ports.iter().filter(|port| !is_relayed(port)) {
            warn!("the socket for {} is not used: no listener has that address", port.address);
        }
        self.ports.drain(..).map(|port| (port.address, port.udp)).collect()
    }

    /// The ticket keys of the previous process, if they were its own.
    pub(crate) fn ring(&self) -> Option<Ring> {
        Ring::from_text(self.secrets.as_ref()?.ring.as_deref()?)
    }

    /// Serializes the state for another process: a description, and the descriptors to send along.
    pub fn parts(&self) -> (Zeroizing<Vec<u8>>, Vec<BorrowedFd<'_>>) {
        let mut descriptors = Vec::new();
        for port in &self.ports {
            descriptors.extend(port.tcp.iter().map(AsFd::as_fd));
            descriptors.extend(port.udp.iter().map(AsFd::as_fd));
        }
        descriptors.extend(self.packets.iter().map(AsFd::as_fd));
        let description = |port: &InheritedPort| PortDescription {
            requested: port.requested,
            address: port.address,
            tcp: port.tcp.is_some(),
            udp: port.udp.len(),
        };
        let inventory = Inventory {
            version: VERSION,
            ports: self.ports.iter().map(description).collect(),
            secrets: self.secrets.clone(),
            packets: self.packets.is_some(),
        };
        // Reserved at once, because growing would leave copies of secrets behind. A character of the
        // keys' text takes two bytes at most.
        let ring = self.secrets.as_ref().and_then(|secrets| secrets.ring.as_deref());
        let length = 1024 + 256 * self.ports.len() + 2 * ring.map_or(0, str::len);
        let mut bytes = Zeroizing::new(Vec::<u8>::with_capacity(length));
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut *bytes, &inventory);
        (bytes, descriptors)
    }

    /// Restores the state from [`parts`](Self::parts). Leaves descriptors that do not belong to it
    /// in `descriptors`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: the description comes from an incompatible version.
    pub fn from_parts(bytes: &[u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<Self> {
        let invalid = || {
            let text = "the previous process sent a state that this version cannot read; stop it \
             and start this one without it";
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let inventory: Inventory = serde_json::from_slice(bytes).map_err(|_| invalid())?;
        let needed: usize =
            inventory.ports.iter().map(|port| port.udp.saturating_add(port.tcp.into())).sum();
        let needed = needed + usize::from(inventory.packets);
        if inventory.version != VERSION || needed > descriptors.len() {
            return Err(invalid());
        }
        let mut received = descriptors.drain(..needed);
        let mut ports = Vec::new();
        for PortDescription { requested, address, tcp, udp } in inventory.ports {
            let tcp = received.by_ref().take(tcp.into()).next().map(TcpListener::from);
            let udp = received.by_ref().take(udp).map(UdpSocket::from).collect();
            ports.push(InheritedPort { requested, address, tcp, udp });
        }
        let packets = received.next().map(UnixStream::from);
        Ok(Self { ports, secrets: inventory.secrets, packets })
    }
}

impl Secrets {
    /// New random secrets.
    pub(crate) fn generate() -> Self {
        Self { reset_key: random(), id_mark: random(), ring: None }
    }

    /// The secrets for the next process, with these ticket keys. That process creates its own mark.
    pub(crate) fn with_ring(&self, ring: Option<&Ring>) -> Self {
        let ring = ring.map(|ring| ring.to_text().to_string());
        Self { reset_key: self.reset_key, id_mark: self.id_mark, ring }
    }

    /// The secrets of a process that succeeds another one.
    pub(crate) fn inherit(before: &Self) -> Self {
        Self { reset_key: before.reset_key, id_mark: random(), ring: None }
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        use zeroize::Zeroize;
        self.reset_key.zeroize();
        self.id_mark.zeroize();
        self.ring.zeroize();
    }
}

fn random() -> [u8; 32] {
    let mut random = [0; 32];
    getrandom::fill(&mut random).expect("the system gives random bytes");
    random
}

const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets() -> (TcpListener, UdpSocket) {
        // Another test may have the UDP port of the same number.
        loop {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
                return (tcp, udp);
            }
        }
    }

    #[test]
    fn sockets_and_secrets_arrive_at_their_addresses() {
        let ((first, udp), (second, _)) = (sockets(), sockets());
        let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
        let mut inherited = InheritedState::from_sockets(vec![first, second], vec![udp]);
        let secrets = Secrets::generate();
        inherited.secrets = Some(secrets.clone());
        let (bytes, received) = inherited.parts();
        let mut received: Vec<_> =
            received.into_iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let mut arrived = InheritedState::from_parts(&bytes, &mut received).unwrap();
        assert!(received.is_empty());
        let first = arrived.take(addresses[0]).unwrap();
        assert_eq!(first.tcp.unwrap().local_addr().unwrap(), addresses[0]);
        assert_eq!(first.udp[0].local_addr().unwrap(), addresses[0]);
        let second = arrived.take(addresses[1]).unwrap();
        assert_eq!((second.tcp.is_some(), second.udp.len()), (true, 0));
        assert_eq!(arrived.secrets.as_ref().unwrap().reset_key, secrets.reset_key);
        assert!(arrived.take(addresses[0]).is_none());
    }

    #[test]
    fn missing_descriptors_and_other_versions_are_refused() {
        let (tcp, _) = sockets();
        let inherited = InheritedState::from_sockets(vec![tcp], Vec::new());
        let (bytes, _) = inherited.parts();
        assert!(InheritedState::from_parts(&bytes, &mut Vec::new()).is_err());
        let other =
            String::from_utf8(bytes.to_vec()).unwrap().replace("\"version\":1", "\"version\":2");
        assert!(InheritedState::from_parts(other.as_bytes(), &mut Vec::new()).is_err());
        assert!(InheritedState::from_parts(b"[]", &mut Vec::new()).is_err());
    }
}
