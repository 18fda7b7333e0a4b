//! The BPF object without debug sections: nothing reads them, and they are three quarters of it. The types (BTF) stay.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

/// Removes the debug sections of the object at `from`, into `to`.
pub(crate) fn strip(from: &Path, to: &Path) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    let stripped =
        without_debug_sections(&content).with_context(|| format!("cannot strip {}", from.display()))?;
    // An equal file keeps its time, so that nothing is built again.
    if fs::read(to).is_ok_and(|there| there == stripped) {
        return Ok(());
    }
    fs::write(to, stripped).with_context(|| format!("cannot write {}", to.display()))
}

fn without_debug_sections(content: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(content)?;
    for section in &mut builder.sections {
        let name = section.name.to_vec();
        let name = name.strip_prefix(b".rel").unwrap_or(&name);
        section.delete = name.starts_with(b".debug_");
    }
    builder.delete_orphans();
    // In what the linker writes, names of sections and of symbols share a section.
    let names = builder.sections.add();
    names.name = ".shstrtab".into();
    names.sh_type = SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut out = Vec::new();
    builder.write(&mut out)?;
    Ok(out)
}
