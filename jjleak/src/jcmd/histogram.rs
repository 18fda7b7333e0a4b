//! Live objects by class, as HotSpot counts them on request.

use std::collections::BTreeMap;

use super::request::ask;
use super::{Access, Question};
use crate::jvm::class_in_source;
use crate::processes::Process;

/// Live objects of each class, by its name in source notation.
pub type ClassHistogram = BTreeMap<String, Held>;

/// Live objects of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Asks a JVM for its class histogram. It makes a full collection first, in which it stops. Blocks.
pub fn class_histogram(process: &Process, access: Access) -> Result<ClassHistogram, String> {
    parse_histogram(&ask(Question::ClassHistogram, process, access, &[])?)
}

/// Reads lines such as `   1:        12345      1234567  [B (java.base@17.0.1)`.
pub fn parse_histogram(answer: &str) -> Result<ClassHistogram, String> {
    let mut histogram = ClassHistogram::new();
    for line in answer.lines() {
        let mut words = line.split_whitespace();
        let is_entry = words.next().is_some_and(|rank| {
            rank.strip_suffix(':').is_some_and(|rank| rank.bytes().all(|byte| byte.is_ascii_digit()))
        });
        if !is_entry {
            continue;
        }
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
        let (objects, bytes) = (number(words.next()), number(words.next()));
        let (Some(objects), Some(bytes), Some(class)) = (objects, bytes, words.next()) else {
            return Err(format!("its answer has a line that is no class: {line}"));
        };
        // Classes of several loaders can have the same name.
        let held = histogram.entry(class_in_source(class)).or_default();
        held.objects = held.objects.saturating_add(objects);
        held.bytes = held.bytes.saturating_add(bytes);
    }
    if histogram.is_empty() { Err("its answer has no classes".to_owned()) } else { Ok(histogram) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_with_their_numbers_and_loaders_are_merged() {
        let answer = " num     #instances         #bytes  class name (module)\n\
            -------------------------------------------------------\n   \
            1:           100           2400  [B (java.base@17.0.1)\n   \
            2:             7            168  Shop$Order\n   \
            3:             1             24  Shop$Order\nTotal           108           2592\n";
        let histogram = parse_histogram(answer).unwrap();
        assert_eq!(histogram["byte[]"], Held { objects: 100, bytes: 2400 });
        assert_eq!(histogram["Shop$Order"], Held { objects: 8, bytes: 192 });
        assert_eq!(histogram.len(), 2);
    }

    #[test]
    fn what_is_no_histogram_is_an_error() {
        assert!(parse_histogram("").unwrap_err().contains("no classes"));
        assert!(parse_histogram("1: many 24 A").unwrap_err().contains("no class"));
    }
}
