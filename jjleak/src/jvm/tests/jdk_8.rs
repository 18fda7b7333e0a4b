//! JDK 8, which the test machines cannot install: the small JVM with JDK 8's descriptions.

use super::image::{
    BLOB_HEADER, CODE, CODE_BYTES, FIELDS, HEAP, HEAPS, Image, METHODS, STEP, image_of, open,
};
use super::{interpreted, names};

/// The image as JDK 8 describes it: one heap, offsets instead of addresses, and HotSpot's own version.
fn image_of_jdk_8() -> Image {
    const GONE: [&str; 3] = ["GrowableArrayBase", "GrowableArray<int>", "CompiledMethod"];
    let kept = FIELDS.iter().filter(|(of, name, ..)| !GONE.contains(of) && !name.starts_with("_code_"));
    let own = [
        ("CodeBlob", "_code_offset", "int", 16),
        ("CodeBlob", "_data_offset", "int", 20),
        ("nmethod", "_scopes_data_offset", "int", 48),
    ];
    let fields: Vec<_> = kept.copied().chain([("ConstMethod", "_code_size", "u2", 16)]).chain(own).collect();
    let mut image = image_of(25, &fields, &[("CodeCache", "_heap", HEAPS + 0x30)]);
    for step in 0..4 {
        let blob = HEAP + step * STEP + 16;
        image.int(blob + 16, u32::try_from(BLOB_HEADER).unwrap());
        image.int(blob + 20, u32::try_from(BLOB_HEADER + CODE_BYTES).unwrap());
    }
    image.int(HEAP + STEP + 16 + 48, 0x410);
    image
}

#[test]
fn what_jdk_8_describes_is_known_and_what_it_does_not_is_said() {
    let jvm = open(image_of_jdk_8());
    assert_eq!((jvm.version(), jvm.lacks()), (8, Some("line numbers of interpreted methods")));
    let frame = |name: &str, line| (format!("a.B.{name}"), "B.java".to_owned(), line);
    assert_eq!(names(&jvm, CODE + 0x20), [frame("inner", 12), frame("outer", 10)]);
    let heaps = jvm.heaps().unwrap();
    let layout = jvm.code_cache(&heaps).unwrap();
    assert_eq!(
        (layout.heaps[0].begin, layout.is_relative, layout.code_begin, layout.code_end),
        (HEAP, 1, 8, 9)
    );
    let bytecode = u16::try_from((METHODS + 0x100 + 32) & 0xffff).unwrap();
    let interpreted = interpreted(&jvm, METHODS, bytecode).unwrap();
    assert_eq!((&*interpreted.name, interpreted.line), ("a.B.outer", 0));
}
