//! Splits packets in which the kernel has merged several datagrams (UDP GSO and GRO).

/// The length of the header that the kernel puts in front of each packet: `struct virtio_net_hdr`.
pub(super) const HEADER_BYTES: usize = 10;

/// Splits a received packet, which starts with the kernel's header and a link header of this length,
/// into IP packets. Returns nothing if it is too short for these headers.
pub(super) fn datagrams(received: &[u8], link_header: usize) -> Vec<Vec<u8>> {
    let Some((header, packet)) = received.split_at_checked(HEADER_BYTES) else {
        return Vec::new();
    };
    let Some(packet) = packet.get(link_header..) else { return Vec::new() };
    let size = usize::from(u16::from_ne_bytes([header[4], header[5]]));
    match header[1] & !GSO_ECN {
        GSO_UDP if size > 0 => split(packet, size),
        _ => vec![packet.to_vec()],
    }
}

/// Splits the payload of a UDP packet into datagrams of `size` bytes; the last may be shorter.
fn split(packet: &[u8], size: usize) -> Vec<Vec<u8>> {
    let whole = || vec![packet.to_vec()];
    let (headers, length_at, counts_header) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => (usize::from(packet[0] & 0xf) * 4, 2, true),
        Some(6) => (40, 4, false),
        _ => return whole(),
    };
    let payload_at = headers + UDP_HEADER;
    let Some(payload) = packet.get(payload_at..).filter(|_| headers >= 20) else { return whole() };
    let datagram = |payload: &[u8]| {
        let mut datagram = [&packet[..payload_at], payload].concat();
        let udp = UDP_HEADER + payload.len();
        let ip = if counts_header { headers + udp } else { udp };
        // Both lengths fit: the merged packet is at most 64 KiB long.
        datagram[length_at..length_at + 2].copy_from_slice(&(ip as u16).to_be_bytes());
        datagram[headers + 4..headers + 6].copy_from_slice(&(udp as u16).to_be_bytes());
        datagram
    };
    payload.chunks(size).map(datagram).collect()
}

/// `VIRTIO_NET_HDR_GSO_UDP_L4`: equal datagrams (UAPI `linux/virtio_net.h`).
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;
const UDP_HEADER: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn received(kind: u8, size: u16, packet: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, kind, 0, 0];
        bytes.extend(size.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([0xee; 14]);
        bytes.extend(packet);
        bytes
    }

    /// An IP packet with UDP and this payload, its lengths left at zero.
    fn packet(version: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; if version == 4 { 20 } else { 40 }];
        packet[0] = if version == 4 { 0x45 } else { 0x60 };
        packet.extend([0; 8]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn merged_datagrams_are_split_at_their_length() {
        for (version, header) in [(4, 20), (6, 40)] {
            let merged = packet(version, &[b'a'; 2500]);
            let parts = datagrams(&received(GSO_UDP, 1200, &merged), 14);
            let lengths: Vec<usize> = parts.iter().map(|part| part.len() - header - 8).collect();
            assert_eq!(lengths, [1200, 1200, 100]);
            for (part, payload) in parts.iter().zip([1200, 1200, 100_u16]) {
                let ip_at = if version == 4 { 2 } else { 4 };
                let ip = u16::from_be_bytes([part[ip_at], part[ip_at + 1]]);
                assert_eq!(ip, payload + 8 + if version == 4 { 20 } else { 0 });
                let udp = u16::from_be_bytes([part[header + 4], part[header + 5]]);
                assert_eq!(udp, payload + 8);
            }
        }
    }

    #[test]
    fn a_single_datagram_is_not_split() {
        let single = packet(4, b"one");
        assert_eq!(datagrams(&received(0, 0, &single), 14), std::slice::from_ref(&single));
        assert_eq!(datagrams(&received(GSO_UDP, 0, &single), 14), [single]);
        assert!(datagrams(&[0; 9], 0).is_empty());
        assert!(datagrams(&[0; 20], 14).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_split_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            link_header in prop::sample::select(vec![0_usize, 14]),
        ) {
            let total: usize = datagrams(&bytes, link_header).iter().map(Vec::len).sum();
            // Each part repeats at most the longest headers.
            prop_assert!(total <= bytes.len() * 70);
        }
    }
}
