//! Direction of imports: data flows one way through the stages of `jjleak/src`, and imports follow it.
//!
//! The table in the documentation of `jjleak/src/lib.rs` lists the stages in the order of the data flow. A stage may import
//! stages above it in that table; a pure stage, only pure ones. Modules that are not in the table (`fast_map`) serve all stages
//! and import none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use syn::{
    Attribute, Item, UseTree,
    visit::{self, Visit},
};

use crate::workspace;

/// Stages that transform data: they run without root, kernel or clock. They import neither BPF nor tokio and do not name
/// `/proc`.
const PURE: &[&str] = &[
    "allocators",
    "analyze",
    "heap_files",
    "mappings",
    "pprof",
    "profile",
    "render",
    "sample_windows",
    "snapshot",
    "top",
    "unwind",
];

/// Crates that a pure stage must not import, and a path that it must not name.
const IMPURE_CRATES: &[&str] = &["aya", "aya_obj", "tokio"];
const IMPURE_PATH: &str = "/proc";

/// Imports between stages, each with a file that contains it.
type Imports = BTreeMap<(String, String), PathBuf>;

/// Fails on an import against the data flow, and on an impure import in a pure stage. Returns the number of stages.
pub(crate) fn check() -> Result<usize> {
    let source = workspace::root().join("jjleak/src");
    let library = source.join("lib.rs");
    let stages =
        stages(&fs::read_to_string(&library).with_context(|| format!("cannot read {}", library.display()))?);
    ensure!(!stages.is_empty(), "the documentation of {} has no table of stages", library.display());
    let mut imports = Imports::new();
    let mut problems = Vec::new();
    let files = rust_files(&source)?;
    let tests = test_modules(&files)?;
    for file in files.into_iter().filter(|file| !tests.iter().any(|test| file.starts_with(test))) {
        let relative = file.strip_prefix(&source).unwrap_or(&file).to_owned();
        let Some(stage) = stage_of(&relative) else { continue };
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let found = paths(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        for other in found.stages {
            if other != stage {
                imports.entry((stage.clone(), other)).or_insert_with(|| relative.clone());
            }
        }
        if PURE.contains(&stage.as_str()) {
            problems.extend(
                found.impure.iter().map(|what| format!("{}: a pure stage uses {what}", relative.display())),
            );
        }
    }
    problems.extend(against_flow(&stages, PURE, &imports));
    problems.extend(kernel_side()?);
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(stages.len())
}

/// Imports against the order of the modules of `jjleak-ebpf`, which its documentation lists.
fn kernel_side() -> Result<Vec<String>> {
    let source = workspace::root().join("jjleak-ebpf/src");
    let main = source.join("main.rs");
    let text = fs::read_to_string(&main).with_context(|| format!("cannot read {}", main.display()))?;
    let modules = listed_modules(&text);
    ensure!(!modules.is_empty(), "the documentation of {} lists no modules", main.display());
    let mut imports = Imports::new();
    for file in rust_files(&source)? {
        let relative = file.strip_prefix(&source).unwrap_or(&file).to_owned();
        let Some(module) = stage_of(&relative) else { continue };
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let found = paths(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        for other in found.stages.into_iter().filter(|other| *other != module) {
            imports.entry((module.clone(), other)).or_insert_with(|| relative.clone());
        }
    }
    let mut problems = against_flow(&modules, &[], &imports);
    let unlisted: BTreeSet<_> =
        imports.keys().map(|(from, _)| from).filter(|from| !modules.contains(from)).collect();
    problems.extend(
        unlisted.into_iter().map(|module| format!("jjleak-ebpf/src/main.rs does not list `{module}`")),
    );
    Ok(problems)
}

/// Modules in the order of a list: `//! - `one`, `two`: description`.
fn listed_modules(documentation: &str) -> Vec<String> {
    let rows =
        documentation.lines().filter_map(|line| Some(line.strip_prefix("//! - `")?.split_once("`:")?.0));
    rows.flat_map(|names| names.split("`, `")).map(str::to_owned).collect()
}

/// The stages in the order of the table in the crate's documentation: the first link of each row.
fn stages(documentation: &str) -> Vec<String> {
    let first_link = |line: &str| Some(line.strip_prefix("//! | [`")?.split_once("`]")?.0.to_owned());
    documentation.lines().filter_map(first_link).collect()
}

/// Describes each import of a later stage, of an impure stage by a pure one, and of a stage by a module that is not a stage.
fn against_flow(stages: &[String], pure: &[&str], imports: &Imports) -> Vec<String> {
    let place = |name: &str| stages.iter().position(|stage| stage == name);
    let fault = |from: &str, to: &str| match (place(from), place(to)) {
        (Some(from), Some(to)) if to > from => Some("the later stage"),
        (Some(_), Some(_)) if pure.contains(&from) && !pure.contains(&to) => {
            Some("a stage that is not pure,")
        }
        (None, Some(_)) => Some("a stage, and is none itself:"),
        _ => None,
    };
    let described = imports.iter().filter_map(|((from, to), file)| {
        let fault = fault(from, to)?;
        Some(format!("{}: `{from}` imports {fault} `{to}`", file.display()))
    });
    described.collect()
}

/// Stage of a file; `None` for the two files of the crate root and for tests.
fn stage_of(relative: &Path) -> Option<String> {
    let names: Vec<&str> = relative.iter().filter_map(|name| name.to_str()).collect();
    let is_test = |name: &&str| *name == "tests" || *name == "tests.rs" || name.starts_with("test_");
    if names.iter().any(is_test) {
        return None;
    }
    let first = *names.first()?;
    let stage = first.strip_suffix(".rs").unwrap_or(first);
    (!["lib", "main"].contains(&stage)).then(|| stage.to_owned())
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let context = || format!("cannot list {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(context)? {
            let path = entry.with_context(context)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Files and folders of modules that are declared for tests only.
fn test_modules(files: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut tests = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        let is_root = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| file.ends_with(name));
        let folder = if is_root { file.parent().unwrap_or(file).to_owned() } else { file.with_extension("") };
        for item in parsed.items {
            if let Item::Mod(module) = item
                && module.content.is_none()
                && module.attrs.iter().any(is_test)
            {
                let name = module.ident.to_string();
                tests.extend([folder.join(&name), folder.join(format!("{name}.rs"))]);
            }
        }
    }
    Ok(tests)
}

/// Paths that a file names outside its tests.
#[derive(Default)]
struct Paths {
    /// First segments after `crate::`.
    stages: BTreeSet<String>,
    /// Crates and paths that a pure stage must not use.
    impure: BTreeSet<String>,
}

fn paths(source: &str) -> Result<Paths> {
    let mut paths = Paths::default();
    paths.visit_file(&syn::parse_file(source)?);
    Ok(paths)
}

impl Paths {
    fn note(&mut self, first: &str, second: Option<&str>) {
        match second {
            Some(stage) if first == "crate" => {
                self.stages.insert(stage.to_owned());
            }
            _ if IMPURE_CRATES.contains(&first) => {
                self.impure.insert(format!("the crate {first}"));
            }
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        match &item.tree {
            UseTree::Path(path) => {
                for second in first_names(&path.tree) {
                    self.note(&path.ident.to_string(), Some(&second));
                }
            }
            tree => first_names(tree).iter().for_each(|name| self.note(name, None)),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter().map(|segment| segment.ident.to_string());
        if let Some(first) = segments.next() {
            let second = segments.next();
            // `aya` alone may be the name of a variable.
            if second.is_some() {
                self.note(&first, second.as_deref());
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        if literal.value().starts_with(IMPURE_PATH) {
            self.impure.insert(format!("the path \"{}\"", literal.value()));
        }
    }

    /// Skipped: documentation is an attribute with a string, which may name any path.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// First segments of all paths in a tree of imports.
fn first_names(tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => vec![path.ident.to_string()],
        UseTree::Name(name) => vec![name.ident.to_string()],
        UseTree::Rename(rename) => vec![rename.ident.to_string()],
        UseTree::Group(group) => group.items.iter().flat_map(first_names).collect(),
        UseTree::Glob(_) => Vec::new(),
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns true for `#[cfg(test)]`.
fn is_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(pairs: &[(&str, &str)]) -> Imports {
        pairs.iter().map(|(from, to)| (((*from).into(), (*to).into()), "some.rs".into())).collect()
    }

    #[test]
    fn stages_are_the_first_links_of_the_tables_rows() {
        let table = "//! | stage | turns |\n//! |---|---|\n//! | [`early`] | what [`late`] has |\n//! | [`late`] | - |";
        assert_eq!(stages(table), ["early", "late"]);
    }

    #[test]
    fn modules_are_the_names_in_front_of_each_rows_colon() {
        let list = "//! Modules:\n//! - `early`: uses `late`: no.\n//! - `middle`, `late`: others.";
        assert_eq!(listed_modules(list), ["early", "middle", "late"]);
    }

    #[test]
    fn an_import_of_a_later_stage_is_against_the_flow() {
        let stages = ["early".to_owned(), "late".to_owned()];
        let problems = against_flow(&stages, &[], &imports(&[("early", "late"), ("late", "early")]));
        assert_eq!(problems, ["some.rs: `early` imports the later stage `late`"]);
    }

    #[test]
    fn a_pure_stage_imports_pure_stages_only() {
        let stages = ["impure".to_owned(), "pure".to_owned()];
        let problems = against_flow(&stages, &["pure"], &imports(&[("pure", "impure")]));
        assert_eq!(problems, ["some.rs: `pure` imports a stage that is not pure, `impure`"]);
    }

    #[test]
    fn a_module_that_serves_all_stages_imports_none() {
        let problems =
            against_flow(&["early".to_owned()], &[], &imports(&[("map", "early"), ("early", "map")]));
        assert_eq!(problems.len(), 1);
    }

    #[test]
    fn imports_in_groups_and_in_expressions_count_and_those_of_tests_do_not() {
        let source = "use crate::{one, two::{A, B}};\nfn f() { crate::three::g() }\n#[cfg(test)]\nmod tests { use crate::four; }";
        let found = paths(source).expect("valid Rust");
        assert_eq!(found.stages.into_iter().collect::<Vec<_>>(), ["one", "three", "two"]);
    }

    #[test]
    fn bpf_tokio_and_proc_are_impure_but_documentation_may_name_them() {
        let source = "/// Reads \"/proc\" like `tokio::fs`.\nfn f() { tokio::spawn(g(\"/proc/1/maps\")) }";
        let found = paths(source).expect("valid Rust");
        assert_eq!(
            found.impure.into_iter().collect::<Vec<_>>(),
            ["the crate tokio", "the path \"/proc/1/maps\""]
        );
    }
}
