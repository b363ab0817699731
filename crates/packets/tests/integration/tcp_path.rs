//! A TCP connection between two peers over a path with a tap in its middle, on a simulated
//! clock. Its only output is the frames that the tap saw.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use etherparse::PacketBuilder;
use firstflight_packets::{Direction, Observer, Packet};

pub(crate) const MS: u64 = 1_000_000;

/// Segments of 1,400 bytes, selective acknowledgements, windows shifted by 7.
const SYN_OPTIONS: &[u8] = &[2, 4, 5, 120, 4, 2, 1, 3, 3, 7, 1, 1];

/// The application and TLS of one end.
pub(crate) trait Peer {
    fn receive(&mut self, bytes: &[u8]);
    /// Returns the bytes to send now.
    fn send(&mut self) -> Vec<u8>;
    /// Whether the peer closes the connection.
    fn done(&self) -> bool;
    /// The time between receiving and sending, in nanoseconds.
    fn pause(&self) -> u64 {
        20_000
    }
}

/// How the client's SYN and the server treat Fast Open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tfo {
    Off,
    /// The SYN requests a cookie; the SYN-ACK contains none.
    CookieRequested,
    /// The server accepts the SYN's data.
    Accepted,
    /// The server acknowledges the SYN, but not its data.
    Ignored,
    /// The SYN with data is lost; the next SYN has no data.
    Lost,
}

/// The path and the events on it.
#[derive(Clone)]
pub(crate) struct Path {
    pub(crate) client: SocketAddrV4,
    pub(crate) server: SocketAddrV4,
    pub(crate) rtt: u64,
    pub(crate) start: u64,
    /// The maximum payload of a segment, in bytes.
    pub(crate) segment: usize,
    /// The initial sequence numbers of client and server.
    pub(crate) isn: (u32, u32),
    pub(crate) tfo: Tfo,
    /// How many segments the server sends before it waits for acknowledgements.
    pub(crate) window: usize,
    /// The tap drops the first copy of the payload packets with these numbers, by direction.
    pub(crate) drop_to_server: Vec<usize>,
    pub(crate) drop_to_client: Vec<usize>,
    /// Whether each pair of the server's payload packets reaches the tap in reverse order.
    pub(crate) swap_to_client: bool,
}

impl Path {
    pub(crate) fn new(rtt: u64) -> Self {
        Self {
            client: SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, 1), 40_000),
            server: SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, 2), 443),
            rtt,
            start: 5 * MS,
            segment: 1400,
            // Both wrap within the connection.
            isn: (u32::MAX - 100, u32::MAX - 700),
            tfo: Tfo::Off,
            window: usize::MAX,
            drop_to_server: Vec::new(),
            drop_to_client: Vec::new(),
            swap_to_client: false,
        }
    }

    pub(crate) fn tfo(self, tfo: Tfo) -> Self {
        Self { tfo, ..self }
    }

    pub(crate) fn key(&self) -> (SocketAddr, SocketAddr) {
        (self.client.into(), self.server.into())
    }

    /// Runs a connection to its end and returns what the tap captured, in the order of arrival.
    pub(crate) fn run(&self, client: &mut dyn Peer, server: &mut dyn Peer) -> Vec<Captured> {
        let mut run = Run {
            path: self,
            events: BTreeMap::new(),
            order: 0,
            captured: Vec::new(),
            ends: [TcpEnd::default(), TcpEnd::default()],
            numbers: [0, 0],
        };
        run.open(client);
        run.events(client, server);
        run.captured.sort_by_key(|captured| captured.arrived);
        run.captured
    }

    /// A frame of this connection.
    pub(crate) fn frame(&self, direction: Direction, segment: &Segment) -> Vec<u8> {
        let ((from, isn), (to, other_isn)) = match direction {
            Direction::ToServer => ((self.client, self.isn.0), (self.server, self.isn.1)),
            Direction::ToClient => ((self.server, self.isn.1), (self.client, self.isn.0)),
        };
        let mut tcp = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4(from.ip().octets(), to.ip().octets(), 64)
            .tcp(from.port(), to.port(), isn.wrapping_add(segment.at), 64_000);
        if segment.syn {
            tcp = tcp.syn();
        }
        if segment.fin {
            tcp = tcp.fin();
        }
        if let Some(ack) = segment.ack {
            tcp = tcp.ack(other_isn.wrapping_add(ack));
        }
        let tcp = tcp.options_raw(&segment.options).unwrap();
        let mut frame = Vec::new();
        tcp.write(&mut frame, &segment.payload).unwrap();
        frame
    }
}

/// A frame that the tap saw.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    pub(crate) frame: Vec<u8>,
}

impl Captured {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet {
            direction: self.direction,
            arrived: self.arrived,
            delivered: self.delivered,
            frame: &self.frame,
        }
    }
}

/// Adds a copy of each packet, as made by the path. `delivered` returns the delivery of the copy.
/// The result is in the order in which the tap reports packets.
pub(crate) fn with_copies(
    capture: &[Captured],
    delivered: impl Fn(Option<u64>) -> Option<u64>,
) -> Vec<Captured> {
    let copy = |captured: &Captured| Captured {
        delivered: delivered(captured.delivered),
        ..captured.clone()
    };
    let both = capture.iter().flat_map(|captured| [captured.clone(), copy(captured)]);
    in_reported_order(both.collect())
}

/// Sorts a capture in the order in which the tap reports packets: a dropped packet at once, others
/// when they are delivered.
pub(crate) fn in_reported_order(mut capture: Vec<Captured>) -> Vec<Captured> {
    capture.sort_by_key(|captured| captured.delivered.unwrap_or(captured.arrived));
    capture
}

pub(crate) fn feed(observer: &mut Observer, capture: &[Captured]) {
    capture.iter().for_each(|captured| observer.packet(&captured.packet()));
}

/// A TCP segment.
#[derive(Clone, Default)]
pub(crate) struct Segment {
    /// The sequence number, relative to the SYN.
    pub(crate) at: u32,
    /// The acknowledgement number, relative to the other side's SYN.
    pub(crate) ack: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

enum Event {
    /// A segment reaches the tap.
    Sent(Direction, Segment),
    Delivered(Direction, Segment),
    /// A peer's pause has ended, and it may send.
    Wakes(Direction),
}

/// The TCP state of one end, which is identified by the direction in which it sends.
#[derive(Default)]
struct TcpEnd {
    open: bool,
    /// Position of the next byte to send, and to receive.
    next: u32,
    expected: u32,
    /// Up to where the other end has acknowledged.
    acknowledged: u32,
    waiting: BTreeMap<u32, Segment>,
    /// Data that waits for the connection to open or for the window.
    unsent: Vec<u8>,
    /// The other end has sent its FIN.
    closing: bool,
    fin_sent: bool,
}

struct Run<'a> {
    path: &'a Path,
    events: BTreeMap<(u64, u64), Event>,
    order: u64,
    captured: Vec<Captured>,
    ends: [TcpEnd; 2],
    /// Payload packets sent so far, by direction.
    numbers: [usize; 2],
}

impl Run<'_> {
    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.insert((time, self.order), event);
    }

    fn open(&mut self, client: &mut dyn Peer) {
        let start = self.path.start;
        let mut data = client.send();
        let mut options = SYN_OPTIONS.to_vec();
        match self.path.tfo {
            Tfo::Off => {}
            Tfo::CookieRequested => options.extend([34, 2, 1, 1]),
            _ => options.extend([34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]),
        }
        let in_syn = match self.path.tfo {
            Tfo::Off | Tfo::CookieRequested => 0,
            _ => data.len().min(self.path.segment),
        };
        let payload = data[..in_syn].to_vec();
        let syn = Segment { syn: true, options, payload, ..Segment::default() };
        self.ends[0].next = 1;
        match self.path.tfo {
            Tfo::Accepted => {
                self.ends[0].next += in_syn as u32;
                data.drain(..in_syn);
                self.at(start, Event::Sent(Direction::ToServer, syn));
            }
            Tfo::Lost => {
                self.capture(start, Direction::ToServer, &syn, None);
                let options = SYN_OPTIONS.to_vec();
                let plain = Segment { options, payload: Vec::new(), ..syn };
                self.at(start + 1000 * MS, Event::Sent(Direction::ToServer, plain));
            }
            _ => self.at(start, Event::Sent(Direction::ToServer, syn)),
        }
        self.ends[0].unsent = data;
    }

    fn events(&mut self, client: &mut dyn Peer, server: &mut dyn Peer) {
        while let Some(((now, _), event)) = self.events.pop_first() {
            assert!(now < 600_000 * MS, "the simulated connection never ends");
            match event {
                Event::Sent(direction, segment) => {
                    let delivered = now + self.path.rtt / 2;
                    self.capture(now, direction, &segment, Some(delivered));
                    self.at(delivered, Event::Delivered(direction, segment));
                }
                Event::Delivered(Direction::ToServer, segment) => {
                    self.delivered(now, Direction::ToClient, segment, server);
                }
                Event::Delivered(Direction::ToClient, segment) => {
                    self.delivered(now, Direction::ToServer, segment, client);
                }
                Event::Wakes(Direction::ToClient) => self.wakes(now, Direction::ToClient, server),
                Event::Wakes(Direction::ToServer) => self.wakes(now, Direction::ToServer, client),
            }
        }
    }

    fn capture(
        &mut self,
        arrived: u64,
        direction: Direction,
        segment: &Segment,
        delivered: Option<u64>,
    ) {
        let frame = self.path.frame(direction, segment);
        self.captured.push(Captured { direction, arrived, delivered, frame });
    }

    /// A segment reaches the end that sends towards `reply`.
    fn delivered(&mut self, now: u64, reply: Direction, segment: Segment, peer: &mut dyn Peer) {
        let end = &mut self.ends[reply as usize];
        if segment.syn {
            return self.delivered_syn(now, reply, segment, peer);
        }
        end.acknowledged = end.acknowledged.max(segment.ack.unwrap_or(0));
        if !end.unsent.is_empty() {
            self.at(now + 1000, Event::Wakes(reply));
        }
        let end = &mut self.ends[reply as usize];
        let has_content = !segment.payload.is_empty() || segment.fin;
        if has_content {
            end.waiting.insert(segment.at, segment);
        }
        let mut woken = false;
        while let Some(first) = end.waiting.first_entry()
            && *first.key() <= end.expected
        {
            let segment = first.remove();
            if segment.at < end.expected {
                continue;
            }
            end.expected += segment.payload.len() as u32 + u32::from(segment.fin);
            peer.receive(&segment.payload);
            woken |= !segment.payload.is_empty() || segment.fin;
            end.closing |= segment.fin;
        }
        if has_content {
            let end = &self.ends[reply as usize];
            let ack = Segment { at: end.next, ack: Some(end.expected), ..Segment::default() };
            self.at(now + 1000, Event::Sent(reply, ack));
        }
        if woken {
            self.at(now + peer.pause(), Event::Wakes(reply));
        }
    }

    fn delivered_syn(&mut self, now: u64, reply: Direction, syn: Segment, peer: &mut dyn Peer) {
        let end = &mut self.ends[reply as usize];
        end.open = true;
        end.expected = 1;
        if reply == Direction::ToClient {
            if self.path.tfo == Tfo::Accepted {
                end.expected += syn.payload.len() as u32;
                peer.receive(&syn.payload);
            }
            let ack = Some(end.expected);
            end.next = 1;
            let options = SYN_OPTIONS.to_vec();
            let syn_ack = Segment { syn: true, ack, options, ..Segment::default() };
            self.at(now + 1000, Event::Sent(reply, syn_ack));
        } else {
            let ack = Segment { at: end.next, ack: Some(1), ..Segment::default() };
            self.at(now + 1000, Event::Sent(reply, ack));
        }
        self.at(now + 2000, Event::Wakes(reply));
    }

    fn wakes(&mut self, now: u64, direction: Direction, peer: &mut dyn Peer) {
        let side = direction as usize;
        let mut data = std::mem::take(&mut self.ends[side].unsent);
        data.extend(peer.send());
        let window = match direction {
            Direction::ToServer => usize::MAX,
            Direction::ToClient => self.path.window.saturating_mul(self.path.segment),
        };
        let in_flight = (self.ends[side].next - self.ends[side].acknowledged.max(1)) as usize;
        let room = window.saturating_sub(in_flight).min(data.len());
        self.ends[side].unsent = data.split_off(room);
        let chunks: Vec<_> = data.chunks(self.path.segment).map(<[u8]>::to_vec).collect();
        for (n, payload) in chunks.into_iter().enumerate() {
            let end = &mut self.ends[side];
            assert!(end.open && !end.fin_sent);
            let segment =
                Segment { at: end.next, ack: Some(end.expected), payload, ..Segment::default() };
            end.next += segment.payload.len() as u32;
            let number = self.numbers[side];
            self.numbers[side] += 1;
            let (drop, swap) = match direction {
                Direction::ToServer => (&self.path.drop_to_server, false),
                Direction::ToClient => (&self.path.drop_to_client, self.path.swap_to_client),
            };
            let mut sent = now + 1000 * n as u64;
            if swap {
                sent = now + 1000 * (n as u64 ^ 1);
            }
            if drop.contains(&number) {
                self.capture(sent, direction, &segment, None);
                sent += 2 * self.path.rtt + 200 * MS;
            }
            self.at(sent, Event::Sent(direction, segment));
        }
        let end = &mut self.ends[side];
        if (peer.done() || end.closing) && end.open && !end.fin_sent && end.unsent.is_empty() {
            end.fin_sent = true;
            let fin =
                Segment { at: end.next, ack: Some(end.expected), fin: true, ..Segment::default() };
            end.next += 1;
            self.at(now + 100_000, Event::Sent(direction, fin));
        }
    }
}
