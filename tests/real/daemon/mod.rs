//! The daemon.

mod aborted;
mod clients;
mod crashes;
mod dumps;
mod faults;
mod fleet;
mod follow_ups;
mod neighbours;
mod profiles;
mod service;
mod soak;
mod systemd_unit;
