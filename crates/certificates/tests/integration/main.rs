//! Certificates: the development authority, and the manager against an ACME authority.

mod acme;
mod authority;
