pub(crate) mod initials;
pub(crate) mod quic;
pub(crate) mod quic_accept;
pub(crate) mod quic_config;
pub(crate) mod quic_rehearsal;
pub(crate) mod tcp_accept;
pub(crate) mod tickets;
