//! The program as its users meet it: the real binary against real peers, over loopback.

mod bad_input;
mod clients;
mod help;
mod lab;
mod messages;
mod peers;
mod proxy;
mod recorder;
mod replay;
mod running;
mod servers;
mod servers_under_test;
