//! Sorts packets by arrival, and removes the copies that the path makes of them.

/// A packet as seen at the tap.
pub(crate) trait TapPacket {
    fn arrived(&self) -> u64;

    fn delivered(&mut self) -> &mut Option<u64>;

    /// Whether both have the same content and direction.
    fn equals(&self, other: &Self) -> bool;
}

/// Sorts packets by their arrival and removes copies. No sender sends two equal packets in the same
/// nanosecond, so the path made these copies. The packet that remains gets the first delivery.
/// Returns the removed copies, with the other deliveries.
pub(crate) fn sort_and_remove_copies<P: TapPacket>(packets: &mut Vec<P>) -> Vec<P> {
    packets.sort_by_key(P::arrived);
    let (mut kept, mut copies) = (Vec::<P>::with_capacity(packets.len()), Vec::new());
    for mut packet in std::mem::take(packets) {
        let same_arrival = kept.partition_point(|known| known.arrived() < packet.arrived());
        match kept[same_arrival..].iter().position(|known| known.equals(&packet)) {
            Some(at) => {
                let (first, other) = (kept[same_arrival + at].delivered(), packet.delivered());
                if other.is_some() && (first.is_none() || *other < *first) {
                    std::mem::swap(first, other);
                }
                copies.push(packet);
            }
            None => kept.push(packet),
        }
    }
    *packets = kept;
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrival, content and delivery of a packet.
    impl TapPacket for (u64, u8, Option<u64>) {
        fn arrived(&self) -> u64 {
            self.0
        }

        fn delivered(&mut self) -> &mut Option<u64> {
            &mut self.2
        }

        fn equals(&self, other: &Self) -> bool {
            self.1 == other.1
        }
    }

    #[test]
    fn the_first_delivery_of_a_copied_packet_remains() {
        let mut packets: Vec<(u64, u8, Option<u64>)> = vec![
            (5, 1, None),
            (2, 7, Some(13)),
            (2, 8, Some(12)),
            (2, 7, Some(12)),
            (5, 1, Some(15)),
            (6, 1, Some(16)),
            (9, 9, None),
            (9, 9, None),
        ];
        let copies = sort_and_remove_copies(&mut packets);
        let expected =
            [(2, 7, Some(12)), (2, 8, Some(12)), (5, 1, Some(15)), (6, 1, Some(16)), (9, 9, None)];
        assert_eq!(packets, expected);
        assert_eq!(copies, [(2, 7, Some(13)), (5, 1, None), (9, 9, None)]);
    }
}
