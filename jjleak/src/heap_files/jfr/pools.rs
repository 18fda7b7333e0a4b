//! Stacks, methods, classes and their names, to which events refer by number.

use super::cursor::{Cursor, Damaged, Text};
use super::types::{Type, Types, Value};
use crate::fast_map::FastMap;
use crate::heap_files::named::{NamedFrame, NamedKind};

/// Values by number.
#[derive(Debug, Default)]
pub(super) struct Pools {
    strings: FastMap<u64, String>,
    symbols: FastMap<u64, Text>,
    /// Numbers of their names.
    classes: FastMap<u64, u64>,
    methods: FastMap<u64, Method>,
    frame_types: FastMap<u64, Text>,
    stacks: FastMap<u64, Vec<FrameAt>>,
}

/// A method, by the numbers of its class, name and descriptor; or a function, as async-profiler writes it.
#[derive(Debug, Clone, Copy, Default)]
struct Method {
    class: u64,
    name: u64,
    descriptor: u64,
}

/// End of the descriptor that async-profiler gives functions, which have the file's name for a class (`src/flightRecorder.cpp`).
const OF_FUNCTION: &str = ")L;";

/// A frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FrameAt {
    method: u64,
    line: u32,
    kind: u64,
}

impl Pools {
    /// Adds the pools of an event of type 1.
    pub(super) fn add(&mut self, event: &[u8], types: &Types, budget: &mut usize) -> Result<(), Damaged> {
        let mut cursor = Cursor::new(event);
        // Size, type, start, duration, and place of the event before.
        for _ in 0..5 {
            cursor.number()?;
        }
        // The kind of the event.
        cursor.byte()?;
        for _ in 0..cursor.count()? {
            let number = cursor.number()?;
            let of = types.get(number).ok_or("a type is not described")?;
            for _ in 0..cursor.count()? {
                let key = cursor.number()?;
                if of.name == "java.lang.String" {
                    if let Text::Here(text) = cursor.text()? {
                        self.strings.insert(key, text);
                    }
                    continue;
                }
                let object = types.object(number, &mut cursor, budget)?;
                self.add_object(key, of, &object, types);
            }
        }
        Ok(())
    }

    fn add_object(&mut self, key: u64, of: &Type, object: &[Value], types: &Types) {
        let number = |name| of.number(object, name).unwrap_or_default();
        let text = |name| match of.field(object, name) {
            Some(Value::Text(text)) => text.clone(),
            _ => Text::Here(String::new()),
        };
        match of.name.as_str() {
            "jdk.types.Symbol" => drop(self.symbols.insert(key, text("string"))),
            "jdk.types.FrameType" => drop(self.frame_types.insert(key, text("description"))),
            "java.lang.Class" => drop(self.classes.insert(key, number("name"))),
            "jdk.types.Method" => {
                let (class, name, descriptor) = (number("type"), number("name"), number("descriptor"));
                self.methods.insert(key, Method { class, name, descriptor });
            }
            "jdk.types.StackTrace" => {
                let of_frame = of.type_of("frames").and_then(|of_frame| types.get(of_frame));
                if let (Some(of_frame), Some(Value::Array(frames))) = (of_frame, of.field(object, "frames")) {
                    let frames = frames.iter().map(|frame| FrameAt::of(of_frame, frame));
                    self.stacks.insert(key, frames.collect());
                }
            }
            _ => {}
        }
    }

    /// The frames of a stack, innermost first.
    pub(super) fn stack(&self, number: u64) -> &[FrameAt] {
        self.stacks.get(&number).map_or(&[], Vec::as_slice)
    }

    /// A frame with its names.
    pub(super) fn frame(&self, frame: FrameAt) -> NamedFrame {
        let Method { class, name, descriptor } = self.methods.get(&frame.method).copied().unwrap_or_default();
        let (name, line) = (self.symbol(name).to_owned(), frame.line);
        let kind = match self.frame_types.get(&frame.kind).map_or("", |kind| self.text(kind)) {
            "Inlined" => NamedKind::JavaInlined,
            "Kernel" => NamedKind::Kernel,
            "C++" => NamedKind::Native,
            _ if self.symbol(descriptor).ends_with(OF_FUNCTION) => NamedKind::Native,
            _ => NamedKind::Java,
        };
        if !matches!(kind, NamedKind::Java | NamedKind::JavaInlined) {
            let module = self.class_symbol(class).to_owned();
            return NamedFrame { function: name, line, module, kind, ..NamedFrame::default() };
        }
        let function = format!("{}.{name}", self.class(class));
        let inlined = kind == NamedKind::JavaInlined;
        NamedFrame { function, line, inlined, kind, ..NamedFrame::default() }
    }

    /// Name of a class, in source notation.
    pub(super) fn class(&self, number: u64) -> String {
        let name = self.class_symbol(number);
        let dimensions = name.bytes().take_while(|byte| *byte == b'[').count();
        let element = match &name[dimensions..] {
            "Z" => "boolean",
            "B" => "byte",
            "C" => "char",
            "S" => "short",
            "I" => "int",
            "J" => "long",
            "F" => "float",
            "D" => "double",
            class => class.strip_prefix('L').and_then(|class| class.strip_suffix(';')).unwrap_or(class),
        };
        let element = if dimensions == 0 { name } else { element };
        format!("{}{}", element.replace('/', "."), "[]".repeat(dimensions.min(255)))
    }

    /// Name of a class, as HotSpot has it.
    fn class_symbol(&self, number: u64) -> &str {
        self.classes.get(&number).map_or("", |name| self.symbol(*name))
    }

    fn symbol(&self, number: u64) -> &str {
        self.symbols.get(&number).map_or("", |text| self.text(text))
    }

    fn text<'a>(&'a self, text: &'a Text) -> &'a str {
        match text {
            Text::Here(text) => text,
            Text::InPool(number) => self.strings.get(number).map_or("", String::as_str),
        }
    }
}

impl FrameAt {
    fn of(of: &Type, frame: &Value) -> Self {
        let Value::Object(frame) = frame else { return Self { method: 0, line: 0, kind: 0 } };
        let number = |name| of.number(frame, name).unwrap_or_default();
        Self {
            method: number("method"),
            // It is -1 (of 32 bits) where it is unknown.
            line: i32::try_from(number("lineNumber")).map_or(0, i32::cast_unsigned),
            kind: number("type"),
        }
    }
}
