//! The `firstflight` program: parses, calls, prints.
fn main() {}
