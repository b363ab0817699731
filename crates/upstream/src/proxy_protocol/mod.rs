//! The PROXY protocol's header, versions 1 and 2: a load balancer names the client that it speaks
//! for. Read and written as bytes; no sockets here.
//!
//! Source: HAProxy's `doc/proxy-protocol.txt`; sections are named beside the code.
//!
//! ```
//! use firstflight_upstream::proxy_protocol::{Header, read};
//!
//! let bytes = b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 443\r\nGET / HTTP/1.1\r\n";
//! let Some((Header::Proxied(addresses), length)) = read(bytes)? else { panic!("no client") };
//! assert_eq!(addresses.source, "192.0.2.7:50000".parse()?);
//! assert_eq!(&bytes[length..], b"GET / HTTP/1.1\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod read;
mod write;

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use read::{HeaderError, MAX_HEADER, read};
pub use write::write;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The peer speaks for itself (a health check), or does not say for whom: the connection's own
    /// addresses count.
    Local,
    /// The peer speaks for a client.
    Proxied(Addresses),
}

/// The connection that a client made to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// The client's end.
    pub source: SocketAddr,
    /// The proxy's end.
    pub destination: SocketAddr,
}

/// How a header is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    #[default]
    V2,
}

/// What every header of version 2 starts with (section 2.2).
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
