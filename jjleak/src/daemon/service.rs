//! What a process is to those who run it: its systemd unit or container, and the main class, jar or script that it runs.

use std::fs::File;
use std::io::Read;

use crate::processes::Pid;
use crate::render::printable;

/// Maximum number of bytes read of a command line: class paths have tens of thousands.
const MAX_BYTES: u64 = 256 << 10;
/// Maximum number of characters of a name.
const MAX_CHARACTERS: usize = 120;
/// Minimum number of hexadecimal digits of a container's ID.
const ID_DIGITS: usize = 32;
/// Digits shown of a container's ID, as container tools do.
const SHOWN_DIGITS: usize = 12;
/// Options of the JVM's launcher that are followed by a word.
const WITH_WORD: [&str; 9] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--describe-module",
    "-d",
];
/// Interpreters, whose script says more than their name.
const INTERPRETERS: [&str; 6] = ["python", "node", "ruby", "perl", "php", "bash"];

/// Unit or container by the path of a control group; `None` for a user's session.
pub(super) fn of_control_group(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let id = name.rsplit(['-', ':']).next().unwrap_or_default();
        if id.len() >= ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Some(format!("container {}", &id[..SHOWN_DIGITS]));
        }
        let is_manager = part.starts_with("user@");
        part.strip_suffix(".service").filter(|_| !is_manager).map(|_| printable(part).into_owned())
    })
}

/// What a process runs; `None` if its command line cannot be read. Can block.
pub(super) fn runs(pid: Pid) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(pid.proc_file("cmdline")).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let words: Vec<&str> = words.iter().map(|word| &**word).filter(|word| !word.is_empty()).collect();
    let name = of_command_line(&words)?;
    Some(printable(&name).chars().take(MAX_CHARACTERS).collect())
}

fn of_command_line(words: &[&str]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    // A process that sets its title may have all of it in one word: `/usr/lib/chromium/chromium --type=renderer --lang=en`.
    let program = file_name(program.split(" -").next().unwrap_or(program));
    let what = if program == "java" {
        of_java(arguments)
    } else if INTERPRETERS.iter().any(|interpreter| program.starts_with(interpreter)) {
        arguments.iter().find(|word| !word.starts_with('-')).map(|script| file_name(script))
    } else {
        None
    };
    Some(what.map_or_else(|| program.to_owned(), |what| format!("{program} {what}")))
}

/// The jar, module or main class.
fn of_java<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    let mut arguments = arguments.iter();
    while let Some(word) = arguments.next() {
        match *word {
            "-jar" => return arguments.next().map(|jar| file_name(jar)),
            "-m" | "--module" => return arguments.next().copied(),
            option if WITH_WORD.contains(&option) => {
                arguments.next();
            }
            option if option.starts_with(['-', '@']) => {}
            class => return Some(class),
        }
    }
    None
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_containers_are_known_by_their_control_groups() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let container = Some("container 0123456789ab".to_owned());
        for path in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
            format!("/machine.slice/libpod-{id}.scope/container"),
            format!("/kubepods-burstable-pod1.slice:cri-containerd:{id}"),
        ] {
            assert_eq!(of_control_group(&path), container, "{path}");
        }
        let unit = |path| of_control_group(path);
        assert_eq!(unit("/system.slice/tomcat.service").as_deref(), Some("tomcat.service"));
        assert_eq!(unit("/system.slice/a.service/payload").as_deref(), Some("a.service"));
        assert_eq!(
            unit("/user.slice/user-0.slice/user@0.service/app.slice/b.service").as_deref(),
            Some("b.service")
        );
        assert_eq!(unit("/user.slice/user-0.slice/user@0.service/init.scope"), None);
        assert_eq!(unit("/user.slice/user-1000.slice/session-3.scope"), None);
        assert_eq!(unit(""), None);
    }

    #[test]
    fn a_jvm_is_known_by_its_main_class_or_jar_and_an_interpreter_by_its_script() {
        let runs = |line: &str| of_command_line(&line.split(' ').collect::<Vec<_>>()).unwrap();
        for (line, expected) in [
            ("/usr/bin/java -Xmx1g -cp a:b org.acme.Main --port 80", "java org.acme.Main"),
            ("java @options -jar /opt/shop/shop.jar --x", "java shop.jar"),
            ("java -p mods -m acme/org.acme.Main", "java acme/org.acme.Main"),
            ("java -version", "java"),
            ("/usr/bin/python3.13 -u /srv/app.py serve", "python3.13 app.py"),
            ("/usr/sbin/nginx -g daemon", "nginx"),
        ] {
            assert_eq!(runs(line), expected, "{line}");
        }
        assert_eq!(of_command_line(&[]), None);
        let of_title = |title| of_command_line(&[title]).unwrap();
        assert_eq!(of_title("/usr/lib/chromium/chromium --type=renderer --dir=/tmp/a"), "chromium");
        assert_eq!(of_title("nginx: worker process"), "nginx: worker process");
    }
}
