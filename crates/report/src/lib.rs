//! firstflight: report
