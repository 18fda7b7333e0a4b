//! `jjleak daemon`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, umask};

use super::Failure;
use super::failure::{OTHER, USAGE};
use crate::attach;
use crate::daemon::config::{self, Config};
use crate::daemon::{self, Reload, log, memory};
use crate::error_chain::chain;
use crate::notices;

/// Default path of the configuration.
const CONFIG: &str = "/etc/jjleak/jjleak.toml";
/// Maximum size of a configuration; real ones have a few KiB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The daemon's files contain names of code: only its user and group may read them.
const UMASK: u32 = 0o027;

/// Watch processes, profile those that grow, and keep the profiles and findings
///
/// Runs until SIGTERM. SIGHUP reloads the configuration; SIGUSR1 profiles the process that grows fastest.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 stopped as requested, 1 failure, 2 invalid configuration, 3 missing privilege or kernel \
    feature."
)]
pub(super) struct DaemonArgs {
    /// Configuration file (TOML); if the default file does not exist, all keys have their defaults
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,

    /// Override a key of the configuration; can be given several times
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,

    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,
}

/// Runs the daemon.
pub(super) fn serve(args: &DaemonArgs) -> Result<(), Failure> {
    let config = read(&args.config, &args.set).map_err(|what| {
        Failure::new(
            USAGE,
            what,
            "correct it; deploy/jjleak.toml in the source lists every key with its default",
        )
    })?;
    if args.check_config {
        // If the reader has gone away, nobody needs this line.
        let _ = writeln!(io::stdout(), "{}: valid", args.config.display());
        return Ok(());
    }
    log::start(&config.log);
    memory::limit_arenas();
    notices::go_to_log();
    attach::preflight().map_err(attach::Error::from)?;
    umask(Mode::from_bits_truncate(UMASK));
    let (path, set) = (args.config.clone(), args.set.clone());
    let reload: Reload = Box::new(move || read(&path, &set));
    daemon::run(config, &reload).map_err(|error| {
        Failure::new(OTHER, chain(&error), "check the state directory and the limits of the service")
    })
}

fn read(path: &Path, set: &[String]) -> Result<Config, String> {
    let shown = path.display();
    let text = match fs::metadata(path) {
        Ok(file) if file.len() > MAX_CONFIG_BYTES => {
            return Err(format!(
                "{shown} has more than {MAX_CONFIG_BYTES} bytes, which is too large for a configuration"
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && path == Path::new(CONFIG) => String::new(),
        _ => fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?,
    };
    config::read(path, &text, set).map_err(|error| error.to_string())
}
