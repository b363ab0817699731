//! Interfaces, addresses, routes and neighbours of the network, by rtnetlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric, RouteScope};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection};

use crate::path::{ATTACKER, TOWARDS_ATTACKER, client_address, server_address};
use crate::{LinkError, Namespace, offload};

/// The four namespaces that are wired together.
pub(crate) struct Rooms<'a> {
    pub(crate) client: &'a Namespace,
    pub(crate) link: &'a Namespace,
    pub(crate) server: &'a Namespace,
    pub(crate) attacker: &'a Namespace,
}

/// How TCP behaves on every route.
#[derive(Clone, Copy)]
pub(crate) struct Transport<'a> {
    pub(crate) congestion_control: &'a str,
    pub(crate) initial_window: u32,
}

/// What the interfaces of client and server are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// One end of a veth pair.
    Ethernet,
    /// A TUN device.
    Tun,
}

/// The link's interface towards the client.
pub(crate) const CLIENT_SIDE: &str = "to-client";
/// The link's interface towards the server.
pub(crate) const SERVER_SIDE: &str = "to-server";

/// Joins client and server to the link by veth pairs, for packet rings at the link's ends.
pub(crate) fn pairs(rooms: &Rooms<'_>) -> Result<(), LinkError> {
    in_room(rooms.link, async |netlink| {
        netlink.pair(CLIENT_SIDE, WIRE, rooms.client.as_fd()).await?;
        netlink.pair(SERVER_SIDE, WIRE, rooms.server.as_fd()).await?;
        netlink.forwarding_end(CLIENT_SIDE).await?;
        netlink.forwarding_end(SERVER_SIDE).await
    })
}

/// Gives the interfaces of all rooms their addresses and routes, for this many paths. Those named
/// [`WIRE`] in the rooms of client and server are there already.
pub(crate) fn configure(
    rooms: &Rooms<'_>,
    paths: usize,
    ends: Ends,
    transport: Transport<'_>,
) -> Result<(), LinkError> {
    in_room(rooms.attacker, async |netlink| {
        netlink.pair(WIRE, BACK_DOOR, rooms.server.as_fd()).await
    })?;
    in_room(rooms.client, async |netlink| {
        netlink.loopback().await?;
        let peers = (0..paths).map(|path| (client_address(path), server_address(path)));
        let macs = (ends == Ends::Ethernet).then_some((CLIENT_MAC, SERVER_MAC));
        netlink.endpoint(WIRE, macs, peers.collect(), transport).await
    })?;
    in_room(rooms.server, async |netlink| {
        netlink.loopback().await?;
        let peers = (0..paths).map(|path| (server_address(path), client_address(path)));
        let macs = (ends == Ends::Ethernet).then_some((SERVER_MAC, CLIENT_MAC));
        netlink.endpoint(WIRE, macs, peers.collect(), transport).await?;
        let peers = vec![(TOWARDS_ATTACKER, ATTACKER)];
        let macs = Some((BACK_DOOR_MAC, ATTACKER_MAC));
        netlink.endpoint(BACK_DOOR, macs, peers, transport).await
    })?;
    in_room(rooms.attacker, async |netlink| {
        netlink.loopback().await?;
        let servers = (0..paths).map(server_address).chain([TOWARDS_ATTACKER]);
        let peers = servers.map(|server| (ATTACKER, server)).collect();
        netlink.endpoint(WIRE, Some((ATTACKER_MAC, BACK_DOOR_MAC)), peers, transport).await
    })
}

/// Runs rtnetlink requests inside a namespace.
fn in_room(
    room: &Namespace,
    requests: impl AsyncFnOnce(Netlink) -> Result<(), LinkError> + Send,
) -> Result<(), LinkError> {
    let opening = |e: io::Error| LinkError::system("open rtnetlink", e);
    room.run(|| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(opening)?;
        runtime.block_on(async {
            let (connection, handle, _) = new_connection().map_err(opening)?;
            tokio::spawn(connection);
            requests(Netlink(handle)).await
        })
    })?
}

struct Netlink(Handle);

impl Netlink {
    /// Makes a veth pair, one end here and the other in `room`.
    async fn pair(&self, here: &str, there: &str, room: BorrowedFd<'_>) -> Result<(), LinkError> {
        let step = || format!("make the interface pair {here} and {there}");
        let request = LinkVeth::new(here, there).mtu(MTU).build();
        self.0.link().add(request).execute().await.map_err(refused(step))?;
        let request = LinkUnspec::new_with_index(index(there)?).setns_by_fd(room.as_raw_fd());
        self.0.link().set(request.build()).execute().await.map_err(refused(step))
    }

    /// Brings up an end that only the rings use.
    async fn forwarding_end(&self, name: &str) -> Result<(), LinkError> {
        offload::switch_off(name)?;
        self.up(LinkUnspec::new_with_index(index(name)?).arp(false).up().build(), name).await
    }

    async fn loopback(&self) -> Result<(), LinkError> {
        self.up(LinkUnspec::new_with_index(index("lo")?).up().build(), "lo").await
    }

    async fn up(
        &self,
        request: rtnetlink::packet_route::link::LinkMessage,
        name: &str,
    ) -> Result<(), LinkError> {
        let step = || format!("bring up the interface {name}");
        self.0.link().set(request).execute().await.map_err(refused(step))
    }

    /// Brings up an end with addresses: each pair is one of ours and the peer reached from it.
    /// `macs` are ours and the peers'; a TUN device has none.
    async fn endpoint(
        &self,
        name: &str,
        macs: Option<([u8; 6], [u8; 6])>,
        pairs: Vec<(Ipv4Addr, Ipv4Addr)>,
        transport: Transport<'_>,
    ) -> Result<(), LinkError> {
        let index = index(name)?;
        let request = LinkUnspec::new_with_index(index).up();
        let request = match macs {
            Some((ours, _)) => {
                offload::switch_off(name)?;
                request.address(ours.to_vec())
            }
            // A TUN device offers no offloads unless asked to, but its queue is short.
            None => request.mtu(MTU).txqueuelen(TUN_QUEUE),
        };
        self.up(request.build(), name).await?;
        let mut own: Vec<_> = pairs.iter().map(|pair| pair.0).collect();
        own.dedup();
        for address in own {
            let step = || format!("give the interface {name} the address {address}");
            let request = self.0.address().add(index, IpAddr::V4(address), 32);
            request.execute().await.map_err(refused(step))?;
        }
        for (source, peer) in pairs {
            if let Some((_, theirs)) = macs {
                self.neighbour(index, peer, theirs).await?;
            }
            self.route(index, source, peer, transport).await?;
        }
        Ok(())
    }

    /// A permanent neighbour entry: address resolution would delay the first packet of a path.
    async fn neighbour(&self, index: u32, peer: Ipv4Addr, mac: [u8; 6]) -> Result<(), LinkError> {
        let request = self.0.neighbours().add(index, IpAddr::V4(peer)).link_layer_address(&mac);
        request.execute().await.map_err(refused(|| format!("add the neighbour {peer}")))
    }

    async fn route(
        &self,
        index: u32,
        source: Ipv4Addr,
        peer: Ipv4Addr,
        transport: Transport<'_>,
    ) -> Result<(), LinkError> {
        let Transport { congestion_control, initial_window } = transport;
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
        self.0.route().add(request).execute().await.map_err(refused(step))
    }
}

fn refused(step: impl FnOnce() -> String) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Netlink { step: step(), source }
}

fn index(name: &str) -> Result<u32, LinkError> {
    if_nametoindex(name)
        .map_err(|e| LinkError::system(format!("find the interface {name}"), io::Error::from(e)))
}

/// The name of each endpoint's own interface to the network.
pub(crate) const WIRE: &str = "wire";
/// The server's interface to the attacker.
const BACK_DOOR: &str = "attacker";
const MTU: u32 = 1_500;
/// As many packets as a ring has.
const TUN_QUEUE: u32 = 4_096;

// Locally administered, so that they can be no real device's.
pub(crate) const CLIENT_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 1];
pub(crate) const SERVER_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 2];
const ATTACKER_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 3];
const BACK_DOOR_MAC: [u8; 6] = [0x02, 0xff, 0, 0, 0, 4];
