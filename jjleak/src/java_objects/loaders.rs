//! Classes of one name and several loaders.

use std::collections::HashMap;

/// Maximum number of loaders that classes of one name are told apart by.
const MAX_LOADERS: usize = 8;

/// Loaders of the classes of each name, in the order in which they were seen.
#[derive(Debug, Default)]
pub(super) struct Loaders(HashMap<String, Vec<String>>);

impl Loaders {
    /// Name under which a class is shown: its own for the first loader, with the loader behind it for others. It never changes.
    pub(super) fn told_apart(&mut self, name: String, loader: String) -> String {
        let loaders = self.0.entry(name.clone()).or_default();
        let known = loaders.iter().position(|known| *known == loader);
        let place = known.unwrap_or(loaders.len());
        if place >= MAX_LOADERS {
            return format!("{name} [other loaders]");
        }
        let shown = match (place, loader.as_str()) {
            (0, _) => name,
            (_, "") => format!("{name} [unknown loader]"),
            (_, loader) => format!("{name} [{loader}]"),
        };
        if known.is_none() {
            loaders.push(loader);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_several_loaders_are_told_apart_within_a_limit() {
        let mut loaders = Loaders::default();
        let mut shown = |name: &str, loader: &str| loaders.told_apart(name.to_owned(), loader.to_owned());
        assert_eq!(shown("Page", "app"), "Page");
        assert_eq!(shown("Page", "Plugin @1"), "Page [Plugin @1]");
        assert_eq!(shown("Page", ""), "Page [unknown loader]");
        assert_eq!(shown("Page", "app"), "Page", "loaded anew");
        assert_eq!(shown("Book", "Plugin @1"), "Book");
        let many: Vec<_> = (2..20).map(|loader| shown("Page", &format!("Plugin @{loader}"))).collect();
        assert_eq!((&*many[4], &*many[5]), ("Page [Plugin @6]", "Page [other loaders]"));
        assert_eq!(shown("Page", "Plugin @1"), "Page [Plugin @1]");
    }
}
