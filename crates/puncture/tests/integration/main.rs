//! Tests of the crate through its public interface.

mod memory;
mod model;
mod plain_set;
