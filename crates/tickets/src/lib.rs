//! firstflight: tickets
