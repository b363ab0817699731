//! Tests of the crate through its public interface.

mod memory;
mod plain_set;
