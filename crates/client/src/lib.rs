//! firstflight: client
