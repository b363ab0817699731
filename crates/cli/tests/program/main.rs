//! The program as its users meet it: the real binary against real peers, over loopback.

mod clients;
mod peers;
mod running;
mod servers;
