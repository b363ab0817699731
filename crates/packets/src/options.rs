//! TCP options, as far as they say what a connection may do.

use serde::Serialize;

/// The options of a SYN or SYN-ACK (RFC 9293 section 3.2, RFC 7323, RFC 2018, RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct TcpOptions {
    /// The largest segment that its sender takes, in bytes without headers.
    pub mss: Option<u16>,
    /// By how many bits windows are shifted.
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are permitted.
    pub sack_permitted: bool,
    /// Time stamps.
    pub timestamps: bool,
    /// Fast Open.
    pub fast_open: Option<FastOpenOption>,
}

/// What a SYN or SYN-ACK says about TCP Fast Open (RFC 7413 section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FastOpenOption {
    /// The option is empty: the client asks for a cookie.
    CookieRequest,
    /// The option carries a cookie of so many bytes: the client's proof, or the server's gift.
    Cookie(u8),
}

impl TcpOptions {
    /// Reads the bytes between TCP header and payload, up to the first malformed option. Where
    /// one comes twice the first counts.
    pub(crate) fn read(mut options: &[u8]) -> Self {
        let mut found = Self::default();
        loop {
            match *options {
                [1, ..] => options = &options[1..],
                [kind, len, ..] if kind != 0 && len >= 2 && usize::from(len) <= options.len() => {
                    let (option, rest) = options.split_at(usize::from(len));
                    found.take_in(kind, &option[2..]);
                    options = rest;
                }
                _ => return found,
            }
        }
    }

    fn take_in(&mut self, kind: u8, value: &[u8]) {
        // The experimental form of Fast Open (RFC 6994).
        const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];
        match (kind, value) {
            (2, &[a, b]) => self.mss = self.mss.or(Some(u16::from_be_bytes([a, b]))),
            (3, &[shift]) => self.window_scale = self.window_scale.or(Some(shift)),
            (4, []) => self.sack_permitted = true,
            (8, value) if value.len() == 8 => self.timestamps = true,
            (34, cookie) => self.fast_open(cookie),
            (254, value) => {
                if let Some(cookie) = value.strip_prefix(&FAST_OPEN_MAGIC) {
                    self.fast_open(cookie);
                }
            }
            _ => {}
        }
    }

    fn fast_open(&mut self, cookie: &[u8]) {
        self.fast_open.get_or_insert(match cookie.len() {
            0 => FastOpenOption::CookieRequest,
            // An option is at most 40 bytes long.
            n => FastOpenOption::Cookie(n as u8),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7413_4_1_1_reads_the_fast_open_option_in_both_forms() {
        let read = |options: &[u8]| TcpOptions::read(options).fast_open;
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[1, 1, 34, 2]), Some(FastOpenOption::CookieRequest));
        let cookie = [2, 4, 5, 180, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
        assert_eq!(read(&cookie), Some(FastOpenOption::Cookie(8)));
        assert_eq!(read(&[254, 4, 0xf9, 0x89]), Some(FastOpenOption::CookieRequest));
        assert_eq!(read(&[254, 4, 0, 1]), None);
        assert_eq!(read(&[34, 40, 1, 1]), None, "a length beyond the header");
        assert_eq!(read(&[34, 0, 1, 1]), None, "a length that would never advance");
        assert_eq!(read(&[0, 34, 2]), None, "what follows the end of the list");
    }

    #[test]
    fn rfc9293_3_2_reads_the_options_of_a_linux_syn() {
        let bytes = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let expected = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: true,
            fast_open: None,
        };
        assert_eq!(TcpOptions::read(&bytes), expected);
        for len in 0..bytes.len() {
            // Cut anywhere, what is read stays what was there.
            let cut = TcpOptions::read(&bytes[..len]);
            assert!(cut.mss.is_none_or(|mss| mss == 1460));
            assert!(cut.window_scale.is_none());
        }
    }
}
