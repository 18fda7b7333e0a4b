//! Destinations of reports.

use std::cmp::Reverse;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;

use super::stream::stream;
use super::{Error, graphviz};
use crate::analyze::{Difference, Rules, Selection};
use crate::notices::print;
use crate::profile::{Profile, Totals};
use crate::render::{Contents, Format, GraphLimits, Options, Value, printable, render, render_difference};
use crate::store::{PendingFile, is_stream, make_folder};

/// Maximum number of processes in a text report; the others are summed up.
const MAX_SHOWN: usize = 10;

/// Requested outputs.
#[derive(Debug, Clone)]
pub struct OutputPlan {
    /// Formats to write.
    pub formats: Vec<Format>,
    /// Folder, file name, device or pipe for files.
    pub out: Option<PathBuf>,
    /// Values in flame graphs and collapsed stacks.
    pub by: Vec<Value>,
    /// Contents of the outputs.
    pub options: Options,
}

impl OutputPlan {
    /// Options for rendering the given selection without omitting anything.
    #[must_use]
    pub fn options(selection: Selection) -> Options {
        Options {
            contents: Contents { verdicts: true, outstanding: true },
            selection,
            value: Value::Bytes,
            time_zone: TimeZone::system(),
            full: false,
            rules: Rules::default(),
            inverted: false,
            graph: GraphLimits::default(),
            view: String::new(),
        }
    }

    fn wants_several_files(&self) -> bool {
        let files = self.formats.iter().map(|format| match format {
            Format::Svg | Format::Collapsed | Format::Dot | Format::Graph => self.by.len(),
            Format::Text | Format::Json | Format::Html | Format::Pprof => 1,
        });
        files.sum::<usize>() > 1
    }
}

/// Destinations of one run. Files are opened at once, to find out before anything is attached that one cannot be written; they
/// get their names at the end.
#[derive(Debug)]
pub struct Outputs {
    /// Formats for stdout; empty once its reader has gone away.
    stdout: Vec<Format>,
    /// File of all reports, one per line.
    json_lines: Option<PendingFile>,
    /// Files written from the final report.
    files: Vec<FinalFile>,
    /// Write failures so far.
    failures: Vec<Error>,
    texts: u64,
    options: Options,
}

/// Outcome of writing the files.
#[derive(Debug)]
pub struct Written {
    /// The files.
    pub files: Vec<PathBuf>,
    /// Write failures of the whole run.
    pub failures: Vec<Error>,
}

impl Written {
    /// Names the files on stderr, and fails if there were write failures.
    pub fn print(self) -> Result<(), Error> {
        self.files.iter().for_each(|path| print(&format!("wrote {}", path.display())));
        Error::all(self.failures)
    }
}

#[derive(Debug)]
struct FinalFile {
    format: Format,
    value: Value,
    file: PendingFile,
}

impl Outputs {
    /// Opens the requested outputs. Files are named after the process if there is a single one.
    pub fn open(plan: &OutputPlan, pid: Option<u32>) -> Result<Self, Error> {
        let has = |format| plan.formats.contains(&format);
        let subject = pid.map(|pid| format!("-{pid}")).unwrap_or_default();
        let place = Place { out: plan.out.as_deref(), subject, several: plan.wants_several_files() };
        place.make_folder()?;
        let mut outputs = Self {
            stdout: Vec::new(),
            json_lines: None,
            files: Vec::new(),
            failures: Vec::new(),
            texts: 0,
            options: plan.options.clone(),
        };
        if has(Format::Text) {
            outputs.stdout.push(Format::Text);
            if plan.out.is_some() {
                outputs.add_file(&place, Format::Text, Value::Bytes)?;
            }
        }
        if has(Format::Json) {
            match plan.out {
                Some(_) => outputs.json_lines = Some(place.open(Format::Json, Value::Bytes)?),
                None => outputs.stdout.push(Format::Json),
            }
        }
        for format in [Format::Html, Format::Pprof].into_iter().filter(|format| has(*format)) {
            outputs.add_file(&place, format, plan.options.value)?;
        }
        let by_value = [Format::Svg, Format::Collapsed, Format::Dot, Format::Graph];
        for format in by_value.into_iter().filter(|format| has(*format)) {
            for value in [Value::Bytes, Value::Objects].into_iter().filter(|value| plan.by.contains(value)) {
                outputs.add_file(&place, format, value)?;
            }
        }
        Ok(outputs)
    }

    /// Writes an interval's report. After a failure, a destination gets no further reports; the others are unaffected.
    pub fn report(&mut self, profiles: &[Profile]) {
        let by_size = by_size(profiles);
        let shown = &by_size[..by_size.len().min(MAX_SHOWN)];
        for profile in shown {
            self.print(profile, Format::Text);
        }
        self.print_rest(&by_size[shown.len()..]);
        self.report_ended(profiles);
    }

    /// Writes the report on ended processes to the destinations that omit nothing.
    pub fn report_ended(&mut self, profiles: &[Profile]) {
        for profile in profiles {
            self.print(profile, Format::Json);
        }
        self.keep(profiles);
    }

    /// Writes the reports on ended processes to the destinations that omit nothing, and a line to stdout for each process that
    /// ended with live blocks, largest first.
    pub fn mention_ended(&mut self, profiles: &[Profile]) {
        let mut by_size = by_size(profiles);
        by_size.retain(|profile| !profile.live().is_nothing());
        let rest = by_size.split_off(by_size.len().min(MAX_SHOWN));
        let prints = self.stdout.contains(&Format::Text);
        for profile in by_size.into_iter().filter(|_| prints) {
            let Totals { bytes, objects } = profile.live();
            let (process, ended) = (&profile.process, profile.ended.as_deref().unwrap_or_default());
            let line = format!("{process} has ended ({ended}): {bytes} bytes lived in {objects} objects");
            self.write(format!("{}\n", printable(&line)).as_bytes());
        }
        self.print_rest(&rest);
        self.report_ended(profiles);
    }

    /// Prints the last reports of ended processes that were only mentioned so far, largest first.
    pub fn print_ended(&mut self, profiles: &[Profile]) {
        let mut by_size = by_size(profiles);
        by_size.retain(|profile| !profile.live().is_nothing());
        let rest = by_size.split_off(by_size.len().min(MAX_SHOWN));
        for profile in by_size {
            self.print(profile, Format::Text);
        }
        self.print_rest(&rest);
    }

    /// Prints reports that were only kept so far.
    pub fn print_kept(&mut self, profiles: &[Profile]) {
        for profile in by_size(profiles) {
            self.print(profile, Format::Text);
            self.print(profile, Format::Json);
        }
    }

    /// Returns true if there is a destination that omits nothing.
    #[must_use]
    pub fn omits_nothing(&self) -> bool {
        self.json_lines.is_some() || self.stdout.contains(&Format::Json)
    }

    /// Appends an interval's report to the file of all reports, if there is one.
    pub fn keep(&mut self, profiles: &[Profile]) {
        for profile in profiles {
            if let Some(mut file) = self.json_lines.take() {
                match append(&mut file, profile, Format::Json, &self.options) {
                    Ok(()) => self.json_lines = Some(file),
                    Err(failure) => self.failures.push(failure),
                }
            }
        }
    }

    /// Returns true if the run should continue: there is a destination, and none has failed.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let somewhere = !self.stdout.is_empty() || self.json_lines.is_some() || !self.files.is_empty();
        somewhere && self.failures.is_empty()
    }

    /// Writes the files: one of each format, with all processes side by side.
    pub fn finish(self, profiles: &[Profile]) -> Written {
        let Self { json_lines, files, options, failures, .. } = self;
        let mut written = Written { files: Vec::new(), failures };
        let merged = Profile::merge(by_size(profiles).into_iter());
        let rendered = files.into_iter().map(|FinalFile { format, value, mut file }| {
            let options = Options { value, ..options.clone() };
            match format {
                Format::Text => by_size(profiles)
                    .into_iter()
                    .try_for_each(|profile| append(&mut file, profile, format, &options))?,
                _ => append(&mut file, &merged, format, &options)?,
            }
            Ok(file)
        });
        for file in json_lines.map(Ok).into_iter().chain(rendered) {
            match file.and_then(|file| file.finish().map_err(Error::from)) {
                Ok(path) => written.files.push(path),
                Err(failure) => written.failures.push(failure),
            }
        }
        written
    }

    /// Prints to stdout if it takes this format, until its reader, such as `head`, has gone away.
    fn print(&mut self, profile: &Profile, format: Format) {
        if !self.stdout.contains(&format) {
            return;
        }
        // Only texts need a line between them.
        if format == Format::Text && self.texts > 0 {
            self.write(b"\n");
        }
        self.texts += u64::from(format == Format::Text);
        let mut stdout = io::stdout().lock();
        let write = |bytes: &[u8]| stdout.write_all(bytes).map_err(Error::Stdout);
        let written = stream(profile, format, &self.options, write);
        let written = written.and_then(|()| stdout.flush().map_err(Error::Stdout));
        self.check_stdout(written);
    }

    /// Sums up the processes that the text omits.
    fn print_rest(&mut self, rest: &[&Profile]) {
        let with_blocks = rest.iter().filter(|profile| !profile.live().is_nothing()).count();
        if with_blocks > 0 && self.stdout.contains(&Format::Text) {
            let Totals { bytes, objects } = rest.iter().map(|profile| profile.live()).sum();
            let text =
                format!("\nand {with_blocks} more processes: {bytes} bytes live in {objects} objects\n");
            self.write(text.as_bytes());
        }
    }

    fn write(&mut self, report: &[u8]) {
        let mut stdout = io::stdout().lock();
        self.check_stdout(stdout.write_all(report).and_then(|()| stdout.flush()).map_err(Error::Stdout));
    }

    /// Prints nothing more after a failure. That the reader has gone away is none.
    fn check_stdout(&mut self, written: Result<(), Error>) {
        let Err(error) = written else { return };
        self.stdout.clear();
        let is_gone = matches!(&error, Error::Stdout(error) if error.kind() == ErrorKind::BrokenPipe);
        if !is_gone {
            self.failures.push(error);
        }
    }

    fn add_file(&mut self, place: &Place<'_>, format: Format, value: Value) -> Result<(), Error> {
        let file = place.open(format, value)?;
        self.files.push(FinalFile { format, value, file });
        Ok(())
    }
}

/// Profiles sorted by live bytes, largest first.
fn by_size(profiles: &[Profile]) -> Vec<&Profile> {
    let mut sorted: Vec<_> = profiles.iter().collect();
    sorted.sort_by_key(|profile| (Reverse(profile.live().bytes), profile.process.pid));
    sorted
}

fn append(file: &mut PendingFile, profile: &Profile, format: Format, options: &Options) -> Result<(), Error> {
    if format == Format::Graph {
        let graph = render(profile, format, options)?;
        return Ok(file.write(&graphviz::svg(graph).map_err(Error::Graphviz)?)?);
    }
    stream(profile, format, options, |bytes| Ok(file.write(bytes)?))
}

/// Writes the difference of two profiles to stdout and into files.
pub fn write_difference(plan: &OutputPlan, difference: &Difference<'_>) -> Result<(), Error> {
    let place =
        Place { out: plan.out.as_deref(), subject: ".diff".to_owned(), several: plan.wants_several_files() };
    for &format in &plan.formats {
        let values = if format == Format::Svg { &plan.by[..] } else { &[Value::Bytes] };
        for &value in values {
            let options = Options { value, ..plan.options.clone() };
            let rendered = render_difference(difference, format, &options)?;
            if plan.out.is_none() && matches!(format, Format::Text | Format::Json) {
                // If the reader has gone away, nobody needs the rest.
                let _ = io::stdout().write_all(&rendered);
                continue;
            }
            let mut file = place.open(format, value)?;
            file.write(&rendered)?;
            print(&format!("wrote {}", file.finish()?.display()));
        }
    }
    Ok(())
}

/// Naming of files.
struct Place<'a> {
    out: Option<&'a Path>,
    /// Part of the name after `jjleak`: `-PID` for one process.
    subject: String,
    several: bool,
}

impl Place<'_> {
    /// Creates the folder, if the destination is named as one.
    fn make_folder(&self) -> Result<(), Error> {
        let named = self.out.filter(|out| out.as_os_str().as_encoded_bytes().ends_with(b"/"));
        Ok(named.map_or(Ok(()), make_folder)?)
    }

    fn open(&self, format: Format, value: Value) -> Result<PendingFile, Error> {
        let path = self.path(format, value);
        let is_users_choice = self.out == Some(&path);
        Ok(if is_users_choice { PendingFile::named(&path)? } else { PendingFile::create(&path)? })
    }

    /// In a folder: `jjleak-PID.svg`, `jjleak-PID.objects.svg`, and `jjleak.svg` for several processes. A file name is used as
    /// given for a single file, and as the stem for several. A device or pipe receives everything.
    fn path(&self, format: Format, value: Value) -> PathBuf {
        let kind = if value == Value::Objects { "objects." } else { "" };
        let suffix = format!("{kind}{}", format.extension());
        let in_folder = format!("jjleak{}.{suffix}", self.subject);
        match self.out {
            None => PathBuf::from(in_folder),
            Some(out) if out.is_dir() || out.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                out.join(in_folder)
            }
            Some(out) if self.several && !is_stream(out) => {
                let mut name = out.as_os_str().to_owned();
                name.push(".");
                name.push(suffix);
                PathBuf::from(name)
            }
            Some(out) => out.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(out: Option<&str>, several: bool, format: Format, value: Value) -> String {
        let place = Place { out: out.map(Path::new), subject: "-42".to_owned(), several };
        place.path(format, value).to_str().unwrap().to_owned()
    }

    #[test]
    fn files_are_named_after_the_process_the_value_and_the_format() {
        assert_eq!(name(None, false, Format::Svg, Value::Bytes), "jjleak-42.svg");
        assert_eq!(name(None, true, Format::Svg, Value::Objects), "jjleak-42.objects.svg");
        assert_eq!(name(Some("/tmp"), true, Format::Pprof, Value::Bytes), "/tmp/jjleak-42.pb.gz");
        assert_eq!(name(Some("/none/"), true, Format::Json, Value::Bytes), "/none/jjleak-42.json");
    }

    #[test]
    fn a_file_name_is_kept_for_one_file_and_extended_for_several() {
        assert_eq!(name(Some("/tmp/leak.svg"), false, Format::Svg, Value::Bytes), "/tmp/leak.svg");
        assert_eq!(name(Some("/tmp/leak"), true, Format::Collapsed, Value::Bytes), "/tmp/leak.collapsed");
    }

    #[test]
    fn a_device_takes_everything() {
        assert_eq!(name(Some("/dev/null"), true, Format::Svg, Value::Bytes), "/dev/null");
    }
}
