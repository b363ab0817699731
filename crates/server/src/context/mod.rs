pub(crate) mod memory;
