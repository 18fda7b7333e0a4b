//! The application's frames of a stack: those that are neither an allocator's, nor a runtime's, nor a well-known library's.

use regex::Regex;

use super::super::begins_with;
use super::super::helpers::{is_helper, is_of_standard_library, without_type};
use super::super::rust_crates::defining_path;
use crate::profile::{Frame, FrameKind, SharedFrame};

/// The user's own rules about frames. Both match functions, source files and modules.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Frames that are the application's, whatever else is known about them.
    pub app: Option<Regex>,
    /// Frames that are not the application's.
    pub skip: Option<Regex>,
}

/// Packages of the JDK and of frameworks, as beginnings of Java method names.
const JAVA_PACKAGES: [&str; 26] = [
    "java.",
    "javax.",
    "jdk.",
    "sun.",
    "com.sun.",
    "kotlin.",
    "kotlinx.",
    "scala.",
    "clojure.",
    "groovy.",
    "org.codehaus.groovy.",
    "io.netty.",
    "io.undertow.",
    "io.vertx.",
    "io.grpc.",
    "reactor.",
    "rx.",
    "com.google.common.",
    "com.google.protobuf.",
    "org.springframework.",
    "org.hibernate.",
    "org.apache.catalina.",
    "org.apache.coyote.",
    "org.apache.tomcat.",
    "org.eclipse.jetty.",
    "org.glassfish.",
];

/// Files of allocators, runtimes and system libraries, as beginnings of their names.
const LIBRARIES: [&str; 41] = [
    "libc.so",
    "libc-2.",
    "libc.musl",
    "ld-linux",
    "ld-musl",
    "libpthread",
    "libm.so",
    "libdl.so",
    "librt.so",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libjjleak_preload",
    "libz.so",
    "libz-ng",
    "libzstd",
    "liblzma",
    "libbrotli",
    "libcrypto",
    "libssl",
    "libglib-2",
    "libgobject-2",
    "libexpat",
    "libuv.so",
    "libjvm",
    "libjava.so",
    "libjli",
    "libzip.so",
    "libnio",
    "libnet.so",
    "libextnet",
    "libverify",
    "libjimage",
    "libmanagement",
    "libpython",
    "libruby",
    "libperl",
    "[vdso]",
];

/// Beginnings of functions of runtimes that are linked into programs, of entry points, and of JNI.
const RUNTIMES: [&str; 17] = [
    "std::",
    "__gnu_cxx::",
    "boost::asio::",
    "core::",
    "alloc::",
    "hashbrown::",
    "tokio::",
    "futures_util::",
    "hyper::",
    "__rust_",
    "runtime.",
    "_start",
    "__libc_start",
    "Java_",
    "JNI_",
    "jni_",
    "JVM_",
];

/// Parts of source paths of libraries' headers, of crates that Cargo has fetched, and of the crates in Rust's standard library.
const LIBRARY_SOURCES: [&str; 3] = ["/usr/include/", "/registry/src/", "/rust/deps/"];

/// Index of the application's frame that is the nearest to the allocation function; `None` if there is none.
#[must_use]
pub fn application_frame(frames: &[SharedFrame], rules: &Rules) -> Option<usize> {
    frames.iter().skip(1).position(|frame| is_application(frame, rules)).map(|index| index + 1)
}

fn is_application(frame: &Frame, rules: &Rules) -> bool {
    let matches = |pattern: &Regex| {
        [&frame.symbol, &frame.file, &frame.module]
            .into_iter()
            .any(|text| !text.is_empty() && pattern.is_match(text))
    };
    if rules.app.as_ref().is_some_and(matches) {
        return true;
    }
    if rules.skip.as_ref().is_some_and(matches) {
        return false;
    }
    match frame.kind {
        FrameKind::Java | FrameKind::JavaInlined => {
            let name = frame.symbol.replace('/', ".");
            !JAVA_PACKAGES.iter().any(|package| name.starts_with(package))
        }
        FrameKind::Native | FrameKind::Unknown => is_application_code(frame),
        FrameKind::Jvm
        | FrameKind::JvmGenerated
        | FrameKind::Kernel
        | FrameKind::Signal
        | FrameKind::Memory
        | FrameKind::Class
        | FrameKind::Thread => false,
    }
}

fn is_application_code(frame: &Frame) -> bool {
    let file = frame.module.rsplit('/').next().unwrap_or_default();
    let names = [frame.symbol.as_str(), without_type(&frame.symbol), defining_path(&frame.symbol)];
    !(frame.module.is_empty() && frame.symbol.is_empty()
        || begins_with(file, &LIBRARIES)
        || is_interpreter(file)
        || is_helper(frame)
        || is_of_standard_library(frame)
        || names.into_iter().any(|name| begins_with(name, &RUNTIMES))
        || LIBRARY_SOURCES.iter().any(|part| frame.file.contains(part)))
}

/// Returns true for `python3` and `python3.11`, which have all of the interpreter in the program.
fn is_interpreter(file: &str) -> bool {
    let version = file.strip_prefix("python");
    version.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(symbol: &str, module: &str) -> SharedFrame {
        let (symbol, module) = (symbol.to_owned(), format!("/usr/lib/{module}"));
        Frame { symbol, module, kind: FrameKind::Native, ..Frame::default() }.into()
    }

    fn java(symbol: &str) -> SharedFrame {
        Frame { symbol: symbol.to_owned(), kind: FrameKind::Java, ..Frame::default() }.into()
    }

    fn named<'a>(frames: &'a [SharedFrame], rules: &Rules) -> Option<&'a str> {
        application_frame(frames, rules).map(|index| frames[index].symbol.as_str())
    }

    fn deflater() -> Vec<SharedFrame> {
        vec![
            native("malloc", "libc.so.6"),
            native("deflateInit2_", "libz.so.1.3.1"),
            native("Java_java_util_zip_Deflater_init", "libzip.so"),
            java("java.util.zip.Deflater.init"),
            java("java.util.zip.Deflater.<init>"),
            java("com.google.common.io.Zip.open"),
            java("Defl.compressResponse"),
            java("Defl.main"),
            native("JavaMain", "libjli.so"),
        ]
    }

    #[test]
    fn the_jdk_its_native_code_and_frameworks_are_not_the_application() {
        assert_eq!(named(&deflater(), &Rules::default()), Some("Defl.compressResponse"));
    }

    #[test]
    fn the_user_says_what_is_the_application_and_what_is_not() {
        let regex = |text| Some(Regex::new(text).unwrap());
        let app = Rules { app: regex(r"^com\.google"), skip: None };
        assert_eq!(named(&deflater(), &app), Some("com.google.common.io.Zip.open"));
        let skip = Rules { app: None, skip: regex("compress") };
        assert_eq!(named(&deflater(), &skip), Some("Defl.main"));
    }

    #[test]
    fn a_heap_sampler_in_the_program_is_not_the_application() {
        let generic = |symbol: &str| {
            let file = "/home/dev/jjleak-sampler/src/lib.rs".to_owned();
            Frame { file, ..Frame::clone(&native(symbol, "service")) }.into()
        };
        let frames = [
            native("jjleak_sampler::probes::announce", "service"),
            generic("allocated<std::alloc::System>"),
            native("__rust_alloc", "service"),
            native("keep", "service"),
        ];
        assert_eq!(named(&frames, &Rules::default()), Some("keep"));
        let frames = ["dd_probe_alloc", "dd_allocation_created_slow", "gotter_malloc", "keep"];
        assert_eq!(named(&frames.map(|symbol| native(symbol, "service")), &Rules::default()), Some("keep"));
    }

    #[test]
    fn standard_containers_of_cpp_and_rust_are_not_the_application() {
        let inlined = |symbol: &str, file: &str| {
            Frame { file: file.to_owned(), inlined: true, ..Frame::clone(&native(symbol, "app")) }.into()
        };
        let frames = [
            native("malloc", "libc.so.6"),
            inlined("reserve_rehash", "/root/.cargo/registry/src/index/hashbrown-0.17.1/src/raw.rs"),
            native("<std::collections::hash::map::HashMap<K,V,S>>::insert", "app"),
            native("<T as alloc::slice::<impl [T]>::to_vec_in::ConvertVec>::to_vec", "app"),
            inlined("read", "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/fs.rs"),
            inlined("search", "/rust/deps/memchr-2.7.6/src/memmem/mod.rs"),
            inlined(
                "parse",
                "/usr/local/cargo/registry/src/index.crates.io-1949cf8c6b5b557f/json-1.0.0/src/lib.rs",
            ),
            native("<tokio::runtime::Handle as core::clone::Clone>::clone", "app"),
            native("void std::vector<int, std::allocator<int> >::emplace_back<int>(int&&)", "app"),
            native("app::sessions::remember", "app"),
        ];
        assert_eq!(named(&frames, &Rules::default()), Some("app::sessions::remember"));
        let of_application = "<alloc::vec::Vec<u8> as app::Cache>::keep";
        assert_eq!(
            named(&[native("malloc", "libc.so.6"), native(of_application, "app")], &Rules::default()),
            Some(of_application)
        );
    }

    #[test]
    fn an_extension_is_the_application_and_its_interpreter_is_not() {
        let interpreter = [native("PyMem_RawMalloc", "python3.11"), native("_PyEval_Vector", "python3.11")];
        assert_eq!(named(&interpreter, &Rules::default()), None);
        let extension = [native("malloc", "libc.so.6"), native("keep", "ext.cpython-311-x86_64.so")];
        let frames: Vec<_> = extension.into_iter().chain(interpreter).collect();
        assert_eq!(named(&frames, &Rules::default()), Some("keep"));
    }
}
