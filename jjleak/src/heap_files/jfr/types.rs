//! Types of a recording, which describes its events itself.

use super::cursor::{Cursor, Damaged, Text};
use crate::fast_map::FastMap;

/// Maximum depth of elements in the description, and of values in values.
const MAX_DEPTH: usize = 16;
/// Maximum number of values in an object: stacks have 2,048 frames at most, with five values each.
const MAX_VALUES: usize = 1 << 16;
const TOO_DEEP: Damaged = "values are nested too deeply";
const NO_TYPE: Damaged = "a type is not described";

/// A type.
#[derive(Debug, Default)]
pub(super) struct Type {
    pub(super) name: String,
    fields: Vec<Field>,
}

#[derive(Debug, Default)]
struct Field {
    name: String,
    of: u64,
    /// True if the value is the number of one in the pool of its type.
    in_pool: bool,
    is_array: bool,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// A number, or the number of a value in a pool.
    Number(u64),
    Text(Text),
    Object(Vec<Self>),
    Array(Vec<Self>),
}

/// All types of a chunk, by number.
#[derive(Debug, Default)]
pub(super) struct Types(FastMap<u64, Type>);

impl Types {
    /// Reads the description: an event of type 0.
    pub(super) fn read(event: &[u8]) -> Result<Self, Damaged> {
        let mut cursor = Cursor::new(event);
        // Size, type, start, duration and number of the description.
        for _ in 0..5 {
            cursor.number()?;
        }
        let strings = (0..cursor.count()?).map(|_| cursor.text());
        let strings: Vec<_> = strings.collect::<Result<_, _>>()?;
        let mut reader = Description { strings, types: Self::default() };
        reader.element(&mut cursor, None, 0)?;
        Ok(reader.types)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Type> {
        self.0.get(&number)
    }

    /// Reads an object. `budget` is the number of values that may be read: some take no bytes.
    pub(super) fn object(
        &self,
        of: u64,
        cursor: &mut Cursor<'_>,
        budget: &mut usize,
    ) -> Result<Vec<Value>, Damaged> {
        let allowed = MAX_VALUES.min(*budget);
        let mut left = allowed;
        let object = self.object_at(of, cursor, &mut left, 0);
        *budget -= allowed - left;
        object
    }

    fn object_at(
        &self,
        of: u64,
        cursor: &mut Cursor<'_>,
        budget: &mut usize,
        depth: usize,
    ) -> Result<Vec<Value>, Damaged> {
        if depth > MAX_DEPTH {
            return Err(TOO_DEEP);
        }
        let fields = &self.get(of).ok_or(NO_TYPE)?.fields;
        let mut value = |field: &Field| {
            if field.is_array {
                let values = (0..cursor.count()?).map(|_| self.value(field, cursor, budget, depth));
                Ok(Value::Array(values.collect::<Result<_, _>>()?))
            } else {
                self.value(field, cursor, budget, depth)
            }
        };
        fields.iter().map(&mut value).collect()
    }

    fn value(
        &self,
        field: &Field,
        cursor: &mut Cursor<'_>,
        budget: &mut usize,
        depth: usize,
    ) -> Result<Value, Damaged> {
        *budget = budget.checked_sub(1).ok_or("there are more values than bytes")?;
        if field.in_pool {
            return Ok(Value::Number(cursor.number()?));
        }
        let name = self.get(field.of).ok_or(NO_TYPE)?.name.as_str();
        Ok(match name {
            "boolean" | "byte" => Value::Number(cursor.byte()?.into()),
            "char" | "short" | "int" | "long" => Value::Number(cursor.number()?),
            // Nothing here is a fraction.
            "float" => cursor.bytes(4).map(|_| Value::Number(0))?,
            "double" => cursor.bytes(8).map(|_| Value::Number(0))?,
            "java.lang.String" => Value::Text(cursor.text()?),
            _ => Value::Object(self.object_at(field.of, cursor, budget, depth + 1)?),
        })
    }
}

impl Type {
    /// The value of a field in an object of this type.
    pub(super) fn field<'v>(&self, object: &'v [Value], name: &str) -> Option<&'v Value> {
        object.get(self.fields.iter().position(|field| field.name == name)?)
    }

    /// The same for a number.
    pub(super) fn number(&self, object: &[Value], name: &str) -> Option<u64> {
        match self.field(object, name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The number of the type of a field's values.
    pub(super) fn type_of(&self, name: &str) -> Option<u64> {
        self.fields.iter().find(|field| field.name == name).map(|field| field.of)
    }
}

/// Reads the elements of a description, as in XML.
struct Description {
    strings: Vec<Text>,
    types: Types,
}

impl Description {
    /// `within` is the class that the element belongs to.
    fn element(&mut self, cursor: &mut Cursor<'_>, within: Option<u64>, depth: usize) -> Result<(), Damaged> {
        if depth > MAX_DEPTH {
            return Err(TOO_DEEP);
        }
        let kind = self.string(cursor)?;
        let mut attributes = FastMap::default();
        for _ in 0..cursor.count()? {
            let name = self.string(cursor)?;
            attributes.insert(name, self.string(cursor)?);
        }
        let attribute = |name: &str| attributes.get(name).map_or("", String::as_str);
        let number = |name: &str| attribute(name).parse().ok();
        let mut class = within;
        if kind == "class" {
            class = number("id");
            if let Some(id) = class {
                self.types.0.insert(id, Type { name: attribute("name").to_owned(), fields: Vec::new() });
            }
        } else if kind == "field"
            && let Some(of_class) = within.and_then(|class| self.types.0.get_mut(&class))
        {
            of_class.fields.push(Field {
                name: attribute("name").to_owned(),
                of: number("class").unwrap_or_default(),
                in_pool: attribute("constantPool") == "true",
                is_array: attribute("dimension") == "1",
            });
        }
        for _ in 0..cursor.count()? {
            self.element(cursor, class, depth + 1)?;
        }
        Ok(())
    }

    fn string(&self, cursor: &mut Cursor<'_>) -> Result<String, Damaged> {
        let index = usize::try_from(cursor.number()?).ok();
        match index.and_then(|index| self.strings.get(index)) {
            Some(Text::Here(text)) => Ok(text.clone()),
            _ => Err("the description refers to a string that is not there"),
        }
    }
}
