//! Records on disk, and what is made of them.

mod conditions;
mod drawings;
mod forms;
mod records;
mod synthetic;
mod tables;
mod visits;
