//! Middleboxes: how real networks interfere with TCP Fast Open and TLS first flights.
//!
//! Networks are known to strip unknown TCP options and data in SYNs, or to drop such SYNs (Honda et
//! al., "Is it still possible to extend TCP?", IMC 2011; RFC 7413 section 4.1.3.1), and to drop
//! ClientHellos that are larger than a packet (<https://tldr.fail>). Others block UDP, or slow it down.

mod first_flights;
mod hello;
mod segment;
mod syn;
mod udp;

use std::fmt;

use super::{Cell, CellSettings, Seeds};

/// The behavior of a middlebox. It acts only on IPv4: on unfragmented packets with complete TCP
/// headers, or on UDP. All other packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Middlebox {
    /// Overwrites the Fast Open option of SYNs and SYN-ACKs (cookie requests and cookies) with
    /// no-operation options. Data in a SYN stays.
    StripTfo,
    /// Drops SYNs that carry the Fast Open option, with or without a cookie.
    DropTfo,
    /// Removes the data from SYNs.
    StripSynData,
    /// Drops SYNs that carry data.
    DropSynData,
    /// Drops all segments of a ClientHello that does not fit into its first segment.
    DropLargeHello,
    /// Drops a connection's first ClientHello if it has the early_data extension (RFC 8446 section
    /// 4.2.10): from the segment on that completes the extension's header, including
    /// retransmissions.
    DropEarlyData,
    /// Drops UDP.
    BlockUdp,
    /// Lets UDP pass at 256 kbit/s each way, with a queue of 6,000 bytes.
    ThrottleUdp,
}

impl Middlebox {
    /// All middleboxes.
    pub const ALL: [Self; 8] = [
        Self::StripTfo,
        Self::DropTfo,
        Self::StripSynData,
        Self::DropSynData,
        Self::DropLargeHello,
        Self::DropEarlyData,
        Self::BlockUdp,
        Self::ThrottleUdp,
    ];

    /// Its name in profiles, counters and the tap.
    pub fn name(self) -> &'static str {
        match self {
            Self::StripTfo => "strip-tfo",
            Self::DropTfo => "drop-tfo",
            Self::StripSynData => "strip-syn-data",
            Self::DropSynData => "drop-syn-data",
            Self::DropLargeHello => "drop-large-hello",
            Self::DropEarlyData => "drop-early-data",
            Self::BlockUdp => "block-udp",
            Self::ThrottleUdp => "throttle-udp",
        }
    }

    /// The middlebox of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it acts on packets from server to client. All act on the other direction.
    pub fn alters_responses(self) -> bool {
        matches!(self, Self::StripTfo | Self::ThrottleUdp)
    }
}

impl CellSettings for Middlebox {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }

    fn fault(&self) -> Option<String> {
        None
    }

    fn describe(&self) -> String {
        format!("middlebox {self}")
    }

    fn varies_delay(&self) -> bool {
        *self == Self::ThrottleUdp
    }

    fn build(&self, _: Seeds) -> Box<dyn Cell> {
        match self {
            Self::StripTfo => Box::new(syn::StripTfo),
            Self::DropTfo => Box::new(syn::DropTfo),
            Self::StripSynData => Box::new(syn::StripSynData),
            Self::DropSynData => Box::new(syn::DropSynData),
            Self::DropLargeHello => Box::new(hello::HelloFilter::drop_large()),
            Self::DropEarlyData => Box::new(hello::HelloFilter::drop_early_data()),
            Self::BlockUdp => Box::new(udp::BlockUdp),
            Self::ThrottleUdp => Box::new(udp::ThrottleUdp::new()),
        }
    }
}

impl fmt::Display for Middlebox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod frames {
    //! Frames to test middleboxes with.

    use etherparse::PacketBuilder;

    /// A segment of a test.
    #[derive(Clone, Copy)]
    pub(super) struct Tcp<'a> {
        pub(super) syn: bool,
        pub(super) ack: bool,
        pub(super) sequence: u32,
        pub(super) port: u16,
        pub(super) options: &'a [u8],
        pub(super) payload: &'a [u8],
    }

    impl Default for Tcp<'_> {
        fn default() -> Self {
            let (syn, ack, sequence, port) = (false, false, 1_000, 40_000);
            Self { syn, ack, sequence, port, options: &[], payload: &[] }
        }
    }

    impl Tcp<'_> {
        pub(super) fn frame(&self) -> Vec<u8> {
            let mut builder = PacketBuilder::ethernet2([1; 6], [2; 6])
                .ipv4([10, 77, 1, 1], [10, 77, 1, 2], 64)
                .tcp(self.port, 443, self.sequence, 1_000)
                .options_raw(self.options)
                .expect("options fit");
            builder = if self.syn { builder.syn() } else { builder };
            builder = if self.ack { builder.ack(1) } else { builder };
            let mut frame = Vec::new();
            builder.write(&mut frame, self.payload).expect("fits");
            frame
        }
    }

    /// Parses a frame, and checks both checksums like a receiving kernel.
    pub(super) fn parse_checked(frame: &[u8]) -> etherparse::SlicedPacket<'_> {
        let packet = etherparse::SlicedPacket::from_ethernet(frame).expect("a whole packet");
        let Some(etherparse::NetSlice::Ipv4(ip)) = &packet.net else { panic!("no IPv4") };
        let header = ip.header();
        assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum());
        assert_eq!(usize::from(header.total_len()), frame.len() - 14);
        let Some(etherparse::TransportSlice::Tcp(tcp)) = &packet.transport else {
            panic!("no TCP")
        };
        let sum = tcp.calc_checksum_ipv4(header.source(), header.destination()).expect("fits");
        assert_eq!(sum, tcp.checksum());
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::PacketInCell;
    use proptest::prelude::*;

    #[test]
    fn names_are_parsed_back() {
        for kind in Middlebox::ALL {
            assert_eq!(Middlebox::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Middlebox::from_name("drop-everything"), None);
    }

    proptest! {
        /// Arbitrary bytes behind a valid start.
        #[test]
        fn any_bytes_pass_every_middlebox_without_panic(
            frames in proptest::collection::vec(
                (any::<bool>(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..80)),
                0..8,
            ),
        ) {
            for kind in Middlebox::ALL {
                let mut cell = kind.build(Seeds { cell: 0, path: 0 });
                for (syn, whole, bytes) in &frames {
                    let frame = match whole {
                        true => frames::Tcp { syn: *syn, payload: bytes, ..Default::default() }.frame(),
                        false => bytes.clone(),
                    };
                    cell.pass(&mut PacketInCell { at_ns: 0, frame: &frame });
                }
            }
        }
    }
}
