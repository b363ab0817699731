//! firstflight: replay
