//! firstflight: tls
