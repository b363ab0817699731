//! Reports of audits, for people and pipelines.

pub mod html;
pub mod json;
pub mod junit;
pub mod sarif;
pub mod text;
