//! Output: reports, files, pages, the live view.

mod addresses_alone;
mod bcc;
mod causes;
mod destinations;
mod diagnoses;
mod doctor;
mod formats;
mod growth;
pub(crate) mod heap_profiles;
pub(crate) mod heap_series;
mod hostile_output;
mod memory;
mod other_tools;
mod pages;
mod progress;
mod saved_profiles;
mod self_test;
mod top;
mod verdicts;
mod views;
