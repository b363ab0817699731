use tokio::io::{AsyncRead, AsyncWrite};

use crate::given::Phase;
use crate::machine::Machine;
use crate::stream::Started;
use crate::{Acceptor, OpenedTicket, TlsError, TlsStream};

/// A server's connection whose early data is not decided yet. Until [`Accepting::into_stream`], or
/// until the early data is refused, nothing of the handshake is sent; so whatever the decision has
/// to wait for, it can still be that TLS refuses early data, and then the client resumes its
/// session and sends its request again by itself (RFC 8446 section 4.2.10).
///
/// Meanwhile nothing more is read than the ClientHello and what came with it, one read-ahead at
/// most, and 34 KiB in all. That is kept for a handshake that has to start again.
pub struct Accepting<S> {
    acceptor: Acceptor,
    stream: TlsStream<S>,
    /// The fetched session. A handshake that starts again needs it again, and it may be gone from
    /// where it was.
    fetched: Option<OpenedTicket>,
}

/// How far an accepted connection has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The client's ticket stands for a session that is elsewhere: fetch it by these words, call
    /// [`Accepting::provide_session`], and go on.
    NeedsSession(Vec<u8>),
    /// TLS would accept early data. Decide: [`Accepting::into_stream`] accepts it,
    /// [`Accepting::refuse_early_data`] does not.
    EarlyData,
    /// The handshake is complete, and there was no early data or it was refused.
    Complete,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Accepting<S> {
    /// A connection on `io`. With `early_data` false, early data is declined, as in
    /// [`Acceptor::machine`].
    ///
    /// # Errors
    /// [`TlsError::Setup`] when there is no memory.
    pub fn new(acceptor: &Acceptor, io: S, early_data: bool) -> Result<Self, TlsError> {
        let mut stream = TlsStream::new(acceptor.machine(early_data)?, io, Phase::Early);
        if early_data && acceptor.takes_early_data() {
            stream.keep_what_is_heard();
        }
        Ok(Self { acceptor: acceptor.clone(), stream, fetched: None })
    }

    /// Goes on until something has to be decided or the handshake is complete. May be cancelled
    /// and called again.
    ///
    /// # Errors
    /// [`TlsError`]; the alert has been sent as far as the socket took it.
    pub async fn advance(&mut self) -> Result<Accepted, TlsError> {
        match std::future::poll_fn(|cx| self.stream.poll_start(cx)).await? {
            Started::NeedsSession(id) => Ok(Accepted::NeedsSession(id)),
            Started::Done if self.stream.in_early_data() => Ok(Accepted::EarlyData),
            Started::Done => {
                self.stream.take_heard();
                Ok(Accepted::Complete)
            }
        }
    }

    /// What came of fetching; see [`Machine::provide_session`].
    pub fn provide_session(&mut self, session: OpenedTicket) {
        self.fetched = Some(session.clone());
        self.stream.machine_mut().provide_session(session);
    }

    /// What was negotiated so far.
    pub fn facts(&self) -> crate::Handshake {
        self.stream.facts()
    }

    /// When the last bytes came, in microseconds since 1970 by [`crate::SteadyClock`]. At
    /// [`Accepted::EarlyData`] this is a moment just before the library saw the ClientHello and
    /// measured its ticket's age.
    pub fn heard_at(&self) -> i64 {
        self.stream.heard_at()
    }

    /// The socket below.
    pub fn socket(&self) -> &S {
        self.stream.socket()
    }

    /// Starts the handshake again from the same bytes, with early data declined: go on with
    /// [`Accepting::advance`]. Does nothing unless the last word was [`Accepted::EarlyData`].
    /// Tickets issued on the connection still allow early data. A key log has lines of both
    /// handshakes then, the one that counts last.
    ///
    /// # Errors
    /// [`TlsError::Setup`] when there is no memory.
    pub fn refuse_early_data(&mut self) -> Result<(), TlsError> {
        if !self.stream.in_early_data() {
            return Ok(());
        }
        let Some(heard) = self.stream.take_heard() else { return Ok(()) };
        let mut machine: Machine = self.acceptor.machine(false)?;
        if let Some(session) = &self.fetched {
            machine.provide_session(session.clone());
        }
        machine.feed(&heard);
        // With the old machine goes the flight that it had made.
        *self.stream.machine_mut() = machine;
        Ok(())
    }

    /// The stream. Its first flight may still be unsent, so that it leaves together with a
    /// response. At [`Accepted::EarlyData`] it is accepted hereby. Before any such word came it is
    /// declined, and the handshake goes on as the stream is read.
    pub fn into_stream(mut self) -> TlsStream<S> {
        self.stream.take_heard();
        self.stream.machine_mut().decline_early_data();
        self.stream.begin();
        self.stream
    }
}
