//! firstflight: wire
