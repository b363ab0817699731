//! The NSS key log (`SSLKEYLOGFILE`): secrets by client random.

use std::collections::{HashMap, VecDeque};
use std::fmt;

/// The labels of stored secrets. Lines with other labels, such as exporter secrets, are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretLabel {
    ClientEarly,
    ClientHandshake,
    ServerHandshake,
    ClientApplication,
    ServerApplication,
    /// Before TLS 1.3.
    Master,
}

impl SecretLabel {
    const ALL: [Self; 6] = [
        Self::ClientEarly,
        Self::ClientHandshake,
        Self::ServerHandshake,
        Self::ClientApplication,
        Self::ServerApplication,
        Self::Master,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ClientEarly => "CLIENT_EARLY_TRAFFIC_SECRET",
            Self::ClientHandshake => "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            Self::ServerHandshake => "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            Self::ClientApplication => "CLIENT_TRAFFIC_SECRET_0",
            Self::ServerApplication => "SERVER_TRAFFIC_SECRET_0",
            Self::Master => "CLIENT_RANDOM",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|label| label.name() == name)
    }

    /// Valid lengths of the secret in bytes: of a hash, or of a master secret (RFC 5246 section
    /// 8.1).
    fn lengths(self) -> &'static [usize] {
        if self == Self::Master { &[48] } else { &[32, 48] }
    }
}

/// The secrets of many connections. When its capacity is reached, the oldest are removed.
pub struct KeyLog {
    by_random: HashMap<[u8; 32], Vec<(SecretLabel, Secret)>>,
    order: VecDeque<[u8; 32]>,
    capacity: usize,
}

type Secret = Box<[u8]>;

/// A replayed ClientHello has the same random, so a server's log may hold several secrets with the
/// same label for it. Further ones are ignored.
const MAX_SECRETS_PER_RANDOM: usize = 32;

impl KeyLog {
    /// An empty log that stores the secrets of at most `connections` client randoms.
    pub fn new(connections: usize) -> Self {
        Self { by_random: HashMap::new(), order: VecDeque::new(), capacity: connections.max(1) }
    }

    /// Adds the lines of `text`, which must be whole lines. Returns how many of them held a new
    /// secret. Comments, other labels, repetitions and malformed lines are ignored.
    pub fn add(&mut self, text: &str) -> usize {
        text.lines().filter_map(|line| self.add_line(line)).count()
    }

    /// The lines of the connection with this ClientHello random, without line ends, in the order in
    /// which they were added: all that is needed to decrypt its packets.
    pub fn lines_for(&self, client_random: &[u8; 32]) -> Vec<String> {
        let all = self.by_random.get(client_random).map(Vec::as_slice).unwrap_or_default();
        let random = hex::encode(client_random);
        let line = |(label, secret): &(SecretLabel, Secret)| {
            format!("{} {random} {}", label.name(), hex::encode(secret))
        };
        all.iter().map(line).collect()
    }

    pub(crate) fn secrets(
        &self,
        random: &[u8; 32],
        label: SecretLabel,
    ) -> impl Iterator<Item = &[u8]> {
        let all = self.by_random.get(random).map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(move |(stored, _)| *stored == label).map(|(_, secret)| &**secret)
    }

    fn add_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let label = SecretLabel::from_name(words.next()?)?;
        let mut random = [0; 32];
        hex::decode_to_slice(words.next()?, &mut random).ok()?;
        let secret = words.next().filter(|hex| label.lengths().contains(&(hex.len() / 2)))?;
        let secret = hex::decode(secret).ok()?.into_boxed_slice();
        if words.next().is_some() {
            return None;
        }
        let secrets = self.by_random.entry(random).or_insert_with(|| {
            self.order.push_back(random);
            Vec::new()
        });
        let entry = (label, secret);
        if secrets.len() >= MAX_SECRETS_PER_RANDOM || secrets.contains(&entry) {
            return None;
        }
        secrets.push(entry);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_random.remove(&oldest);
        }
        Some(())
    }
}

impl fmt::Debug for KeyLog {
    // Never prints secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLog").field("connections", &self.order.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_added_and_others_ignored() {
        let mut log = KeyLog::new(10);
        let (random, secret) = ("ab".repeat(32), "cd".repeat(32));
        let added = log.add(&format!(
            "# comment\nCLIENT_RANDOM {random} {secret}\r\n\
             SERVER_TRAFFIC_SECRET_0 {random} {secret}\r\n\
             SERVER_TRAFFIC_SECRET_0 {random} {secret}\n\
             SERVER_TRAFFIC_SECRET_0 {random} {secret} more\n\
             CLIENT_TRAFFIC_SECRET_0 {random} {}\n\
             CLIENT_TRAFFIC_SECRET_0 zz {secret}\nCLIENT_TRAFFIC_SECRET_0",
            &secret[..10]
        ));
        assert_eq!(added, 1);
        let found: Vec<_> = log.secrets(&[0xab; 32], SecretLabel::ServerApplication).collect();
        assert_eq!(found, [&[0xcd; 32][..]]);
        assert_eq!(log.secrets(&[0xab; 32], SecretLabel::ClientApplication).count(), 0);
        assert!(!format!("{log:?}").contains("cd"));
    }

    #[test]
    fn lines_of_one_connection_are_returned() {
        let mut log = KeyLog::new(10);
        let (one, other) = ("ab".repeat(32), "01".repeat(32));
        let lines = [
            format!("CLIENT_RANDOM {one} {}", "cd".repeat(48)),
            format!("SERVER_HANDSHAKE_TRAFFIC_SECRET {one} {}", "ef".repeat(32)),
            format!("CLIENT_EARLY_TRAFFIC_SECRET {other} {}", "23".repeat(48)),
        ];
        log.add(&lines.join("\n").to_uppercase());
        assert_eq!(log.lines_for(&[0xab; 32]), lines[..2]);
        assert_eq!(log.lines_for(&[1; 32]), lines[2..]);
        assert!(log.lines_for(&[2; 32]).is_empty());
    }

    #[test]
    fn the_oldest_secrets_are_removed_at_capacity() {
        let mut log = KeyLog::new(2);
        for n in 1..=3u8 {
            let random = hex::encode([n; 32]);
            assert_eq!(log.add(&format!("CLIENT_TRAFFIC_SECRET_0 {random} {random}")), 1);
        }
        let known = |n: u8| log.secrets(&[n; 32], SecretLabel::ClientApplication).count();
        assert_eq!([known(1), known(2), known(3)], [0, 1, 1]);
    }
}
