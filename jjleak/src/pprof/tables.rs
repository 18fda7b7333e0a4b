//! Lookup of a file's tables by ID.

use std::collections::HashMap;

use super::error::{Error, Malformed};
use super::frame::{guess, has_line, unpack};
use super::limits::Budget;
use super::proto::{self, Function, Line, Location, Mapping};
use crate::profile::{Frame, SharedFrame};

/// The tables of a message. Every ID is checked on lookup.
pub(super) struct Tables<'a> {
    strings: &'a [String],
    locations: HashMap<u64, &'a Location>,
    functions: HashMap<u64, &'a Function>,
    mappings: HashMap<u64, &'a Mapping>,
    /// Frames of locations looked up so far.
    frames: HashMap<u64, Vec<SharedFrame>>,
}

impl<'a> Tables<'a> {
    pub(super) fn of(message: &'a proto::Profile) -> Self {
        Self {
            strings: &message.string_table,
            locations: message.location.iter().map(|location| (location.id, location)).collect(),
            functions: message.function.iter().map(|function| (function.id, function)).collect(),
            mappings: message.mapping.iter().map(|mapping| (mapping.id, mapping)).collect(),
            frames: HashMap::new(),
        }
    }

    pub(super) fn string(&self, index: i64) -> Result<&'a str, Malformed> {
        // Some writers omit the leading empty string.
        if index == 0 {
            return Ok(self.strings.first().map_or("", String::as_str));
        }
        let string = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        string.map(String::as_str).ok_or(Malformed::String(index))
    }

    /// The frames of a stack, leaf first.
    pub(super) fn stack(
        &mut self,
        locations: &[u64],
        budget: &mut Budget,
    ) -> Result<Vec<SharedFrame>, Error> {
        let mut stack = Vec::new();
        for &id in locations {
            if !self.frames.contains_key(&id) {
                let frames = self.location(id, budget)?;
                self.frames.insert(id, frames.into_iter().map(SharedFrame::new).collect());
            }
            let frames = &self.frames[&id];
            budget.spend(size_of_val(&frames[..]) as u64)?;
            stack.extend_from_slice(frames);
        }
        Ok(stack)
    }

    fn location(&self, id: u64, budget: &mut Budget) -> Result<Vec<Frame>, Error> {
        let location = *self.locations.get(&id).ok_or(Malformed::Location(id))?;
        let mut outermost = Frame { address: location.address, ..Frame::default() };
        if location.mapping_id != 0 {
            let mapping = self.mappings.get(&location.mapping_id);
            let mapping = mapping.ok_or(Malformed::Mapping(location.mapping_id))?;
            self.string(mapping.filename)?.clone_into(&mut outermost.module);
            self.string(mapping.build_id)?.clone_into(&mut outermost.build_id);
        }
        let mut frames = Vec::new();
        for line in &location.line {
            let frame = self.line(line, &outermost)?;
            budget.spend(bytes_of(&frame))?;
            frames.push(frame);
        }
        if frames.is_empty() {
            frames.push(outermost);
        }
        mark(&mut frames, &location.frame);
        Ok(frames)
    }

    fn line(&self, line: &Line, outermost: &Frame) -> Result<Frame, Error> {
        let mut frame = outermost.clone();
        frame.line = line.line.try_into().unwrap_or_default();
        if line.function_id != 0 {
            let function = self.functions.get(&line.function_id);
            let function = function.ok_or(Malformed::Function(line.function_id))?;
            let name = match self.string(function.name)? {
                "" => self.string(function.system_name)?,
                name => name,
            };
            name.clone_into(&mut frame.symbol);
            self.string(function.filename)?.clone_into(&mut frame.file);
        }
        Ok(frame)
    }
}

/// Sets the kinds of frames, from the file if it has them.
fn mark(frames: &mut [Frame], packed: &[u32]) {
    if packed.len() == frames.len() {
        frames.iter_mut().zip(packed).for_each(|(frame, number)| unpack(*number, frame));
        return;
    }
    let outermost = frames.len() - 1;
    for (index, frame) in frames.iter_mut().enumerate() {
        frame.kind = guess(frame);
        frame.inlined = index < outermost && has_line(frame);
    }
}

fn bytes_of(frame: &Frame) -> u64 {
    let texts = [&frame.symbol, &frame.module, &frame.build_id, &frame.file];
    (size_of::<Frame>() + texts.iter().map(|text| text.len()).sum::<usize>()) as u64
}
