//! The operators' side as it is served: who may look, and what is to be seen.

mod access;
mod client;
mod console;
mod scene;
