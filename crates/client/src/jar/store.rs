use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use firstflight_tls::{Session, Version};
use serde::{Deserialize, Serialize};

use super::{Origin, Ticket, TrustId, Wanted};

/// What a jar holds, without files and clocks.
#[derive(Debug, Default)]
pub(super) struct Contents {
    entries: Vec<Entry>,
    garbled: usize,
}

/// A ticket as the jar keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    scheme: String,
    host: String,
    port: u16,
    trust: String,
    alpn: Option<String>,
    version: String,
    early_data: bool,
    /// Seconds since the Unix epoch.
    issued: u64,
    expires: u64,
    /// The session's bytes in base64.
    session: String,
}

/// The file's form: a version, so that a later one is recognised, and entries, each read for
/// itself.
#[derive(Serialize, Deserialize)]
struct Form<T> {
    version: u32,
    sessions: Vec<T>,
}

const VERSION: u32 = 1;

/// Tickets kept for one origin.
const MAX_OF_ORIGIN: usize = 16;

/// Tickets kept in all.
const MAX_ALL: usize = 512;

/// Bytes of a session in base64 beyond which it is not kept.
const MAX_SESSION: usize = 64 * 1024;

/// No ticket is kept for longer than a week, whatever it says (RFC 8446 section 4.6.1); in seconds.
const MAX_AGE: u64 = 7 * 24 * 60 * 60;

impl Contents {
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let form: Form<serde_json::Value> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if form.version != VERSION {
            return Err(format!("it is of form {}, and only {VERSION} is known", form.version));
        }
        let all = form.sessions.len();
        let entries: Vec<Entry> =
            form.sessions.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect();
        Ok(Self { garbled: all - entries.len(), entries })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let form = Form { version: VERSION, sessions: self.entries.iter().collect() };
        serde_json::to_vec(&form).expect("strings and numbers can always be written")
    }

    /// Entries as the file has them, also those that could not be read.
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.garbled
    }

    /// Forgets the entries that could not be read; how many there were.
    pub(super) fn drop_garbled(&mut self) -> usize {
        std::mem::take(&mut self.garbled)
    }

    pub(super) fn expire(&mut self, now: u64) {
        self.entries.retain(|entry| now < entry.expires.min(entry.issued.saturating_add(MAX_AGE)));
    }

    /// Adds an entry; the same session is kept once, and the oldest make room.
    pub(super) fn add(&mut self, entry: Entry) {
        self.entries.retain(|old| old.session != entry.session);
        let same = |old: &Entry| old.is_of(&entry.scheme, &entry.host, entry.port);
        while self.entries.iter().filter(|old| same(old)).count() >= MAX_OF_ORIGIN {
            self.drop_oldest(same);
        }
        while self.entries.len() >= MAX_ALL {
            self.drop_oldest(|_| true);
        }
        self.entries.push(entry);
    }

    /// Takes out the newest that fits, with early data before without if that is wanted.
    pub(super) fn take(&mut self, wanted: &Wanted<'_>) -> Option<Entry> {
        let (index, _) =
            self.entries.iter().enumerate().filter(|(_, entry)| entry.fits(wanted)).max_by_key(
                |(index, entry)| (wanted.early_data && entry.early_data, entry.issued, *index),
            )?;
        Some(self.entries.remove(index))
    }

    fn drop_oldest(&mut self, among: impl Fn(&Entry) -> bool) {
        let oldest = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| among(entry))
            .min_by_key(|(_, entry)| entry.issued)
            .map(|(index, _)| index);
        if let Some(index) = oldest {
            self.entries.remove(index);
        }
    }
}

impl Entry {
    /// `None` when it is too large to be kept, or has no version.
    pub(super) fn seal(ticket: &Ticket) -> Option<Self> {
        let session = STANDARD_NO_PAD.encode(ticket.session.to_bytes().ok()?);
        if session.len() > MAX_SESSION {
            return None;
        }
        let (issued, lifetime) = ticket.session.issued_and_lifetime();
        let alpn = match &ticket.alpn {
            Some(alpn) => Some(String::from_utf8(alpn.clone()).ok()?),
            None => None,
        };
        Some(Self {
            scheme: ticket.origin.scheme.clone(),
            host: ticket.origin.host.clone(),
            port: ticket.origin.port,
            trust: ticket.trust.0.clone(),
            alpn,
            version: ticket.session.version()?.name().to_owned(),
            early_data: ticket.session.early_data_capable(),
            issued,
            expires: issued.saturating_add(u64::from(lifetime).min(MAX_AGE)),
            session,
        })
    }

    /// The ticket again, or what is wrong with it.
    pub(super) fn open(self) -> Result<Ticket, String> {
        let bytes = STANDARD_NO_PAD.decode(&self.session).map_err(|error| error.to_string())?;
        let session = Session::from_bytes(&bytes).map_err(|error| error.to_string())?;
        Ok(Ticket {
            origin: Origin { scheme: self.scheme, host: self.host, port: self.port },
            trust: TrustId(self.trust),
            alpn: self.alpn.map(String::into_bytes),
            session,
        })
    }

    fn is_of(&self, scheme: &str, host: &str, port: u16) -> bool {
        self.scheme == scheme && self.host == host && self.port == port
    }

    fn fits(&self, wanted: &Wanted<'_>) -> bool {
        let origin = wanted.origin;
        let (oldest, newest) = wanted.versions;
        let alpn_fits = match &self.alpn {
            Some(alpn) => wanted.alpn.iter().any(|offered| offered == alpn.as_bytes()),
            None => true,
        };
        self.is_of(&origin.scheme, &origin.host, origin.port)
            && self.trust == wanted.trust.0
            && alpn_fits
            && self.version.parse::<Version>().is_ok_and(|own| (oldest..=newest).contains(&own))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(host: &str, trust: &str, issued: u64, early_data: bool) -> Entry {
        Entry {
            scheme: "https".into(),
            host: host.into(),
            port: 443,
            trust: trust.into(),
            alpn: Some("h2".into()),
            version: "TLSv1.3".into(),
            early_data,
            issued,
            expires: issued + 7200,
            session: format!("{host}{issued}{early_data}"),
        }
    }

    fn take(contents: &mut Contents, host: &str, trust: &str, early_data: bool) -> Option<Entry> {
        contents.take(&Wanted {
            origin: &Origin { scheme: "https".into(), host: host.into(), port: 443 },
            trust: &TrustId(trust.into()),
            alpn: &[b"h2".to_vec()],
            versions: (Version::Tls12, Version::Tls13),
            early_data,
        })
    }

    #[test]
    fn rfc8446_c_4_a_ticket_is_taken_once_newest_first() {
        let mut contents = Contents::default();
        contents.add(entry("a", "system", 1, true));
        contents.add(entry("a", "system", 3, false));
        contents.add(entry("a", "system", 2, true));
        assert_eq!(take(&mut contents, "a", "system", true).unwrap().issued, 2);
        assert_eq!(take(&mut contents, "a", "system", false).unwrap().issued, 3);
        assert_eq!(take(&mut contents, "a", "system", false).unwrap().issued, 1);
        assert!(take(&mut contents, "a", "system", false).is_none());
    }

    #[test]
    fn a_session_goes_only_where_its_server_was_verified_alike() {
        let mut contents = Contents::default();
        contents.add(entry("a", "anyone", 1, true));
        assert!(take(&mut contents, "a", "system", true).is_none());
        assert!(take(&mut contents, "b", "anyone", true).is_none());
        assert!(take(&mut contents, "a", "anyone", true).is_some());
    }

    #[test]
    fn rfc8446_4_6_1_no_ticket_outlives_its_lifetime_or_a_week() {
        let mut contents = Contents::default();
        contents.add(entry("a", "system", 1000, true));
        contents.add(Entry { expires: u64::MAX, ..entry("b", "system", 1000, true) });
        contents.expire(1000 + 7200);
        assert!(take(&mut contents, "a", "system", true).is_none());
        contents.expire(1000 + MAX_AGE - 1);
        assert_eq!(contents.len(), 1);
        contents.expire(1000 + MAX_AGE);
        assert_eq!(contents.len(), 0);
    }

    #[test]
    fn one_garbled_entry_does_not_take_the_others_along() {
        let good = serde_json::to_value(entry("a", "system", 1, true)).unwrap();
        let form = Form { version: VERSION, sessions: vec![serde_json::json!({"host": 7}), good] };
        let mut contents = Contents::from_bytes(&serde_json::to_vec(&form).unwrap()).unwrap();
        assert_eq!(contents.len(), 2);
        assert_eq!(contents.drop_garbled(), 1);
        assert!(take(&mut contents, "a", "system", true).is_some());
    }

    #[test]
    fn another_form_is_not_guessed_at() {
        let reason = Contents::from_bytes(br#"{"version":2,"sessions":[]}"#).unwrap_err();
        assert!(reason.contains("form 2"), "{reason}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Contents::from_bytes(&bytes);
        }

        #[test]
        fn any_session_is_opened_or_refused(session in "[A-Za-z0-9+/]{0,400}") {
            let _ = Entry { session, ..entry("a", "system", 1, true) }.open();
        }

        #[test]
        fn the_jar_is_bounded_and_keeps_the_newest(
            hosts in proptest::collection::vec((0..60u8, 0..1000u64), 1..900)
        ) {
            let mut contents = Contents::default();
            let mut newest = std::collections::HashMap::new();
            for (at, (host, _)) in hosts.iter().enumerate() {
                contents.add(entry(&host.to_string(), "system", at as u64, true));
                newest.insert(*host, at as u64);
            }
            prop_assert!(contents.len() <= MAX_ALL);
            let again = Contents::from_bytes(&contents.to_bytes()).unwrap();
            prop_assert_eq!(&again.entries, &contents.entries);
            let last = hosts.last().unwrap().0;
            let got = take(&mut contents, &last.to_string(), "system", true).unwrap();
            prop_assert_eq!(got.issued, newest[&last]);
            let of_last = contents.entries.iter().filter(|e| e.host == last.to_string()).count();
            prop_assert!(of_last < MAX_OF_ORIGIN);
        }
    }
}
