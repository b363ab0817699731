//! The client against servers with the behaviour that each test sets, over TCP and QUIC.

mod flights;
mod jar;
mod one_write;
mod quic;
mod race;
mod responses;
mod support;
mod unanswered;
mod uploads;
