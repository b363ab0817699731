//! firstflight: server
