//! Java virtual machines.

mod code_changes;
mod damaged_memory;
mod heap;
mod javac;
mod jdks;
mod memory;
mod methods;
mod name_requests;
mod surroundings;
mod virtual_threads;
