//! The program as its users meet it: the real binary against real peers, over loopback.

mod bad_input;
mod bench;
mod clients;
mod doctor;
mod flood;
mod help;
mod http3;
mod keys;
mod keys_examples;
mod keys_fleet;
mod keys_nodes;
mod keys_store;
mod lab;
mod messages;
mod openssl;
mod peers;
mod proxy;
mod quic;
mod recorder;
mod replay;
mod reports;
mod running;
mod servers;
mod servers_under_test;
mod sites;
mod workflow;
