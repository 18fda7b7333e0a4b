//! Constants that the loader sets. The verifier knows them, and skips code that cannot run.

use core::ptr::read_volatile;

use jjleak_common::settings::{KernelOffsets, Settings};

#[unsafe(no_mangle)]
pub(crate) static SETTINGS: Settings = Settings::DEFAULT;

#[unsafe(no_mangle)]
pub(crate) static KERNEL_OFFSETS: KernelOffsets = KernelOffsets::UNKNOWN;

/// Reads a constant. Volatile, because the compiler must not assume its initial value.
#[inline(always)]
pub(crate) fn load<T: Copy>(constant: &T) -> T {
    // SAFETY: a valid reference.
    unsafe { read_volatile(constant) }
}

/// A field of the [`Settings`].
macro_rules! setting {
    ($field:ident) => {
        $crate::constants::load(&$crate::constants::SETTINGS.$field)
    };
}

/// A field of the [`KernelOffsets`]; 0 if it is unknown.
macro_rules! kernel_offset {
    ($field:ident) => {
        $crate::constants::load(&$crate::constants::KERNEL_OFFSETS.$field)
    };
}

pub(crate) use {kernel_offset, setting};
