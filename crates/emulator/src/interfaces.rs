//! Interfaces, addresses, routes and kernel settings of the namespaces.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::{fs, io};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric, RouteScope};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection};

use crate::path::{ATTACKER_ADDRESS, SERVER_ADDRESS_FOR_ATTACKER, client_address, server_address};
use crate::{LinkError, Namespace};

/// The four namespaces of the network.
pub(crate) struct Namespaces<'a> {
    pub(crate) client: &'a Namespace,
    pub(crate) link: &'a Namespace,
    pub(crate) server: &'a Namespace,
    pub(crate) attacker: &'a Namespace,
}

/// TCP settings of every route.
#[derive(Clone, Copy)]
pub(crate) struct RouteSettings<'a> {
    pub(crate) congestion_control: &'a str,
    pub(crate) initial_window: u32,
}

/// The type of the interfaces of client and server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointKind {
    /// A veth end.
    Ethernet,
    /// A TUN device.
    Tun,
}

/// The link's interface towards the client.
pub(crate) const CLIENT_SIDE: &str = "to-client";
/// The link's interface towards the server.
pub(crate) const SERVER_SIDE: &str = "to-server";

/// Connects client and server to the link by veth pairs, with packet rings at the link's ends.
pub(crate) fn create_veth_pairs(namespaces: &Namespaces<'_>) -> Result<(), LinkError> {
    in_namespace(namespaces.link, async |netlink| {
        netlink.create_veth_pair(CLIENT_SIDE, WIRE, namespaces.client.as_fd()).await?;
        netlink.create_veth_pair(SERVER_SIDE, WIRE, namespaces.server.as_fd()).await?;
        netlink.bring_up_ring_interface(CLIENT_SIDE).await?;
        netlink.bring_up_ring_interface(SERVER_SIDE).await
    })
}

/// Configures addresses and routes of the interfaces in all namespaces, for this many paths. The
/// [`WIRE`] interfaces in the namespaces of client and server already exist.
pub(crate) fn configure(
    namespaces: &Namespaces<'_>,
    paths: usize,
    kind: EndpointKind,
    route_settings: RouteSettings<'_>,
) -> Result<(), LinkError> {
    in_namespace(namespaces.attacker, async |netlink| {
        netlink.create_veth_pair(WIRE, ATTACKER_LINK, namespaces.server.as_fd()).await
    })?;
    in_namespace(namespaces.client, async |netlink| {
        netlink.bring_up_loopback().await?;
        let peers = (0..paths).map(|path| (client_address(path), server_address(path)));
        let macs = (kind == EndpointKind::Ethernet).then_some((CLIENT_MAC, SERVER_MAC));
        netlink.configure_endpoint(WIRE, macs, peers.collect(), route_settings).await
    })?;
    in_namespace(namespaces.server, async |netlink| {
        netlink.bring_up_loopback().await?;
        let peers = (0..paths).map(|path| (server_address(path), client_address(path)));
        let macs = (kind == EndpointKind::Ethernet).then_some((SERVER_MAC, CLIENT_MAC));
        netlink.configure_endpoint(WIRE, macs, peers.collect(), route_settings).await?;
        let peers = vec![(SERVER_ADDRESS_FOR_ATTACKER, ATTACKER_ADDRESS)];
        let macs = Some((ATTACKER_LINK_MAC, ATTACKER_MAC));
        netlink.configure_endpoint(ATTACKER_LINK, macs, peers, route_settings).await
    })?;
    in_namespace(namespaces.attacker, async |netlink| {
        netlink.bring_up_loopback().await?;
        let servers = (0..paths).map(server_address).chain([SERVER_ADDRESS_FOR_ATTACKER]);
        let peers = servers.map(|server| (ATTACKER_ADDRESS, server)).collect();
        netlink
            .configure_endpoint(
                WIRE,
                Some((ATTACKER_MAC, ATTACKER_LINK_MAC)),
                peers,
                route_settings,
            )
            .await
    })
}

/// Runs rtnetlink requests inside a namespace.
fn in_namespace(
    namespace: &Namespace,
    requests: impl AsyncFnOnce(Netlink) -> Result<(), LinkError> + Send,
) -> Result<(), LinkError> {
    let open_error = |e: io::Error| LinkError::system("open rtnetlink", e);
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(open_error)?;
        runtime.block_on(async {
            let (connection, handle, _) = new_connection().map_err(open_error)?;
            tokio::spawn(connection);
            requests(Netlink(handle)).await
        })
    })?
}

struct Netlink(Handle);

impl Netlink {
    /// Creates a veth pair, with one end here and the other in `namespace`.
    async fn create_veth_pair(
        &self,
        here: &str,
        there: &str,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        let step = || format!("make the interface pair {here} and {there}");
        let request = LinkVeth::new(here, there).mtu(MTU).build();
        self.0.link().add(request).execute().await.map_err(netlink_error(step))?;
        let request = LinkUnspec::new_with_index(index(there)?).setns_by_fd(namespace.as_raw_fd());
        self.0.link().set(request.build()).execute().await.map_err(netlink_error(step))
    }

    /// Brings up an interface of the link, which only a ring uses.
    async fn bring_up_ring_interface(&self, name: &str) -> Result<(), LinkError> {
        disable_offloads(name)?;
        self.bring_up(LinkUnspec::new_with_index(index(name)?).arp(false).up().build(), name).await
    }

    async fn bring_up_loopback(&self) -> Result<(), LinkError> {
        self.bring_up(LinkUnspec::new_with_index(index("lo")?).up().build(), "lo").await
    }

    async fn bring_up(
        &self,
        request: rtnetlink::packet_route::link::LinkMessage,
        name: &str,
    ) -> Result<(), LinkError> {
        let step = || format!("bring up the interface {name}");
        self.0.link().set(request).execute().await.map_err(netlink_error(step))
    }

    /// Brings up an interface with addresses: each pair is a local address and the peer reached
    /// from it. `macs` are the local and the peers' address; a TUN device has none.
    async fn configure_endpoint(
        &self,
        name: &str,
        macs: Option<([u8; 6], [u8; 6])>,
        pairs: Vec<(Ipv4Addr, Ipv4Addr)>,
        route_settings: RouteSettings<'_>,
    ) -> Result<(), LinkError> {
        let index = index(name)?;
        let request = LinkUnspec::new_with_index(index).up();
        let request = match macs {
            Some((ours, _)) => {
                disable_offloads(name)?;
                request.address(ours.to_vec())
            }
            // A TUN device has no offloads by default, but its queue is short.
            None => request.mtu(MTU).txqueuelen(TUN_QUEUE),
        };
        self.bring_up(request.build(), name).await?;
        let mut addresses: Vec<_> = pairs.iter().map(|pair| pair.0).collect();
        addresses.dedup();
        for address in addresses {
            let step = || format!("give the interface {name} the address {address}");
            let request = self.0.address().add(index, IpAddr::V4(address), 32);
            request.execute().await.map_err(netlink_error(step))?;
        }
        for (source, peer) in pairs {
            if let Some((_, theirs)) = macs {
                self.add_neighbour(index, peer, theirs).await?;
            }
            self.add_route(index, source, peer, route_settings).await?;
        }
        Ok(())
    }

    /// Adds a permanent neighbour entry: address resolution would delay the first packet of a path.
    async fn add_neighbour(
        &self,
        index: u32,
        peer: Ipv4Addr,
        mac: [u8; 6],
    ) -> Result<(), LinkError> {
        let request = self.0.neighbours().add(index, IpAddr::V4(peer)).link_layer_address(&mac);
        request.execute().await.map_err(netlink_error(|| format!("add the neighbour {peer}")))
    }

    async fn add_route(
        &self,
        index: u32,
        source: Ipv4Addr,
        peer: Ipv4Addr,
        route_settings: RouteSettings<'_>,
    ) -> Result<(), LinkError> {
        let RouteSettings { congestion_control, initial_window } = route_settings;
        let step = || {
            format!(
                "add the route to {peer} with congestion control {congestion_control} and an \
                 initial window of {initial_window}"
            )
        };
        let mut request = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(peer, 32)
            .output_interface(index)
            .scope(RouteScope::Link)
            .pref_source(source)
            .build();
        request.attributes.push(RouteAttribute::Metrics(vec![
            RouteMetric::InitCwnd(initial_window),
            RouteMetric::CcAlgo(congestion_control.to_owned()),
        ]));
        self.0.route().add(request).execute().await.map_err(netlink_error(step))
    }
}

fn netlink_error(step: impl FnOnce() -> String) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Netlink { step: step(), source }
}

fn index(name: &str) -> Result<u32, LinkError> {
    if_nametoindex(name)
        .map_err(|e| LinkError::system(format!("find the interface {name}"), io::Error::from(e)))
}

/// The name of each endpoint's interface to the network.
pub(crate) const WIRE: &str = "wire";
/// The server's interface to the attacker.
const ATTACKER_LINK: &str = "attacker";
const MTU: u32 = 1_500;
/// As many packets as a ring holds.
const TUN_QUEUE: u32 = 4_096;

// Locally administered, so that they cannot belong to a real device.
pub(crate) const CLIENT_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 1];
pub(crate) const SERVER_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 2];
const ATTACKER_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 3];
const ATTACKER_LINK_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 4];

/// Disables checksum, segmentation and receive offloads of an interface in the network namespace of
/// the calling thread, by the ethtool ioctl. Between two veth ends the kernel otherwise passes 64
/// KiB segments without checksums, and a packet socket in between would capture packets that do not
/// exist on any wire.
fn disable_offloads(interface: &str) -> Result<(), LinkError> {
    let step = || format!("disable the offloads of {interface}");
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| LinkError::system(step(), e))?;
    for command in OFFLOADS {
        set_offload(&socket, interface, command, 0).map_err(|e| LinkError::system(step(), e))?;
    }
    Ok(())
}

fn set_offload(socket: &impl AsRawFd, interface: &str, command: u32, data: u32) -> io::Result<()> {
    let mut value = EthtoolValue { command, data };
    // SAFETY: an all-zero ifreq is valid: plain bytes and a union of plain types.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero; our names are shorter than the field.
    let capacity = request.ifr_name.len() - 1;
    for (slot, byte) in request.ifr_name[..capacity].iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads a terminated name and an `ethtool_value` from memory that outlives
    // the call, and writes nothing beyond it for the "set" commands.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// ETHTOOL_STXCSUM, STSO, SGSO, SGRO of linux/ethtool.h. Segmentation comes before checksums, on
/// which it depends.
const OFFLOADS: [u32; 4] = [0x1f, 0x24, 0x2c, 0x17];

/// Writes the kernel settings (/proc/sys/net) of the calling thread's network namespace. Returns
/// optional ones that this machine refused, as `key=value`.
///
/// # Errors
/// If a required setting is refused.
pub(crate) fn apply_sysctls() -> Result<Vec<String>, LinkError> {
    for (key, value) in REQUIRED_SYSCTLS {
        write_sysctl(key, value).map_err(|source| LinkError::Setting { key, value, source })?;
    }
    let mut refused = Vec::new();
    for (key, value) in OPTIONAL_SYSCTLS {
        if Path::new(SYSCTL_ROOT).join(key).exists() && write_sysctl(key, value).is_err() {
            refused.push(format!("{key}={value}"));
        }
    }
    Ok(refused)
}

fn write_sysctl(key: &str, value: &str) -> std::io::Result<()> {
    fs::write(Path::new(SYSCTL_ROOT).join(key), value)
}

const SYSCTL_ROOT: &str = "/proc/sys";

/// TCP Fast Open as client and as server (RFC 7413).
const REQUIRED_SYSCTLS: [(&str, &str); 1] = [("net/ipv4/tcp_fastopen", "3")];

const OPTIONAL_SYSCTLS: [(&str, &str); 14] = [
    // One lost SYN would otherwise switch Fast Open off for an hour.
    ("net/ipv4/tcp_fastopen_blackhole_timeout_sec", "0"),
    // A connection must not inherit RTT and window from an earlier one. Fast Open cookies are in
    // the same table but are stored anyway.
    ("net/ipv4/tcp_no_metrics_save", "1"),
    // For tens of thousands of short connections, closed by either side. The lower ports are
    // reserved for servers that restart meanwhile.
    ("net/ipv4/ip_unprivileged_port_start", "0"),
    ("net/ipv4/ip_local_port_range", "16384 65535"),
    ("net/ipv4/tcp_tw_reuse", "1"),
    ("net/ipv4/tcp_max_tw_buckets", "262144"),
    ("net/ipv4/tcp_max_syn_backlog", "65536"),
    ("net/core/somaxconn", "65535"),
    // The attacker's packets arrive at another interface than the route to their source.
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    // Neighbour and router discovery would be unexpected packets on the link.
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
    // Responses to refused connections are measured too.
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv4/tcp_invalid_ratelimit", "0"),
];
