//! Programs and libraries of `PyPI`, npm and crates.io.

use super::{Exception, Oracle, Package, Program, Target, debian};

const PYTHON: Package = debian("/usr/bin/python3", "python3");
const NODE: Package = debian("/usr/bin/node", "nodejs");
const NUMPY: Package = Package::Wheel("numpy==2.4.6");

/// For programs that load an allocator in a library of its own.
const FOUND_LATE: Exception = Exception {
    of: Target::Losses,
    why: "its allocator is found when its library is loaded: the first run counts it from then on, the second from its first call",
};

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "numpy",
        &[PYTHON, NUMPY],
        &["/usr/bin/python3", "-c", "import numpy; print(int(numpy.arange(10000).reshape(100, 100).T.copy().sum()))"],
    )
    .with(&[("OPENBLAS_NUM_THREADS", "1")]),
    Program::new(
        "pandas",
        &[
            PYTHON,
            NUMPY,
            Package::Wheel("pandas==3.1.1"),
            Package::Wheel("python-dateutil==4.0.0"),
            Package::Wheel("tzdata==2026.6"),
        ],
        &["/usr/bin/python3", "-c", "import pandas; print(int(pandas.DataFrame({'a': range(100)}).a.sum()))"],
    )
    .with(&[("OPENBLAS_NUM_THREADS", "1")]),
    Program::new(
        "polars",
        &[PYTHON, Package::Wheel("polars==2.1.0"), Package::Wheel("polars-runtime-32==2.1.0")],
        &["/usr/bin/python3", "-c", "import polars; print(polars.DataFrame({'a': list(range(100))})['a'].sum())"],
    )
    .compared_with(Oracle::CounterBeside(&["_polars_runtime"]))
    .but(&[FOUND_LATE]),
    Program::new(
        "pyarrow",
        &[PYTHON, Package::Wheel("pyarrow==26.0.1")],
        &["/usr/bin/python3", "-c", "import pyarrow; print(pyarrow.array(list(range(1000))).nbytes)"],
    )
    .compared_with(Oracle::CounterBeside(&["libarrow"]))
    .but(&[FOUND_LATE]),
    Program::new(
        "duckdb",
        &[PYTHON, Package::Wheel("duckdb==2.0.0")],
        &["/usr/bin/python3", "-c", "import duckdb; print(duckdb.sql('select sum(i) from range(1000) t(i)').fetchall())"],
    )
    .compared_with(Oracle::CounterBeside(&["_duckdb"]))
    .but(&[FOUND_LATE]),
    Program::new(
        "lxml",
        &[PYTHON, Package::Wheel("lxml==6.1.3")],
        &["/usr/bin/python3", "-c",
          "from lxml import etree; print(len(etree.tostring(etree.fromstring('<a>' + '<b/>' * 300 + '</a>'))))"],
    )
    .in_tests(),
    Program::new(
        "cryptography",
        &[PYTHON, Package::Wheel("cryptography==50.0.2"), Package::Wheel("cffi==2.1.1")],
        &["/usr/bin/python3", "-c",
          "from cryptography.fernet import Fernet; f = Fernet(Fernet.generate_key()); print(f.decrypt(f.encrypt(b'a' * 100)))"],
    ),
    Program::new(
        "pillow",
        &[PYTHON, Package::Wheel("pillow==13.0.0")],
        &["/usr/bin/python3", "-c",
          "from PIL import Image; import io; b = io.BytesIO(); Image.new('RGB', (64, 64)).rotate(30).save(b, 'PNG'); print(len(b.getvalue()))"],
    ),
    Program::new(
        "orjson",
        &[PYTHON, Package::Wheel("orjson==3.13.0")],
        &["/usr/bin/python3", "-c", "import orjson; print(len(orjson.dumps(orjson.loads(b'[' + b'{\"a\":1},' * 500 + b'1]'))))"],
    ),
    Program::new(
        "regex",
        &[PYTHON, Package::Wheel("regex==2026.11.15")],
        &["/usr/bin/python3", "-c", "import regex; print(len(regex.findall(r'\\p{Lu}\\w+', 'Hello World ' * 100)))"],
    ),
    Program::new(
        "tokenizers",
        &[PYTHON, Package::Wheel("tokenizers==0.23.3")],
        &["/usr/bin/python3", "-c",
          "import sys, types; sys.modules['huggingface_hub'] = types.ModuleType('h'); \
           from tokenizers import Tokenizer, models; print(Tokenizer(models.BPE()).get_vocab_size())"],
    ),
    Program::new(
        "typescript",
        &[NODE, Package::Npm("typescript@5.9.3")],
        &["/usr/bin/node", "{npm}/typescript@5.9.3/node_modules/typescript/lib/tsc.js", "--version"],
    ),
    Program::new(
        "esbuild",
        &[Package::Npm("@esbuild/linux-x64@0.25.12")],
        &["{npm}/@esbuild/linux-x64@0.25.12/node_modules/@esbuild/linux-x64/bin/esbuild", "--minify", "a.js"],
    )
    .prepared(&["echo 'const first = 1; console.log(first + 2)' > a.js"])
    .compared_with(Oracle::Nobody("a static Go program without cgo calls no malloc"))
    .but(&[Exception { of: Target::Losses, why: "it has no C allocator, so that there is nothing to count" }]),
    Program::new(
        "ripgrep",
        &[Package::Crate("ripgrep@14.1.1")],
        &["{crates}/ripgrep@14.1.1/bin/rg", "--sort", "path", "--threads", "1", "7+", "{folder}"],
    )
    .prepared(&["for i in $(seq 30); do seq $i 99 > $i.txt; done"]),
];
