//! First flights to real servers over loopback.

mod gnutls;
mod nginx;
mod openssl;
mod random_bytes;
mod support;
