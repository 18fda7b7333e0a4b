//! Chooses the instruction of an allocator function that carries its probe.
//!
//! In: a function's code, its role and its signature. Out: the cheapest instruction at which a probe sees every call exactly as
//! at the entry; the entry if that cannot be proven.
//!
//! A site must lie in the function's *entry block*: the instructions from the entry up to and including the first that transfers
//! control. Every call passes it, if nothing jumps into the block (`branches`). The arguments that the signature reads and the
//! caller's frame pointer must still be in their registers, and the distance to the canonical frame address must be known
//! (`frame`). Roles that need the result also arm a return probe at the site, which requires the stack pointer to have its value
//! from the entry.

mod branches;
mod emulation;
mod frame;

pub(super) use branches::Sealed;
pub(super) use emulation::stepping;

use self::{branches::sealed_within, frame::Frame};
use super::site::{Placement, Role, Stepping};
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Register};
use jjleak_common::cookie::{Arg, Signature};

/// The known code of a function.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body<'data> {
    /// All of it.
    Whole(&'data [u8]),
    /// Some bytes from the entry on: the symbol does not give the end of the function.
    Start(&'data [u8]),
}

impl<'data> Body<'data> {
    /// The known bytes.
    pub(super) const fn bytes(self) -> &'data [u8] {
        match self {
            Self::Whole(bytes) | Self::Start(bytes) => bytes,
        }
    }
}

/// Integer argument registers of the System V calling convention (psABI x86-64, 3.2.3).
pub(super) const ARGUMENTS: [Register; Arg::COUNT as usize] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// Chooses the probe site of a function. No code outside the function jumps into its first `sealed` bytes.
///
/// The cheapest site wins, and among equals the earliest. Falls back to the entry, even if the kernel may refuse a probe there (a
/// lock prefix, `int3`, bytes that are not an instruction): the caller gets that error when it attaches.
pub(super) fn place(body: Body<'_>, role: Role, signature: Signature, sealed: u64) -> Placement {
    let entry = entry(body.bytes());
    let Body::Whole(code) = body else {
        return entry;
    };
    let Some(sites) = emulated_sites(code, role, signature) else {
        return entry;
    };
    let sealed = sealed.min(sealed_within(code));
    sites
        .into_iter()
        .filter(|site| site.delta < sealed)
        .chain([entry])
        .min_by_key(|site| (site.stepping, site.delta))
        .unwrap_or(entry)
}

fn entry(code: &[u8]) -> Placement {
    let first = Decoder::new(64, code, DecoderOptions::NONE).decode();
    let bytes = code.get(..first.len()).unwrap_or_default();
    Placement { delta: 0, cfa_words: Frame::ENTRY.cfa_words(), stepping: stepping(bytes), inside: None }
}

/// The emulated instructions of the entry block at which the role can read its values; `None` if the block contains bytes that
/// are not an instruction, or runs past the function's end.
fn emulated_sites(code: &[u8], role: Role, signature: Signature) -> Option<Vec<Placement>> {
    let kept = kept_registers(signature);
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut frame = Some(Frame::ENTRY);
    let mut sites = Vec::new();
    loop {
        let start = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let stepping = stepping(&code[start..decoder.position()]);
        if let Some(frame) = frame.filter(|frame| !role.probes_return() || frame.takes_return_probe())
            && stepping != Stepping::SingleStep
        {
            sites.push(Placement {
                delta: start as u64,
                cfa_words: frame.cfa_words(),
                stepping,
                inside: None,
            });
        }
        if instruction.flow_control() != FlowControl::Next {
            return Some(sites);
        }
        frame = frame.and_then(|frame| frame.after(&instruction, &mut info, &kept));
    }
}

/// The registers that a probe reads: the arguments, and the frame pointer at which the stack walk continues.
fn kept_registers(signature: Signature) -> Vec<Register> {
    [signature.size, signature.count, signature.pointer]
        .into_iter()
        .flatten()
        .map(|arg| ARGUMENTS[usize::from(arg.index())])
        .chain([Register::RBP])
        .collect()
}

#[cfg(test)]
mod tests;
