pub(crate) mod register;
pub(crate) mod relay;
pub(crate) mod state;
