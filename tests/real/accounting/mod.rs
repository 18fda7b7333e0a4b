//! Figures: of each allocation function, in each mode, and when tables are full.

mod announced;
mod arenas;
mod calls;
mod differential;
mod escapes;
mod eviction;
mod families;
mod filters;
mod loaded;
mod mappings;
mod modes;
mod named_allocators;
mod operators;
mod overflow;
mod preloaded;
mod sampler_soak;
mod sampling;
mod snapshots;
mod threads;
mod unknown_allocators;
