use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;

const EXAMPLE: &str = include_str!("../../../../deploy/jjleak.toml");

fn parse(text: &str) -> Result<Config, String> {
    read("jjleak.toml".as_ref(), text, &[]).map_err(|error| error.to_string())
}

fn with(settings: &[&str]) -> Result<Config, String> {
    let settings: Vec<_> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    read("jjleak.toml".as_ref(), "[watch]\ninterval = \"2s\"\n", &settings).map_err(|error| error.to_string())
}

#[test]
fn the_example_names_every_key_with_its_default() {
    assert_eq!(parse(EXAMPLE), Ok(Config::default()));
    let example: toml::Table = toml::from_str(EXAMPLE).unwrap();
    let Ok(Json::Object(sections)) = serde_json::to_value(Config::default()) else { panic!("no object") };
    for (section, keys) in sections {
        for key in keys.as_object().unwrap().keys() {
            assert!(example[&section].as_table().unwrap().contains_key(key), "{section}.{key}");
        }
    }
}

#[test]
fn an_empty_file_is_all_defaults() {
    assert_eq!(parse(""), Ok(Config::default()));
}

#[test]
fn errors_name_the_line_and_what_is_allowed() {
    for (text, expected) in [
        ("[watch]\ninterval = \"2 weeks\"\n", "jjleak.toml:2: `2 weeks` is not a duration from 1s to 1h"),
        ("[watch]\n\ninterval = \"0s\"\n", "jjleak.toml:3: `0s` is not a duration from 1s to 1h"),
        (
            "[watch]\nintervall = \"2s\"\n",
            "jjleak.toml:2: unknown field `intervall`, expected one of `interval`",
        ),
        ("\n[watching]\n", "jjleak.toml:2: unknown field `watching`, expected one of `state`"),
        (
            "[watch]\nnames = [\"a\",\n\"(\"]\n",
            "jjleak.toml:2: `(` is not a regular expression: unclosed group",
        ),
        ("[watch]\nmax_processes = 0\n", "jjleak.toml:2: 0 is not a whole number from 1 to 10000"),
        ("[state]\nmax_bytes = \"1KiB\"\n", "jjleak.toml:2: `1KiB` is not a size from 1MiB to 1024TiB"),
        ("[suspect]\ngrowth_percent = 101\n", "jjleak.toml:2: 101 is not a percentage from 0 to 100"),
        ("[suspect]\nschedule = \"1s\"\n", "jjleak.toml:2: `1s` is not a duration from 1m to 365d"),
        (
            "[profile]\nmax_overhead = \"5\"\n",
            "jjleak.toml:2: `5` is not a share from \"0.1%\" to \"100000%\", nor",
        ),
        ("[profile]\nmax_overhead = \"0%\"\n", "jjleak.toml:2: `0%` is not a share"),
        (
            "[dumps]\nfrom = [\"dumps/*.heap\"]\n",
            "jjleak.toml:2: dumps.from: `dumps/*.heap` must be an absolute path, or a URL",
        ),
        (
            "[dumps]\nfrom = [\"http:///heap\"]\n",
            "jjleak.toml:2: dumps.from: `http:///heap` is neither a URL nor unix:SOCKET:PATH",
        ),
        ("[dumps]\nfrom = [\"/a***\"]\n", "jjleak.toml:2: dumps.from: `/a***`: "),
        ("[dumps]\nheaders = { \"a b\" = \"c\" }\n", "jjleak.toml:2: dumps.headers: `a b` is not"),
        (
            "[profile]\nsettle = \"1m\"\nduration = \"2m\"\n",
            "jjleak.toml:3: profile.duration: too short for a verdict",
        ),
        // What is of another kind, too.
        ("[watch]\ninterval = 5\n", "jjleak.toml:2: `5` is not a duration from 1s to 1h"),
        (
            "[watch]\ninterval = true\n",
            "jjleak.toml:2: invalid type: boolean `true`, expected a duration, such as",
        ),
        ("[watch]\nmax_processes = \"many\"\n", "jjleak.toml:2: many is not a whole number from 1 to 10000"),
        ("[watch]\nmax_processes = 1.5\n", "jjleak.toml:2: 1.5 is not a whole number from 1 to 10000"),
        ("[watch]\nusers = [-1]\n", "jjleak.toml:2: -1 is not a whole number from 0 to 4294967294"),
        ("[watch]\nnames = [[]]\n", "jjleak.toml:2: invalid type: sequence, expected a regular expression"),
        ("[state]\nmax_bytes = false\n", "jjleak.toml:2: invalid type: boolean `false`, expected a size"),
        ("[suspect]\nlimit_percent = \"all\"\n", "jjleak.toml:2: all is not a percentage from 0 to 100"),
        ("[http]\nlisten = 80\n", "jjleak.toml:2: `80` is not an address to listen on: \"unix:/PATH\""),
        ("[watch]\nnames = [1.0]\n", "jjleak.toml:2: invalid type: floating point `1.0`, expected a regular"),
        // Whichever of the two is in the file.
        (
            "[profile]\nsettle = \"2m\"\n",
            "jjleak.toml:2: profile.duration: too short for a verdict with this settle: use at least 600 s",
        ),
        ("[profile]\nback_off = \"2d\"\n", "jjleak.toml:2: profile.back_off_max: less than profile.back_off"),
        (
            "[push]\nto = \"otlp\"\nurl = \"https://\"\n",
            "jjleak.toml:3: push.url: must be a URL that begins with https://",
        ),
        (
            "[push]\n\nheaders = { \"a b\" = \"c\" }\n",
            "jjleak.toml:3: push.headers: `a b` is not a valid header",
        ),
        ("[push]\nheaders = { a = \"c\\nd\" }\n", "jjleak.toml:2: push.headers: `a` is not a valid header"),
        ("[push]\nto = \"otlp\"\n", "jjleak.toml:2: push.url: must be a URL that begins with https://"),
        ("[state]\ndirectory = \"here\"\n", "jjleak.toml:2: state.directory: must be an absolute path"),
        ("[http]\nlisten = \"0.0.0.0:80\"\n", "jjleak.toml:2: `0.0.0.0:80` is not an address to listen on"),
        (
            "[http]\nlisten = \"tcp:0.0.0.0:80\"\n",
            "jjleak.toml:2: http.listen: it would be readable by anybody",
        ),
        (
            "[push]\nto = \"pyroscope\"\nurl = \"pyro\"\n",
            "jjleak.toml:3: push.url: must be a URL that begins with https://",
        ),
        (
            "[push]\nto = \"kafka\"\n",
            "jjleak.toml:2: unknown variant `kafka`, expected one of `off`, `pyroscope`",
        ),
        ("[push]\nheaders = { a = 1 }\n", "jjleak.toml:2: invalid type: integer `1`, expected a string"),
        ("[log]\nlevel = \"loud\"\n", "jjleak.toml:2: unknown variant `loud`, expected one of `error`"),
        ("[watch]\njvms = 1\n", "jjleak.toml:2: invalid type: integer `1`, expected a boolean"),
        ("[watch\n", "jjleak.toml:1: "),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{error:?}");
    }
}

#[test]
fn max_overhead_is_a_share_or_unlimited() {
    let bound =
        |text: &str| parse(&format!("[profile]\nmax_overhead = \"{text}\"\n")).unwrap().profile.max_overhead;
    assert_eq!(bound("2.5%"), OverheadLimit(Some(2.5)));
    assert_eq!(bound("unlimited"), OverheadLimit(None));
    assert_eq!(toml::Value::try_from(bound("2.5%")).unwrap().as_str(), Some("2.5%"));
}

#[test]
fn a_remotely_reachable_address_needs_a_token() {
    let open = "[http]\nlisten = \"tcp:0.0.0.0:80\"\ntoken_file = \"/etc/jjleak/token\"\n";
    assert!(parse(open).is_ok());
    for loopback in ["tcp:127.0.0.1:80", "tcp:[::1]:80", "unix:/run/x"] {
        assert!(parse(&format!("[http]\nlisten = \"{loopback}\"\n")).is_ok(), "{loopback}");
    }
}

#[test]
fn settings_override_the_file() {
    let config =
        with(&["watch.interval=5s", "profile.at_once=2", "watch.names=[\"^worker\"]", "log.format=\"json\""]);
    let config = config.unwrap();
    assert_eq!((config.watch.interval.0.as_secs(), config.profile.at_once.0), (5, 2));
    assert_eq!((config.watch.names.len(), config.log.format), (1, LogFormat::Json));
    assert_eq!(with(&[]).unwrap().watch.interval.0.as_secs(), 2);
    for (setting, expected) in [
        ("watch.interval=0s", "--set watch.interval=0s: `0s` is not a duration"),
        ("watch.loud=1", "--set watch.loud=1: unknown field `loud`"),
        ("watch", "--set watch: settings are written as SECTION.KEY=VALUE"),
    ] {
        let error = with(&[setting]).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\[\\]a-z_.=\"0-9\n #{},]{0,120}") {
        let _ = parse(&text);
    }

    #[test]
    fn written_values_are_read_back(seconds in 1u64..3600, bytes in (1u64 << 20)..(1 << 50)) {
        let mut config = Config::default();
        config.watch.interval = Span(Duration::from_secs(seconds));
        config.state.max_bytes = Size(bytes);
        let json = serde_json::to_string(&config).unwrap();
        prop_assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
    }
}
