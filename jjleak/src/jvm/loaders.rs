//! Class loaders: which one has loaded a class (`src/hotspot/share/classfile/classLoaderData.hpp` in the JDK).

use super::Memory;
use super::methods::MethodLayout;
use super::objects::{ObjectLayout, ObjectReferences};
use super::structs::{Field, Structs};

/// Maximum number of classes between a loader's and `ClassLoader`.
const MAX_SUPERCLASSES: usize = 16;
/// The class of all loaders.
const LOADER: &str = "java/lang/ClassLoader";
/// The JDK's own loaders, which have names.
const OWN: [(&str, &str); 2] = [
    ("jdk/internal/loader/ClassLoaders$AppClassLoader", "app"),
    ("jdk/internal/loader/ClassLoaders$PlatformClassLoader", "platform"),
];
/// The loader of the JDK's own classes, which is no object.
const BOOT: &str = "boot";

/// Fields on the way from a class to its loader.
#[derive(Debug)]
pub(super) struct LoaderLayout {
    data: Field,
    object: Field,
    superclass: Field,
    /// True for the data of a single hidden class, not of a loader. Named differently in each version.
    is_of_class: Option<Field>,
    objects: ObjectLayout,
}

impl LoaderLayout {
    /// `None` if this version does not describe them.
    pub(super) fn of(memory: &impl Memory, structs: &Structs) -> Option<Self> {
        let field = |structure, name| structs.field(&[(structure, name)]).ok();
        let data = "ClassLoaderData";
        Some(Self {
            data: field("Klass", "_class_loader_data")?,
            object: field(data, "_class_loader")?,
            superclass: field("Klass", "_super")?,
            is_of_class: structs
                .field(&[
                    (data, "_has_class_mirror_holder"),
                    (data, "_is_unsafe_anonymous"),
                    (data, "_is_anonymous"),
                ])
                .ok(),
            objects: ObjectLayout::of(memory, structs)?,
        })
    }

    /// Name of the loader of a class: `app`, or its class and the address of its `ClassLoaderData`, which `jcmd PID VM.classloader_stats`
    /// lists, too.
    pub(super) fn name(&self, memory: &impl Memory, methods: &MethodLayout, class: u64) -> Option<String> {
        let data = self.data.read(memory, class)?;
        let handle = self.object.read(memory, data)?;
        let reference = if handle == 0 { 0 } else { memory.pointer(handle)? };
        if reference == 0 {
            return Some(BOOT.to_owned());
        }
        let objects: ObjectReferences = self.objects.read(memory)?;
        let is_loader = |class| self.is_loader(memory, methods, class);
        let loader = objects.object(memory, reference, is_loader)?;
        let name = methods.class_name(memory, objects.class_of(memory, loader)?)?;
        if let Some((_, own)) = OWN.iter().find(|(class, _)| *class == name) {
            return Some((*own).to_owned());
        }
        let is_of_class = self.is_of_class.and_then(|field| field.read(memory, data));
        let identity = if is_of_class == Some(1) { String::new() } else { format!(" @{data:x}") };
        Some(super::names::class(&name) + &identity)
    }

    fn is_loader(&self, memory: &impl Memory, methods: &MethodLayout, class: u64) -> bool {
        let mut next = class;
        for _ in 0..MAX_SUPERCLASSES {
            if methods.class_name(memory, next).is_some_and(|name| name == LOADER) {
                return true;
            }
            match self.superclass.read(memory, next) {
                Some(superclass) if superclass != 0 => next = superclass,
                _ => return false,
            }
        }
        false
    }
}
