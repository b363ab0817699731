use std::sync::Arc;

use boring::sha::sha256;
use boring::ssl::{ClientHello, NameType, SelectCertError, SslContextBuilder, SslCredential};

use crate::challenge::{self, ChallengeCertificates};
use crate::clock::SteadyClock;
use crate::{Identity, Names, TlsError};

/// Which certificate a server shows to whom: by the name that the client asks for (SNI, RFC 6066
/// section 3), and one for clients that name none or an unknown one.
///
/// A session is good under the entry that it was issued under, and no other: a ticket that is
/// offered with another entry's name ends in a full handshake, and its early data is refused. An
/// entry is known by its first name, so nodes of a cluster agree on it, and a certificate may be
/// replaced.
#[derive(Clone)]
pub struct Identities {
    entries: Arc<[Entry]>,
    names: Arc<Names<usize>>,
}

/// What is shown to clients that ask for one of some names.
#[derive(Clone)]
pub struct Entry {
    /// The names, as in [`Names::add`].
    pub names: Vec<String>,
    /// Certificate, key, and OCSP response if there is one.
    pub identity: Identity,
}

impl Identities {
    /// The first entry is also for clients that ask for no name, or an unknown one.
    ///
    /// # Errors
    /// [`TlsError::BadHost`] or [`TlsError::NameTwice`].
    pub fn new(first: Entry, others: Vec<Entry>) -> Result<Self, TlsError> {
        let entries: Arc<[Entry]> = std::iter::once(first).chain(others).collect();
        let mut names = Names::default();
        for (index, entry) in entries.iter().enumerate() {
            for name in &entry.names {
                names.add(name, index)?;
            }
        }
        Ok(Self { entries, names: Arc::new(names) })
    }

    /// What is shown to a client that asks for this name.
    pub fn of(&self, server_name: Option<&str>) -> &Identity {
        &self.entries[index(&self.names, server_name)].identity
    }

    /// All of them, the first one first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Makes a context choose. `challenges`: what authorities that ask for a name are shown.
    pub(crate) fn install(
        &self,
        context: &mut SslContextBuilder,
        challenges: Option<Arc<dyn ChallengeCertificates>>,
    ) -> Result<(), TlsError> {
        let credentials: Vec<_> =
            self.entries.iter().map(Credentials::new).collect::<Result<_, _>>()?;
        let simple = self.entries[0].identity.staple.is_none() && challenges.is_none();
        if let ([only], true) = (&*credentials, simple) {
            let refused = TlsError::setup("the certificate");
            return context.add_credential(&only.plain).map_err(refused);
        }
        let names = self.names.clone();
        context.set_select_certificate_callback(move |mut hello: ClientHello<'_>| {
            if let Some(challenges) = &challenges
                && challenge::answer(&mut hello, challenges)?
            {
                return Ok(());
            }
            let index = index(&names, hello.servername(NameType::HOST_NAME));
            let now = SteadyClock::unix_micros() / 1_000_000;
            // Not SSL_set_SSL_CTX: that would also undo what this connection was told about early
            // data.
            let chosen = credentials[index].at(now);
            hello.ssl_mut().add_credential(chosen).map_err(|_| SelectCertError::ERROR)
        });
        Ok(())
    }
}

impl From<Identity> for Identities {
    fn from(identity: Identity) -> Self {
        let entries = Arc::new([Entry { names: Vec::new(), identity }]);
        Self { entries, names: Arc::default() }
    }
}

fn index(names: &Names<usize>, server_name: Option<&str>) -> usize {
    server_name.and_then(|name| names.find(name)).copied().unwrap_or(0)
}

/// An entry in the library's form.
struct Credentials {
    plain: SslCredential,
    /// The same with its OCSP response, and the seconds since 1970 until which that holds.
    stapled: Option<(SslCredential, Option<i64>)>,
}

impl Credentials {
    fn new(entry: &Entry) -> Result<Self, TlsError> {
        let partition =
            entry.names.first().map(|name| sha256(name.to_ascii_lowercase().as_bytes()));
        let partition = partition.as_ref().map_or(&[][..], |digest| digest);
        let identity = &entry.identity;
        let stapled = match &identity.staple {
            Some(staple) => {
                let credential = identity.credential(partition, Some(&staple.response))?;
                Some((credential, staple.until))
            }
            None => None,
        };
        Ok(Self { plain: identity.credential(partition, None)?, stapled })
    }

    fn at(&self, now: i64) -> &SslCredential {
        match &self.stapled {
            Some((stapled, until)) if until.is_none_or(|until| now < until) => stapled,
            _ => &self.plain,
        }
    }
}
