//! Call stacks and the names of their frames.

mod absent_pages;
mod against_gdb;
mod completeness;
mod depths;
mod fibres;
mod generated_code;
mod go;
mod hostile_symbols;
mod just_mapped;
mod layouts;
mod names;
mod perf_maps;
mod repeated_walks;
mod replaced_libraries;
mod row_tables;
