//! Upgrades: sockets, secrets, the register and QUIC packets on their way to the next process.
//!
//! Here is what a process leaves to the one that takes its place, beside its register.

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

/// Sockets that are open already, from a service manager or from the process before this one, and
/// what that one kept secret.
#[derive(Default)]
pub struct InheritedState {
    pub(crate) ports: Vec<InheritedPort>,
    pub(crate) secrets: Option<Secrets>,
    /// Where packets of the other process's QUIC connections go.
    pub(crate) packets: Option<UnixStream>,
}

/// A port with sockets.
pub(crate) struct InheritedPort {
    /// As the configuration had it, maybe with port 0.
    pub(crate) asked: SocketAddr,
    pub(crate) address: SocketAddr,
    pub(crate) tcp: Option<TcpListener>,
    pub(crate) udp: Vec<UdpSocket>,
}

/// What clients have something of, and what is thus to stay as it is.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Secrets {
    /// The key of stateless resets.
    pub(crate) reset_key: [u8; 32],
    /// By which the other process knows its connection ids.
    pub(crate) id_mark: [u8; 32],
    /// The ticket keys, where they are the process's own.
    ring: Option<String>,
}

/// What goes along with the descriptors.
#[derive(Serialize, Deserialize)]
struct Inventory {
    version: u32,
    ports: Vec<Entry>,
    secrets: Option<Secrets>,
    packets: bool,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    asked: SocketAddr,
    address: SocketAddr,
    tcp: bool,
    udp: usize,
}

impl InheritedState {
    /// Of sockets alone, which are known by their addresses.
    pub fn of_sockets(tcp: Vec<TcpListener>, udp: Vec<UdpSocket>) -> Self {
        let mut ports: Vec<InheritedPort> = Vec::new();
        let mut at = |address: SocketAddr| {
            let known = ports.iter().position(|port| port.address == address);
            known.unwrap_or_else(|| {
                ports.push(InheritedPort { asked: address, address, tcp: None, udp: Vec::new() });
                ports.len() - 1
            })
        };
        let tcp: Vec<_> = tcp
            .into_iter()
            .filter_map(|socket| Some((at(socket.local_addr().ok()?), socket)))
            .collect();
        let udp: Vec<_> = udp
            .into_iter()
            .filter_map(|socket| Some((at(socket.local_addr().ok()?), socket)))
            .collect();
        tcp.into_iter().for_each(|(at, socket)| ports[at].tcp = Some(socket));
        udp.into_iter().for_each(|(at, socket)| ports[at].udp.push(socket));
        Self { ports, secrets: None, packets: None }
    }

    /// The sockets that were given for an address, if any were.
    pub(crate) fn take(&mut self, asked: SocketAddr) -> Option<InheritedPort> {
        let at = self.ports.iter().position(|port| port.asked == asked)?;
        // In order: several may have been asked for alike, each with a port that the system chose.
        Some(self.ports.remove(at))
    }

    /// Says what nobody has asked for.
    pub(crate) fn warn_of_the_rest(&self) {
        for port in &self.ports {
            warn!("the socket for {} is not used: no listener has that address", port.address);
        }
    }

    /// The ticket keys of the process before this one, if they were its own.
    pub(crate) fn ring(&self) -> Option<Ring> {
        Ring::from_text(self.secrets.as_ref()?.ring.as_deref()?)
    }

    /// All of it for another process: a description, and the descriptors that go along.
    pub fn parts(&self) -> (Zeroizing<Vec<u8>>, Vec<BorrowedFd<'_>>) {
        let mut descriptors = Vec::new();
        for port in &self.ports {
            descriptors.extend(port.tcp.iter().map(AsFd::as_fd));
            descriptors.extend(port.udp.iter().map(AsFd::as_fd));
        }
        descriptors.extend(self.packets.iter().map(AsFd::as_fd));
        let entry = |port: &InheritedPort| Entry {
            asked: port.asked,
            address: port.address,
            tcp: port.tcp.is_some(),
            udp: port.udp.len(),
        };
        let inventory = Inventory {
            version: VERSION,
            ports: self.ports.iter().map(entry).collect(),
            secrets: self.secrets.clone(),
            packets: self.packets.is_some(),
        };
        (Zeroizing::new(serde_json::to_vec(&inventory).unwrap_or_default()), descriptors)
    }

    /// Puts it together again. Descriptors that are not part of it are left over.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: it comes from a program that is too different.
    pub fn from_parts(bytes: &[u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<Self> {
        let invalid = || {
            let text = "the process before this one leaves what this version cannot read; stop it \
                        and start this one by itself";
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let inventory: Inventory = serde_json::from_slice(bytes).map_err(|_| invalid())?;
        let wanted: usize =
            inventory.ports.iter().map(|port| port.udp.saturating_add(port.tcp.into())).sum();
        let wanted = wanted + usize::from(inventory.packets);
        if inventory.version != VERSION || wanted > descriptors.len() {
            return Err(invalid());
        }
        let mut given = descriptors.drain(..wanted);
        let mut ports = Vec::new();
        for Entry { asked, address, tcp, udp } in inventory.ports {
            let tcp = given.by_ref().take(tcp.into()).next().map(TcpListener::from);
            let udp = given.by_ref().take(udp).map(UdpSocket::from).collect();
            ports.push(InheritedPort { asked, address, tcp, udp });
        }
        let packets = given.next().map(UnixStream::from);
        Ok(Self { ports, secrets: inventory.secrets, packets })
    }
}

impl Secrets {
    /// Fresh ones.
    pub(crate) fn fresh() -> Self {
        Self { reset_key: random(), id_mark: random(), ring: None }
    }

    /// Those of a process for the next one, which marks connection ids by a key of its own.
    pub(crate) fn with_ring(&self, ring: Option<&Ring>) -> Self {
        let ring = ring.map(|ring| ring.to_text().to_string());
        Self { reset_key: self.reset_key, id_mark: self.id_mark, ring }
    }

    /// Those of a process that takes another one's place.
    pub(crate) fn after(before: &Self) -> Self {
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
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind(tcp.local_addr().unwrap()).unwrap();
        (tcp, udp)
    }

    #[test]
    fn sockets_and_secrets_arrive_at_their_addresses() {
        let ((first, udp), (second, _)) = (sockets(), sockets());
        let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
        let mut inherited = InheritedState::of_sockets(vec![first, second], vec![udp]);
        let secrets = Secrets::fresh();
        inherited.secrets = Some(secrets.clone());
        let (bytes, given) = inherited.parts();
        let mut given: Vec<_> =
            given.into_iter().map(|one| one.try_clone_to_owned().unwrap()).collect();
        let mut arrived = InheritedState::from_parts(&bytes, &mut given).unwrap();
        assert!(given.is_empty());
        let one = arrived.take(addresses[0]).unwrap();
        assert_eq!(one.tcp.unwrap().local_addr().unwrap(), addresses[0]);
        assert_eq!(one.udp[0].local_addr().unwrap(), addresses[0]);
        let two = arrived.take(addresses[1]).unwrap();
        assert_eq!((two.tcp.is_some(), two.udp.len()), (true, 0));
        assert_eq!(arrived.secrets.as_ref().unwrap().reset_key, secrets.reset_key);
        assert!(arrived.take(addresses[0]).is_none());
    }

    #[test]
    fn what_lacks_descriptors_or_is_of_another_version_is_refused() {
        let (tcp, _) = sockets();
        let inherited = InheritedState::of_sockets(vec![tcp], Vec::new());
        let (bytes, _) = inherited.parts();
        assert!(InheritedState::from_parts(&bytes, &mut Vec::new()).is_err());
        let other =
            String::from_utf8(bytes.to_vec()).unwrap().replace("\"version\":1", "\"version\":2");
        assert!(InheritedState::from_parts(other.as_bytes(), &mut Vec::new()).is_err());
        assert!(InheritedState::from_parts(b"[]", &mut Vec::new()).is_err());
    }
}
