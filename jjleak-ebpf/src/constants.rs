//! Constants that the loader sets. The verifier knows them, and skips code that cannot run.

use core::ptr::read_volatile;

use jjleak_common::settings::{KernelOffsets, Settings};
#[cfg(feature = "measuring")]
use jjleak_common::stage::Measurement;

#[unsafe(no_mangle)]
static SETTINGS: Settings = Settings::DEFAULT;

#[unsafe(no_mangle)]
static KERNEL_OFFSETS: KernelOffsets = KernelOffsets::UNKNOWN;

#[cfg(feature = "measuring")]
#[unsafe(no_mangle)]
static MEASUREMENT: Measurement = Measurement::NONE;

/// A static, at an address that the compiler does not know: it would keep the address in a slot of the BPF stack, which is small.
macro_rules! opaque_static {
    ($static:ident: $type:ty) => {{
        let address: *const $type;
        // SAFETY: loads the address of a static, and nothing else.
        unsafe {
            core::arch::asm!("{0} = {1} ll", out(reg) address, sym $static, options(nomem, nostack));
            &*address
        }
    }};
}

#[inline(always)]
pub(crate) fn settings() -> &'static Settings {
    opaque_static!(SETTINGS: Settings)
}

#[inline(always)]
pub(crate) fn kernel_offsets() -> &'static KernelOffsets {
    opaque_static!(KERNEL_OFFSETS: KernelOffsets)
}

#[cfg(feature = "measuring")]
#[inline(always)]
pub(crate) fn measurement() -> &'static Measurement {
    opaque_static!(MEASUREMENT: Measurement)
}

/// Reads a constant. Volatile, because the compiler must not assume its initial value.
#[inline(always)]
pub(crate) fn load<T: Copy>(constant: &T) -> T {
    // SAFETY: a valid reference.
    unsafe { read_volatile(constant) }
}

/// A field of the [`Settings`].
macro_rules! setting {
    ($field:ident) => {
        $crate::constants::load(&$crate::constants::settings().$field)
    };
}

/// A field of the [`KernelOffsets`]; 0 if it is unknown.
macro_rules! kernel_offset {
    ($field:ident) => {
        $crate::constants::load(&$crate::constants::kernel_offsets().$field)
    };
}

pub(crate) use {kernel_offset, setting};
