//! Programs that exit after their work, timed from their first instruction to their exit.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{Environment, Running, Subject, compile, scratch};
use crate::Result;
use crate::options::Options;

/// A timed command line.
struct Timed {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Environment,
    stopwatch: OnceCell<PathBuf>,
}

impl Timed {
    fn new(name: &'static str, program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        let (environment, stopwatch) = (Environment::new(), OnceCell::new());
        Self { name, program: program.into(), arguments, environment, stopwatch }
    }
}

/// Python's JSON, with its objects allocated by the C library, or by its own allocator.
pub(crate) fn python(options: &Options, times: usize, by_libc: bool) -> Box<dyn Subject> {
    let rounds = times * options.choose(25, 4);
    let script = format!(
        "import json\n\
         data = [{{'id': i, 'name': 'n%d' % i, 'tags': ['a%d' % i, 'b'], 'at': i / 7}} for i in range(300)]\n\
         for _ in range({rounds}):\n    data = json.loads(json.dumps(data))\n"
    );
    let name = if by_libc { "python3, json" } else { "python3, its own allocator" };
    let mut python = Timed::new(name, "/usr/bin/python3", &["-S", "-c", &script]);
    if by_libc {
        python.environment.push(("PYTHONMALLOC".to_owned(), "malloc".to_owned()));
    }
    Box::new(python)
}

/// Fills, indexes, updates and searches a table.
pub(crate) fn sqlite(options: &Options, times: usize) -> Box<dyn Subject> {
    let rows = times * options.choose(20_000, 2_000);
    let script = format!(
        "create table t(id integer primary key, name text, at real);\n\
         insert into t with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})\n\
         select i, 'name ' || (i * 7919 % {rows}), i / 7.0 from n;\n\
         create index by_name on t(name);\n\
         update t set name = upper(name) || hex(randomblob(4)) where id % 3 = 0;\n\
         select count(distinct substr(name, 1, 6)), sum(at), max(replace(name, 'name', 'n')) from t;\n\
         select a.name, group_concat(b.name) from t a join t b on b.id = a.id / 2 group by a.id % 97;\n"
    );
    let sqlite = Timed::new("sqlite3", "/usr/bin/sqlite3", &["-batch", ":memory:", &script]);
    Box::new(sqlite)
}

/// The C compiler proper on a large preprocessed file.
pub(crate) fn compiler(options: &Options, times: usize) -> Result<Box<dyn Subject>> {
    let functions = times * options.choose(30, 3);
    let source = scratch(&format!("big-{functions}.c"));
    let preprocessed = source.with_extension("i");
    fs::write(&source, program(functions)?)?;
    let status = Command::new("gcc").arg("-E").arg(&source).arg("-o").arg(&preprocessed).status()?;
    if !status.success() {
        return Err(format!("gcc -E failed: {status}").into());
    }
    let compiler = Command::new("gcc").arg("-print-prog-name=cc1").output()?.stdout;
    let compiler = String::from_utf8(compiler)?.trim().to_owned();
    let file = preprocessed.display().to_string();
    let arguments = ["-quiet", "-fpreprocessed", "-O2", &file, "-o", "/dev/null"];
    Ok(Box::new(Timed::new("cc1 -O2", compiler, &arguments)))
}

/// C source with this many functions, and headers of the C library.
fn program(functions: usize) -> Result<String> {
    let mut text = String::new();
    for header in
        ["stdio", "stdlib", "string", "math", "pthread", "sys/socket", "netinet/in", "signal", "time"]
    {
        writeln!(text, "#include <{header}.h>")?;
    }
    for function in 0..functions {
        writeln!(
            text,
            "struct s{function} {{ struct s{function} *next; double at[8]; char name[32]; }};\n\
             double f{function}(struct s{function} *s, int n) {{\n\
             double sum = 0;\n\
             for (; s; s = s->next) {{\n\
             for (int i = 0; i < n && i < 8; i++) {{\n\
             if (s->at[i] > {function}) sum += sqrt(s->at[i]) * i; else sum -= s->at[(i + {function}) % 8];\n\
             switch ((i * {function}) & 7) {{ case 1: sum *= 2; break; case 3: sum += n; break; case 5: n--; }}\n\
             }}\n\
             if (strcmp(s->name, \"{function}\") == 0) snprintf(s->name, sizeof s->name, \"%g %d\", sum, n);\n\
             }}\n\
             return sum;\n}}"
        )?;
    }
    Ok(text)
}

impl Subject for Timed {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn start(&self, environment: &Environment, waiting: &[(String, String)]) -> Result<Box<dyn Running>> {
        if self.stopwatch.get().is_none() {
            // It was empty, and there is one thread.
            let _ = self.stopwatch.set(compile("stopwatch")?);
        }
        let stopwatch = self.stopwatch.get().ok_or("no stopwatch")?;
        Ok(Box::new(Waiting::start(stopwatch, self, environment, waiting)?))
    }
}

/// A process held before its first instruction.
struct Waiting(Child);

impl Waiting {
    fn start(
        stopwatch: &Path,
        timed: &Timed,
        environment: &Environment,
        waiting: &[(String, String)],
    ) -> Result<Self> {
        let variables = timed.environment.iter().chain(environment);
        let mut child = Command::new(stopwatch)
            .envs(waiting.iter().map(|(name, value)| (name, value)))
            .args(variables.map(|(name, value)| format!("{name}={value}")))
            .arg(&timed.program)
            .args(&timed.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        // It writes nothing more until released: the buffer loses nothing.
        BufReader::new(child.stdout.as_mut().ok_or("no stdout")?).read_line(&mut line)?;
        let waiting = Self(child);
        if line.trim() == "ready" { Ok(waiting) } else { Err(format!("the stopwatch wrote {line:?}").into()) }
    }
}

impl Running for Waiting {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn run(&mut self) -> Result<f64> {
        let mut output = self.0.stdout.take().ok_or("it has run")?;
        let reader = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        let begun = Instant::now();
        self.0.stdin.take().ok_or("it has run")?.write_all(b"\n")?;
        let status = self.0.wait()?;
        let took = begun.elapsed();
        let _ = reader.join();
        if status.success() { Ok(took.as_secs_f64()) } else { Err(format!("it failed: {status}").into()) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
