use clap::Parser;

use super::*;
use crate::attach::Programs;
use crate::cli::command_line::CommandLine;

fn parse_words(words: &[&str]) -> Result<Args, clap::Error> {
    CommandLine::try_parse_from(words).map(|command_line| command_line.args)
}

fn parse(line: &str) -> Result<Args, clap::Error> {
    parse_words(&line.split(' ').collect::<Vec<_>>())
}

#[test]
fn bcc_style_arguments_are_understood() {
    let args = parse("jjleak -p 42 10 3 -T 5 -z 16 -Z 4096").unwrap();
    assert!(matches!(args.subject(), Ok(Subject::Pids(pids)) if pids == [42]));
    assert_eq!((args.interval, args.count, args.outputs.top), (Duration::from_secs(10), Some(3), Some(5)));
    assert_eq!(args.size_filter().ok(), Some(SizeFilter { min: 16, max: 4096 }));
}

#[test]
fn flags_of_bcc_that_choose_and_list_are_understood() {
    let settings = |args: &Args| {
        let mut settings = Settings::new(Programs::Accounting);
        args.apply(&mut settings);
        settings
    };
    let args = parse("jjleak -p 42 -a -o 500 -s 5 --sort count").unwrap();
    let coverage = args.coverage().unwrap_or_default();
    assert_eq!((coverage.older, coverage.blocks_per_stack), (Duration::from_millis(500), SHOWN_BLOCKS));
    assert_eq!((coverage.sampling, settings(&args).sampling), (Sampling::Rate(5), Sampling::Rate(5)));
    let settings = settings(&parse("jjleak -p 42 -C -t --max-live 1000").unwrap());
    assert!(settings.combined && settings.trace);
    assert_eq!(settings.capacity, Capacity { blocks: 1000, ..Capacity::default() });
}

#[test]
fn what_is_too_young_to_be_shown_is_too_young_to_be_judged() {
    let coverage =
        |options: &str| parse(&format!("jjleak -p 42{options}")).unwrap().coverage().unwrap_or_default();
    let settle = |options: &str| coverage(options).settle.as_secs();
    assert_eq!([" -o 60000", " -o 60000 --settle 90", " -o 5000"].map(settle), [60, 90, 15]);
    assert_eq!([" -z 64", " -Z 64", ""].map(|options| coverage(options).some_sizes), [true, true, false]);
}

#[test]
fn verdicts_come_first_unless_a_list_is_asked_for_as_of_bcc() {
    let contents = |options: &str| parse(&format!("jjleak -p 42{options}")).unwrap().contents();
    assert_eq!(contents(" 5 3 --format text"), Contents { verdicts: true, outstanding: false });
    for option in ["--outstanding", "-a", "-C", "-o 5", "-s 2", "-t", "-T 5", "-z 1", "-Z 9", "--sort size"] {
        let list = Contents { verdicts: false, outstanding: true };
        assert_eq!(contents(&format!(" {option}")), list, "{option}");
        assert_eq!(contents(&format!(" {option} --verdicts")), Contents { verdicts: true, ..list });
    }
}

#[test]
fn a_command_keeps_its_own_arguments() {
    let args = parse("jjleak 1 2 -- prog -p 3 --out x").unwrap();
    let words = ["prog", "-p", "3", "--out", "x"].map(OsString::from).to_vec();
    assert!(matches!(args.subject(), Ok(Subject::Command(command)) if command == words));
    assert_eq!((args.interval, args.count), (Duration::from_secs(1), Some(2)));
}

#[test]
fn a_quoted_command_is_split_like_in_a_shell() {
    let args = parse_words(&["jjleak", "-c", "prog 'a b' c"]).unwrap();
    let words = ["prog", "a b", "c"].map(OsString::from).to_vec();
    assert!(matches!(args.subject(), Ok(Subject::Command(command)) if command == words));
}

#[test]
fn several_processes_can_be_named_and_each_counts_once() {
    let args = parse("jjleak -p 42 -p 7 -p 42 1").unwrap();
    assert!(matches!(args.subject(), Ok(Subject::Pids(pids)) if pids == [7, 42]));
    assert!(matches!(parse("jjleak -n ^java$ 1").unwrap().subject(), Ok(Subject::Named(_))));
    assert!(matches!(parse("jjleak --system-wide 1").unwrap().subject(), Ok(Subject::Everything)));
    assert!(parse("jjleak --follow 1 -- make -j2").unwrap().follow);
}

#[test]
fn nonsense_is_refused() {
    for line in [
        "jjleak",
        "jjleak -p 0",
        "jjleak -p 1 -- prog",
        "jjleak -p 1 0",
        "jjleak -p 1 nan",
        "jjleak -p 1 1 0",
        "jjleak -p 1 --format png",
        "jjleak -p 1 --sort colour",
        "jjleak -p 1 -o -1",
        "jjleak -p 1 -s 0",
        "jjleak -p 1 --sample-bytes 0",
        "jjleak -p 1 --sample-bytes 2000000000",
        "jjleak -p 1 -s 2 --sample-bytes 10",
        "jjleak -p 1 -C -a",
        "jjleak -p 1 -C -o 5",
        "jjleak -p 1 -C -s 5",
        "jjleak -p 1 --max-live 0",
        "jjleak -p 1 --max-stacks many",
        "jjleak -p 1 --frame-buffer 2000000000",
        "jjleak -p 1 --name x",
        "jjleak --name [",
        "jjleak --name x --follow",
        "jjleak --system-wide --max-processes 0",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    assert!(parse("jjleak -p 1 -C --sort age").unwrap().coverage().is_err());
    assert!(parse("jjleak -p 1 -z 10 -Z 9").unwrap().size_filter().is_err());
    assert!(parse_words(&["jjleak", "-c", "'open"]).unwrap().subject().is_err());
    assert!(parse_words(&["jjleak", "-c", " "]).unwrap().subject().is_err());
}
