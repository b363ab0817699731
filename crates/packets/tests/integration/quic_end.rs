//! One end of a QUIC connection: quinn, and what its application still has to write.

use std::sync::Arc;

use quinn_proto::{Connection, ConnectionHandle, Endpoint, EndpointConfig, ServerConfig, StreamId};

use crate::quic_path::DRAFT_29;

/// One end: its connection, and what it still has to write.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    pub(crate) handle: Option<ConnectionHandle>,
    pub(crate) connection: Option<Connection>,
    pub(crate) writing: Vec<(StreamId, Vec<u8>)>,
    pub(crate) got: usize,
    pub(crate) connected: bool,
}

impl End {
    pub(crate) fn new(server: Option<Arc<ServerConfig>>, seed: u8) -> Self {
        let mut config = EndpointConfig::default();
        // The client starts with a draft if it is told to.
        let versions = if server.is_some() { vec![1] } else { vec![1, DRAFT_29] };
        config.supported_versions(versions).grease_quic_bit(false);
        let endpoint = Endpoint::new(Arc::new(config), server, true, Some([seed; 32]));
        let (handle, connection) = (None, None);
        Self { endpoint, handle, connection, writing: Vec::new(), got: 0, connected: false }
    }

    pub(crate) fn write(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        self.writing.retain_mut(|(stream, left)| {
            let mut out = connection.send_stream(*stream);
            while !left.is_empty() {
                match out.write(left) {
                    Ok(written) => drop(left.drain(..written)),
                    Err(_) => return true,
                }
            }
            out.finish().unwrap();
            false
        });
    }

    /// Reads what is there of a stream; whether it has ended.
    pub(crate) fn read(&mut self, stream: StreamId) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let mut incoming = connection.recv_stream(stream);
        let Ok(mut chunks) = incoming.read(true) else { return false };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.got += chunk.bytes.len(),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let _ = chunks.finalize();
        ended
    }
}
