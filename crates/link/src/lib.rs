//! firstflight: link
