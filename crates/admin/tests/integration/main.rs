//! The admin server: access control, and what it shows.

mod access;
mod client;
mod console;
mod scene;
