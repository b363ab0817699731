//! The client against servers that do as each test says, over TCP and QUIC.

mod flights;
mod jar;
mod one_write;
mod quic;
mod race;
mod responses;
mod support;
mod unanswered;
mod uploads;
