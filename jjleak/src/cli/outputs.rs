//! Where reports go.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;

use super::Failure;
use super::args::Args;
use crate::profile::Profile;
use crate::render::{Format, Options, Value, render};
use crate::store::PendingFile;

/// The places of one run. Files are opened at once, so that a place that cannot be written to is known before
/// anything is attached; they get their names at the end.
pub(super) struct Outputs {
    stdout: Vec<Format>,
    /// Every report, one a line.
    json_lines: Option<PendingFile>,
    /// Written from the final report.
    files: Vec<FinalFile>,
    reports: u64,
    options: Options,
}

struct FinalFile {
    format: Format,
    value: Value,
    file: PendingFile,
}

impl Outputs {
    /// Opens what the arguments ask for.
    pub(super) fn open(args: &Args, pid: u32) -> Result<Self, Failure> {
        let has = |format| args.format.contains(&format);
        let place = Place { out: args.out.as_deref(), pid, several: wants_several_files(args) };
        let mut outputs = Self {
            stdout: Vec::new(),
            json_lines: None,
            files: Vec::new(),
            reports: 0,
            options: Options {
                selection: args.selection(),
                value: Value::Bytes,
                time_zone: TimeZone::system(),
            },
        };
        if has(Format::Text) {
            outputs.stdout.push(Format::Text);
            if args.out.is_some() {
                outputs.add_file(&place, Format::Text, Value::Bytes)?;
            }
        }
        if has(Format::Json) {
            match args.out {
                Some(_) => outputs.json_lines = Some(place.open(Format::Json, Value::Bytes)?),
                None => outputs.stdout.push(Format::Json),
            }
        }
        if has(Format::Pprof) {
            outputs.add_file(&place, Format::Pprof, Value::Bytes)?;
        }
        for format in [Format::Svg, Format::Collapsed].into_iter().filter(|format| has(*format)) {
            for value in [Value::Bytes, Value::Objects].into_iter().filter(|value| args.by.contains(value)) {
                outputs.add_file(&place, format, value)?;
            }
        }
        Ok(outputs)
    }

    /// Writes an interval's report.
    pub(super) fn report(&mut self, profile: &Profile) -> Result<(), Failure> {
        for format in &self.stdout {
            let mut report = render(profile, *format, &self.options)?;
            // Only texts need a line between them.
            if *format == Format::Text && self.reports > 0 {
                report.insert(0, b'\n');
            }
            print(&report)?;
        }
        self.reports += 1;
        if let Some(file) = &mut self.json_lines {
            file.write(&render(profile, Format::Json, &self.options)?)?;
        }
        Ok(())
    }

    /// Writes the files; returns their names. A file that cannot be written does not keep the others from it.
    pub(super) fn finish(self, profile: &Profile) -> Result<Vec<PathBuf>, Failure> {
        let Self { json_lines, files, options, .. } = self;
        let json = json_lines.map(|file| file.finish().map_err(Failure::from));
        let rendered = files.into_iter().map(|FinalFile { format, value, mut file }| {
            let options = Options { value, ..options.clone() };
            file.write(&render(profile, format, &options)?)?;
            Ok(file.finish()?)
        });
        let results: Vec<_> = json.into_iter().chain(rendered).collect();
        results.into_iter().collect()
    }

    fn add_file(&mut self, place: &Place<'_>, format: Format, value: Value) -> Result<(), Failure> {
        let file = place.open(format, value)?;
        self.files.push(FinalFile { format, value, file });
        Ok(())
    }
}

/// Prints to stdout. A reader that has gone away, such as `head`, is no failure.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(
            super::failure::OTHER,
            format!("writing to stdout failed: {error}"),
            "check where stdout goes",
        )),
        _ => Ok(()),
    }
}

fn wants_several_files(args: &Args) -> bool {
    let files = args.format.iter().map(|format| match format {
        Format::Svg | Format::Collapsed => args.by.len(),
        Format::Text | Format::Json | Format::Pprof => 1,
    });
    files.sum::<usize>() > 1
}

/// How files are named.
struct Place<'a> {
    out: Option<&'a Path>,
    pid: u32,
    several: bool,
}

impl Place<'_> {
    fn open(&self, format: Format, value: Value) -> Result<PendingFile, Failure> {
        Ok(PendingFile::create(&self.path(format, value))?)
    }

    /// In a folder: `jjleak-PID.svg`, `jjleak-PID.objects.svg`. A file name is taken as it is for a single file,
    /// and as the stem of several.
    fn path(&self, format: Format, value: Value) -> PathBuf {
        let kind = if value == Value::Objects { "objects." } else { "" };
        let suffix = format!("{kind}{}", format.extension());
        let in_folder = format!("jjleak-{}.{suffix}", self.pid);
        match self.out {
            None => PathBuf::from(in_folder),
            Some(out) if out.is_dir() || out.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                out.join(in_folder)
            }
            Some(out) if self.several => {
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
        let place = Place { out: out.map(Path::new), pid: 42, several };
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
}
