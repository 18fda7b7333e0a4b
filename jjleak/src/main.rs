//! The `jjleak` command.

fn main() -> std::process::ExitCode {
    jjleak::cli::run()
}
