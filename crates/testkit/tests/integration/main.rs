//! What tests start: store processes and fresh machines.

mod documents;
mod machine;
mod processes;
