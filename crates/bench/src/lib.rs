//! firstflight: bench
