//! The gate and its register: rules, a randomised world, handoff, a model of the shared register.

mod handoff;
mod model;
mod rules;
mod world;
