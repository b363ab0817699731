//! What tests start: store processes and fresh machines.

mod machine;
mod processes;
